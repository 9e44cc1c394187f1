"""A task states its facts, names no tool, and keeps both when it is varied."""

import re
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.tasks import AugmentedTask, AugmentTask, ScoredTask, ScoreTask, WriteTask, WrittenTask
from synthesis.records import TaskScores
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.trajectories.augmentation import augment_task
from synthesis.trajectories.chains import bind_chain
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.tasks import TaskThresholds, is_stated, score_task, write_task
from synthesis.trajectories.worker import TrajectoriesWorker
from tests.synthesis.trajectories.servers import HOTELS, task

CHAIN = bind_chain(HOTELS, ["find_hotel", "book_hotel"])
FACTS = {"city": "Oslo", "guest": "Ana"}


async def written(text: str, slots: dict = FACTS, hidden: tuple[str, ...] = (), chain=CHAIN, tools=()):
    # Twice: a task that breaks a rule is asked for once more.
    teacher = ScriptedTeacher({WriteTask: [WrittenTask(text=text, slots=slots, tools=tools)] * 2})
    return await write_task(HOTELS, teacher, chain=chain, expectation="answer", hidden_slots=hidden, seed=0)


@pytest.mark.parametrize(
    ("text", "slots", "reason"),
    [
        ("Book a hotel in Oslo.", FACTS, "fact is not in the task's text"),
        ("Book a hotel in Oslo for Ana.", {"city": "Oslo"}, "task without a needed fact"),
        ("Book a hotel in Oslo for 7.", {"city": "Oslo", "guest": 7}, "fact that the schema does not allow"),
        ("Use find_hotel for Oslo and Ana.", FACTS, "tool name in the task"),
        ("   ", {"city": "", "guest": ""}, "fact is not in the task's text"),
        ("请在 Oslo 为 Ana 预订一家酒店。", FACTS, "task in another language"),
        ("Book a 酒店 in Oslo for Ana.", FACTS, "task in another language"),
    ],
)
async def test_a_task_with_a_fault_is_rejected_with_its_reason(text, slots, reason):
    with pytest.raises(Rejected) as rejected:
        await written(text, slots)
    assert rejected.value.reason == reason


async def test_a_hidden_fact_must_not_stand_in_the_text():
    await written("Book a hotel for Ana.", hidden=("city",))
    with pytest.raises(Rejected, match="hidden fact"):
        await written("Book a hotel in Oslo for Ana.", hidden=("city",))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Find a hotel and book it for Ana.", "augmentation changed a fact"),
        ("Find a hotel in Oslo and book it for Ana near Lima.", "augmentation changed a fact"),
        ("Find a hotel in Oslo and book it for Ana.", "augmentation changed nothing"),
        ("请在 Oslo 找一家酒店并为 Ana 预订一个房间好吗谢谢你", "augmentation changed the language"),
        ("Use find_hotel in Oslo for Ana.", "tool name in the task"),
    ],
)
async def test_a_variant_keeps_intent_facts_and_language(text, reason):
    teacher = ScriptedTeacher({AugmentTask: [AugmentedTask(text=text)] * 2})
    asked = task("find_hotel", "book_hotel", hidden_parameters={"near": "Lima"})
    with pytest.raises(Rejected) as rejected:
        await augment_task(asked, HOTELS, teacher, axis="diversity", seed=0)
    assert rejected.value.reason == reason


def drawn(chains, seed: int, **shares: float):
    config = TrajectoriesConfig(count=1, out=Path("out"), **shares)
    return TrajectoriesWorker(config, ProceduralTeacher(), {})._drawn_behaviour(HOTELS, chains, Random(seed))


def test_a_task_is_refused_or_asked_back_in_its_share_and_takes_a_chain_of_the_drawn_kind_or_none():
    independent, fixed = bind_chain(HOTELS, ["find_hotel", "get_weather"]), CHAIN.model_copy(update={"bindings": ()})
    counts = Counter(drawn([CHAIN], seed, refuse_share=0.3, ask_back_share=0.3)[0] for seed in range(600))
    assert all(150 < counts[kind] < 210 for kind in ("refuse", "ask_back"))
    chains, none_else = [independent, fixed], {"server_only_share": 0, "independent_share": 0}
    for seed in range(20):  # a refused task has no more to do with facts to leave out than an ordinary one
        assert drawn(chains, seed, refuse_share=1, ask_back_share=0, **none_else) == ("refuse", fixed, ())
        asked = drawn([fixed], seed, refuse_share=0, ask_back_share=1, **none_else)
        assert asked[::2] == ("answer", ())
        assert asked[1].tools == fixed.tools
        for none in ([], [independent]):
            with pytest.raises(Rejected, match="server without a chain of dependent calls"):
                drawn(none, seed, ask_back_share=0, **none_else)
        assert drawn([], seed, refuse_share=0, server_only_share=1) == ("answer", None, ())


async def test_each_score_must_reach_its_threshold_and_none_has_a_default():
    async def scored(reply):
        teacher = ScriptedTeacher({ScoreTask: [reply]})
        return await score_task("x", HOTELS, CHAIN, teacher, TaskThresholds(), slots={}, seed=0)

    good = ScoredTask(reason="plain", clarity=0.9, realism=0.9, tool_necessity=0.9)
    assert await scored(good) == TaskScores(clarity=0.9, realism=0.9, tool_necessity=0.9)
    for quality in TaskScores.model_fields:
        with pytest.raises(Rejected, match=quality.replace("_", " ")):
            await scored(good.model_copy(update={quality: 0.1}))
    with pytest.raises(BadReply):
        await scored(BadReply("no JSON"))


LETTERS = st.text("aB1٣5.,- 房ß", max_size=8)


@given(
    value=st.one_of(LETTERS, st.integers(0, 155), st.sampled_from([1.5, 0.5, 15.0])),
    before=LETTERS,
    after=LETTERS,
)
def test_a_value_is_stated_where_it_stands_alone_as_a_pattern_would_say(value, before, after):
    wanted = re.escape(str(value).casefold())
    for text in (before + after, f"{before}{value}{after}", f"{before} {value}{after}", f"{value}{before}{value}"):
        if isinstance(value, str):
            guarded = rf"(?<![a-z0-9]){wanted}(?![a-z0-9])" if value.isascii() else wanted
            expected = bool(wanted) and re.search(guarded, text.casefold()) is not None
        else:
            guard = r"(?<!\d)(?<!\d\.)(?<!\W\.)(?<!^\.)" if str(value)[0].isdecimal() else ""
            guard += r"(?<!\d,)" if re.match(r"\d{3}(?!\d)", str(value)) else ""  # thousands, as in 1,500
            expected = re.search(rf"{guard}{wanted}(?!\d|\.\d|,\d{{3}}(?!\d))", text) is not None
        assert is_stated(value, text) == expected
