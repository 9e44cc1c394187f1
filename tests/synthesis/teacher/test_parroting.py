"""Replies that a weak model copies from its prompt are refused, and those that answer are not.

`parroted_replies.jsonl` holds such replies: examples and schemas sent back, instructions, empty lists, other languages.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from synthesis.environments.questions.qa_instances import write_qa_instance
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.prompts.decompositions import WriteQAInstance, beginnings
from synthesis.questions.decomposition import DecompositionNode, QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Composition
from synthesis.stage import Rejected
from synthesis.teacher.calls import reply_schema
from synthesis.teacher.parroting import parted, require_own_words, runs_of
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.reading import Unreadable, read_reply
from synthesis.trajectories.tasks import write_task
from tests.synthesis.otherwise import Otherwise
from tests.synthesis.prompts.test_every_prompt import RENDERED
from tests.synthesis.teacher.asking import asking, key  # noqa: F401  a fixture
from tests.synthesis.trajectories.servers import HOTELS
from tests.synthesis.trajectories.test_pipeline import synthesize

RECORDED = [json.loads(line) for line in Path(__file__).with_name("parroted_replies.jsonl").read_text().splitlines()]
PLAN = EnvironmentPlan(0, "parallel_multi_hop", "en", "kites", 4, False, "plain")


async def accepted(kind: str, language: str, teacher):
    request = next(one for each, one in RENDERED[language].items() if each.__name__ == kind)
    if kind == "WriteTask":
        server = HOTELS.model_copy(update={"language": language})
        return await write_task(
            server, teacher, chain=request.chain, expectation="answer", hidden_slots=(), seed=0, persona=request.persona
        )
    if kind == "WriteQAInstance":
        return await write_qa_instance(teacher, request.knowledge, PLAN, max_hops=5, seed=0)
    return await teacher.ask(request, seed=0)


@pytest.mark.parametrize(
    "recorded", RECORDED, ids=[f"{one['kind']}-{one['language']}-{one['seen']}" for one in RECORDED]
)
async def test_a_parroted_reply_is_refused_by_a_rule_that_says_why(recorded):
    async with asking(lambda _: recorded["reply"]) as (_, teacher):
        with pytest.raises((BadReply, Rejected), match=recorded["fault"]):
            await accepted(recorded["kind"], recorded["language"], teacher)


def test_the_schema_of_a_reply_is_no_reply():
    for kind in RENDERED["en"]:
        with pytest.raises(Unreadable):
            read_reply(json.dumps(reply_schema(kind.reply_type)), kind.reply_type)


async def test_answers_are_not_taken_for_copies(tmp_path):
    checked = 0

    class Read(Otherwise):
        async def ask(self, request, *, seed):
            nonlocal checked
            reply = await super().ask(request, seed=seed)
            if not request.is_turn:
                require_own_words(reply, request)
                checked += 1
            return reply

    await synthesize(tmp_path / "out", Read(), count=30, follow_up_share=0.3)
    assert checked > 300


CRITERIA = "It cannot be answered without the tools, and reads like a form or a test."
OWN = [
    ("JudgeToolNecessity", "en", {"reason": "Two lengths are compared that are both known.", "needs_tool": False}),
    ("JudgeNaturalness", "en", {"reason": "Two short sentences, as people speak.", "naturalness": 1}),
    ("ScoreTask", "en", {"reason": CRITERIA, "clarity": 0.5, "realism": 0.5, "tool_necessity": 0.5}),
    ("JudgePlanning", "en", {"reason": "It says 12 nights; the tool returned 14.", "score": 0.2}),
    ("JudgePlanning", "zh", {"reason": "它说有 3 个房间，而工具返回 5。", "score": 0.2}),
    ("VoteOnChain", "en", {"reason": "The order is shipped after it was deleted.", "coherent": False}),
    ("AugmentTask", "en", {"text": "Is a room in Oslo free for Ana? Just yes or no, please."}),
    ("AugmentTask", "zh", {"text": "奥斯陆给安娜的酒店订好了吗？只回答是否就行。"}),
    (
        "WriteTask",
        "en",
        {
            "text": "My room in Oslo was loud again - can the hotel have a look on 2031-04-02, and may Ana move to a "
            "quieter one near the harbour for two more nights?",
            "slots": {"city": "Oslo", "guest": "Ana"},
        },
    ),
]
"""Replies that answer, in words that are near those of the example."""


@pytest.mark.parametrize(("kind", "language", "reply"), OWN, ids=[f"{kind}-{language}" for kind, language, _ in OWN])
def test_a_reply_that_is_near_the_example_in_its_form_alone_is_an_answer(kind, language, reply):
    request = next(one for each, one in RENDERED[language].items() if each.__name__ == kind)
    require_own_words(request.reply_type.model_validate(reply), request)


SHOWN = re.compile(r"kite|sable|violet|workshop|\d|span|hue|[风筝黑貂紫翼坊]")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_honest_reason_of_a_judge_shares_half_of_its_words_with_the_example(language):
    for kind, request in RENDERED[language].items():
        if kind.role == "judges":
            (shown,) = re.findall(r'"reason": "(.*?)",\s"', parted(request.messages()[0]["content"])[1])
            made_up = [run for run in runs_of(shown) if SHOWN.search(" ".join(run))]
            assert len(made_up) >= 0.5 * len(runs_of(shown)), (kind, shown)


def instance(*names: str, year: int = 1990) -> QAInstance:
    nodes = (
        DecompositionNode(id="q1", question=f"Who built {names[0]}?", answer=names[1]),
        DecompositionNode(id="q2", question=f"When was {names[1]} born?", answer=year, depends_on=("q1",)),
    )
    whole = {"answer": year, "hops": 2, "scenario": "multi_hop", "entities": names}
    return QAInstance(question="When?", nodes=nodes, composition=Composition(operation="same", inputs=("q2",)), **whole)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_made_up_names_must_begin_as_asked_and_facts_must_stand_in_the_passage(language):
    knowledge = Knowledge(domain="kites", language=language, seed=4)
    shape = {"scenario": "multi_hop", "num_lookups": 2, "with_computation": False, "max_hops": 2}
    asked = WriteQAInstance(knowledge=knowledge, **shape)
    one, two, *_ = beginnings(knowledge)
    asked.check(instance(f"{one}塔" if language == "zh" else f"Tower {one}len", f"{two}明"))
    for names in (("Fen Tower", f"{two}nak"), ()):
        with pytest.raises(ValueError, match="begin with one of"):
            asked.check(instance(*names) if names else instance("x", "y").model_copy(update={"entities": ()}))
    text = "Fen Tower, 60 m high, was built by Ilse Marn, who was born on 3 May 1990."
    told = asked.model_copy(
        update={"knowledge": Knowledge(kind="passage", domain="kites", language=language, text=text)}
    )
    told.check(instance("Fen Tower", "Ilse Marn"))
    for strange in (instance("Fen Tower", "Oda Fenn"), instance("Fen Tower", "Ilse Marn", year=1880)):
        with pytest.raises(ValueError, match="does not stand in the source"):
            told.check(strange)
