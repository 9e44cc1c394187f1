"""Long documents: as long for needed tools as for others, with optional parameters that the code takes."""

from __future__ import annotations

import statistics

import pytest

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer
from synthesis.environments.proving.long_documents import lengthened
from synthesis.environments.proving.proof import request_of
from synthesis.environments.proving.tool_source import check_source
from synthesis.records import EnvironmentTool, Message
from tests.shared_data import shared_data
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, document, faults, read, tiny_config

SOURCES = (
    "def get(a: str) -> int:\n    return TABLES['rows'][a]\n",
    'def get(a, *, 房="é", b: dict[str, int] = {"x": 1}) -> int:  # 注\n    return TABLES["rows"][a]\n',
    'import json\n\n\ndef other(a):\n    return 0\n\n\ndef get(\n    a: str,\n):\n    return TABLES["rows"][a]\n',
    "def get(a: str, **more) -> int:\n    return TABLES['rows'][a]\n",
)


@pytest.mark.parametrize("source", SOURCES)
async def test_the_code_takes_what_was_added_and_returns_the_same(source):
    tool = EnvironmentTool(document=document("get", "The a", a="string"), source=source, tables={"rows": {"x": 7}})
    longer = next(
        found for found in (lengthened(tool, "en", seed) for seed in range(20)) if found.document != tool.document
        and len(found.document.parameters["properties"]) > 1
    )  # fmt: skip
    added = set(longer.document.parameters["properties"]) - {"a"}
    replies = await InThisProcess().execute_batch(
        [request_of(longer, {"a": "x"}), request_of(longer, {"a": "x", **{name: {} for name in added}})]
    )
    assert [reply.value for reply in replies] == [7, 7]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_long_document_begins_with_its_own_words_keeps_its_name_and_passes_the_rules(language):
    tool = EnvironmentTool(document=document("get", "The a of it", a="string"), source=SOURCES[0])
    sizes = set()
    for seed in range(40):
        longer = lengthened(tool, language, seed)
        check_source(longer.source, longer.document, ())
        assert longer.document.description.partition("\n\n")[0].rstrip("。.") == "The a of it"
        assert longer.document.required == ("a",)
        assert longer == lengthened(tool, language, seed)
        sizes.add(len(longer.document.description) // 50)
    assert len(sizes) >= 4


@pytest.fixture(scope="module")
def records(tmp_path_factory, here):
    config = tiny_config(
        seed=3,
        count=20,
        out=tmp_path_factory.mktemp("long") / "out",
        difficulty="hard",
        name_parts={},
        long_documents=True,
        scaled_documents=0.5,
        fewest_irrelevant=0.25,
        irrelevant_per_band={"high": 8, "medium": 24, "low": 24},
        varieties={"plain": 0.8, "stateful": 0.2},
    )
    return all_kept(config, here)


def test_length_says_nothing_of_whether_a_tool_is_needed(records, sandbox_url, tmp_path):
    environments = read(records)
    own = [len(tool.model_dump_json()) for each in environments for tool in (t.document for t in each.tools)]
    offered = [len(t.tool.document.model_dump_json()) for each in environments for t in each.irrelevant_tools]
    assert statistics.fmean(own) == pytest.approx(statistics.fmean(offered), rel=0.1)
    assert statistics.median(own) == pytest.approx(statistics.median(offered), rel=0.15)
    sizes = [len(each.all_tools) for each in environments]
    assert min(sizes) < 25
    assert max(sizes) > 35
    assert faults(tmp_path / "some", sandbox_url, *environments[:4]) == []


def test_prompts_have_five_thousand_tokens_and_more(records):
    tokenizer = Tokenizer.load(shared_data("qwen_tokenizer", "tokenizer.json").parent)

    def tokens(environment):
        tools = [tool.document for tool in environment.all_tools]
        return len(tokenizer.encode(render([Message(role="user", content=environment.question)], tools)))

    lengths = [tokens(environment) for environment in read(records)]
    assert statistics.median(lengths) > 5000
    assert max(lengths) < 20_000
