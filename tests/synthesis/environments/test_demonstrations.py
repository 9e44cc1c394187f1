"""Demonstrations with a habit: each differs from the gold episode as its name says, and every call of it was run."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

import pytest

from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.testing import tiny_environment
from synthesis.environments.demonstrations import demonstrate, draw_habit, verify_demonstration
from synthesis.records import Environment, Habit, IrrelevantTool, Message
from synthesis.stage import Rejected
from tests.synthesis.environments.in_this_process import InThisProcess

DISTRACTOR = tiny_environment(owner="Lone Pine", flat="Red Gate").tools[1]
ENVIRONMENT = tiny_environment().model_copy(
    update={
        "irrelevant_tools": (
            IrrelevantTool(
                tool=DISTRACTOR.model_copy(
                    update={
                        "document": DISTRACTOR.document.model_copy(update={"name": "get_rate"}),
                        "source": DISTRACTOR.source.replace("get_rent", "get_rate"),
                    }
                ),
                band="low",
                similarity=0.0,
            ),
        )
    }
)
GOLD = ENVIRONMENT.gold_messages()


def demonstrated(habit: Habit) -> Environment:
    demonstration = asyncio.run(demonstrate(ENVIRONMENT, habit, InThisProcess(), random.Random(0)))
    return ENVIRONMENT.model_copy(update={"demonstration": demonstration})


def call_names(messages: tuple[Message, ...]) -> list[str]:
    return [call.name for message in messages for call in message.tool_calls]


def test_a_distractor_is_called_first_with_what_the_question_names_and_says_what_it_says_in_the_sandbox() -> None:
    messages = demonstrated("calls_distractor").demonstrated_messages()
    assert (messages[0], *messages[3:]) == GOLD
    assert messages[1].tool_calls[0].arguments == {"flat": "Quartz Heron"}
    assert "no such flat: Quartz Heron" in messages[2].content
    assert messages[2].tool_call_id == messages[1].tool_calls[0].id


def test_reasoning_in_chinese_quotes_a_tools_document_before_its_name_if_it_says_anything() -> None:
    chinese = ENVIRONMENT.model_copy(update={"language": "zh"})
    described = {tool.document.name: tool.document.description for tool in ENVIRONMENT.all_tools}
    words = [message.reasoning_content for message in GOLD if message.tool_calls]
    assert words == ["find flat: Quartz Heron", "rent: Amber Falcon"]
    said = [message.reasoning_content for message in chinese.gold_messages() if message.tool_calls]
    assert said == [f"{described['find_flat']}; {words[0]}", f"{described['get_rent']}; {words[1]}"]
    habit = asyncio.run(demonstrate(chinese, "calls_distractor", InThisProcess(), random.Random(0)))
    assert habit.messages[1].reasoning_content == f"{described['get_rate']}; rate: Quartz Heron"
    silent = [
        tool.model_copy(update={"document": tool.document.model_copy(update={"description": ""})})
        for tool in ENVIRONMENT.tools
    ]
    undescribed = chinese.model_copy(update={"tools": tuple(silent)}).gold_messages()
    assert [message.reasoning_content for message in undescribed if message.tool_calls] == words


def test_a_call_is_repeated_and_answered_as_the_first_time() -> None:
    messages = demonstrated("repeats_call").demonstrated_messages()
    assert call_names(messages) == ["find_flat", "find_flat", "get_rent"]
    assert messages[4].content == messages[2].content


def test_who_stops_early_answers_with_what_the_call_before_the_last_returned() -> None:
    messages = demonstrated("stops_early").demonstrated_messages()
    assert call_names(messages) == ["find_flat"]
    assert messages[-1].content == "The answer is Amber Falcon."


def test_without_a_demonstration_the_gold_episode_is_demonstrated() -> None:
    assert ENVIRONMENT.demonstrated_messages() == GOLD
    assert "demonstration" not in ENVIRONMENT.model_dump(mode="json")


@pytest.mark.parametrize("habit", ["calls_distractor", "repeats_call", "stops_early"])
def test_what_a_demonstration_was_told_is_found_again_and_a_changed_word_is_caught(habit: Habit) -> None:
    environment = demonstrated(habit)
    asyncio.run(verify_demonstration(environment, InThisProcess()))
    assert environment.demonstration is not None
    messages = environment.demonstration.messages
    place = next(index for index, message in enumerate(messages) if message.role == "tool")
    changed = messages[place].model_copy(update={"content": '"Green Door"'})
    told_otherwise = environment.demonstration.model_copy(
        update={"messages": (*messages[:place], changed, *messages[place + 1 :])}
    )
    with pytest.raises(Rejected, match="another demonstration: message"):
        asyncio.run(
            verify_demonstration(environment.model_copy(update={"demonstration": told_otherwise}), InThisProcess())
        )


@pytest.mark.parametrize("habit", ["calls_distractor", "repeats_call", "stops_early"])
def test_another_last_sentence_another_habit_and_a_habit_without_room_are_caught(habit: Habit) -> None:
    environment = demonstrated(habit)
    found = environment.demonstration
    assert found is not None
    (*before, last) = found.messages
    other_words = found.model_copy(update={"messages": (*before, last.model_copy(update={"content": "Nobody knows."}))})
    names: tuple[Habit, ...] = ("calls_distractor", "repeats_call", "stops_early")
    other_habits = [found.model_copy(update={"habit": name}) for name in names if name != habit]
    for changed in (other_words, *other_habits):
        with pytest.raises(Rejected, match=r"another demonstration|demonstration calls no distractor"):
            asyncio.run(
                verify_demonstration(environment.model_copy(update={"demonstration": changed}), InThisProcess())
            )
    with pytest.raises(Rejected, match="no room for the demonstration"):
        asyncio.run(verify_demonstration(environment.model_copy(update={"sub_questions": ()}), InThisProcess()))


def test_habits_come_in_their_shares_and_only_where_there_is_room() -> None:
    shares: Mapping[Habit, float] = {"calls_distractor": 0.5, "stops_early": 0.2}
    rng = random.Random(0)
    drawn = Counter(draw_habit(ENVIRONMENT, shares, rng) for _ in range(4000))
    assert {habit: count / 4000 for habit, count in drawn.items()} == pytest.approx(
        {"calls_distractor": 0.5, "stops_early": 0.2, None: 0.3}, abs=0.03
    )
    one_call = ENVIRONMENT.model_copy(update={"sub_questions": ENVIRONMENT.sub_questions[:1], "irrelevant_tools": ()})
    assert {draw_habit(one_call, shares, rng) for _ in range(100)} == {None}
    assert {draw_habit(ENVIRONMENT.model_copy(update={"state": {}}), shares, rng) for _ in range(100)} == {None}


def test_a_distractor_is_not_called_where_the_first_call_says_nothing_to_ask_it_with() -> None:
    first = ENVIRONMENT.sub_questions[0]
    assert first.call is not None
    silent = first.model_copy(update={"call": first.call.model_copy(update={"arguments": {}})})
    environment = ENVIRONMENT.model_copy(update={"sub_questions": (silent, *ENVIRONMENT.sub_questions[1:])})
    assert draw_habit(environment, {"calls_distractor": 1.0}, random.Random(0)) is None
    assert draw_habit(ENVIRONMENT, {"calls_distractor": 1.0}, random.Random(0)) == "calls_distractor"


def test_a_distractor_that_was_called_is_shown_however_few_are() -> None:
    for seed in range(5):
        shown = mix_tools(ENVIRONMENT, irrelevant_per_band={}, seed=seed, called=["get_rate"])
        assert {tool.document.name for tool in shown} == {"find_flat", "get_rent", "get_rate"}
