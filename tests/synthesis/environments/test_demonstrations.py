"""Demonstrations with a habit: each differs from the gold episode as its name says, and every call of it was run."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import get_args

import pytest

from astra_jax.testing import tiny_environment
from sandbox.client import ExecuteRequest
from sandbox.protocol import ErrorKind, ToolError
from synthesis.environments.proving.demonstrations import demonstrate, draw_habit, verify_demonstration
from synthesis.records import (
    Demonstration,
    Environment,
    EnvironmentTool,
    Habit,
    IrrelevantTool,
    JsonObject,
    JsonValue,
    Message,
)
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import all_kept, read, tiny_config, verdict

DISTRACTOR = tiny_environment(owner="Lone Pine", flat="Red Gate").tools[1]
ENVIRONMENT = altered(
    tiny_environment(),
    irrelevant_tools=(
        IrrelevantTool(
            tool=altered(
                DISTRACTOR,
                document=altered(DISTRACTOR.document, name="get_rate"),
                source=DISTRACTOR.source.replace("get_rent", "get_rate"),
            ),
            band="low",
            similarity=0.0,
        ),
    ),
)
GOLD = ENVIRONMENT.gold_messages()
HABITS: tuple[Habit, ...] = get_args(Habit)


def demonstrated(habit: Habit, environment: Environment = ENVIRONMENT, *, seed: int = 0) -> Environment:
    demonstration = asyncio.run(demonstrate(environment, habit, InThisProcess(), random.Random(seed)))
    return altered(environment, demonstration=demonstration)


def verify(environment: Environment, demonstration: Demonstration | None = None) -> None:
    """Verify an environment's demonstration, or another one in its place."""
    if demonstration is not None:
        environment = altered(environment, demonstration=demonstration)
    asyncio.run(verify_demonstration(environment, InThisProcess()))


def require_another(environment: Environment, demonstration: Demonstration) -> None:
    with pytest.raises(Rejected, match="another demonstration: message"):
        verify(environment, demonstration)


def shown_by(environment: Environment) -> Demonstration:
    assert environment.demonstration is not None
    return environment.demonstration


def with_tools(change: Callable[[EnvironmentTool], JsonObject]) -> Environment:
    tools = tuple(tool.model_copy(update=change(tool)) for tool in ENVIRONMENT.tools)
    return altered(ENVIRONMENT, tools=tools)


def asked_first(arguments: JsonObject, source: str = "", required: tuple[str, ...] = ("owner",)) -> Environment:
    """The environment with other arguments of its first call, and other code of its tool."""
    first, *others = ENVIRONMENT.sub_questions
    assert first.call is not None
    call = altered(first.call, arguments=arguments)
    tool = ENVIRONMENT.tools[0]
    parameters = {"type": "object", "properties": {name: {} for name in arguments}, "required": list(required)}
    document = altered(tool.document, parameters=parameters)
    tool = altered(tool, document=document, source=source or tool.source)
    return altered(
        ENVIRONMENT, sub_questions=(altered(first, call=call), *others), tools=(tool, *ENVIRONMENT.tools[1:])
    )


def call_names(messages: tuple[Message, ...]) -> list[str]:
    return [call.name for message in messages for call in message.tool_calls]


def test_a_distractor_is_asked_first_in_the_words_of_the_question():
    messages = demonstrated("calls_distractor").demonstrated_messages()
    assert (messages[0], *messages[3:]) == GOLD
    assert messages[1].tool_calls[0].arguments == {"flat": "Quartz Heron"}
    assert "no such flat: Quartz Heron" in messages[2].content
    assert messages[2].tool_call_id == messages[1].tool_calls[0].id


def test_a_repeated_call_is_answered_as_before_and_a_missing_last_call_leaves_the_answer_before():
    repeated = demonstrated("repeats_call").demonstrated_messages()
    assert call_names(repeated) == ["find_flat", "find_flat", "get_rent"]
    assert repeated[4].content == repeated[2].content
    stopped = demonstrated("stops_early").demonstrated_messages()
    assert call_names(stopped) == ["find_flat"]
    assert stopped[-1].content == "The answer is Amber Falcon."


def test_a_call_too_many_asks_for_any_other_row_and_leaves_the_answer_as_it_is():
    told = set()
    for seed in range(20):
        (*before, call, response, last) = demonstrated("one_call_too_many", seed=seed).demonstrated_messages()
        assert (*before, last) == GOLD
        (asked,) = call.tool_calls
        assert (response.role, response.tool_call_id, response.is_error) == ("tool", asked.id, False)
        told.add((asked.name, *asked.arguments.items(), response.content))
    assert told == {
        ("find_flat", ("owner", "Copper Lynx"), '"Jade Otter"'),
        ("get_rent", ("flat", "Jade Otter"), "990"),
    }


OTHER_ROWS: dict[str, tuple[JsonValue, JsonValue]] = {
    "answer": (2150, "Amber Falcon"),  # each an answer of the other tool's sub-question
    "written otherwise": ("2,150", "amber falcon"),
    "error": ({"error": "gone"}, {"error": "gone"}),
}


@pytest.mark.parametrize("kind", [*OTHER_ROWS, "no other row", "raises"])
def test_there_is_no_room_for_a_call_too_many_that_is_told_an_answer_or_an_error(kind):
    def change(tool):
        if kind == "raises":
            return {"source": f"def {tool.document.name}(**arguments): raise KeyError('down')"}
        rows = tool.tables["rows"]
        if kind == "no other row":
            return {"tables": {"rows": dict(list(rows.items())[:1])}}
        others = dict(zip(("Copper Lynx", "Jade Otter"), OTHER_ROWS[kind], strict=True))
        return {"tables": {"rows": {row: others.get(row, told) for row, told in rows.items()}}}

    assert demonstrated("one_call_too_many", with_tools(change)).demonstrated_messages() == GOLD


def test_a_mistake_in_the_first_call_fails_and_is_followed_by_the_gold_episode_or_by_giving_up():
    messages = demonstrated("recovers").demonstrated_messages()
    assert (messages[0], *messages[3:]) == GOLD
    (call,) = messages[1].tool_calls
    assert (call.name, call.arguments) == ("find_flat", {"owner": "Quartz"})
    assert messages[1].reasoning_content == "find flat: Quartz"
    assert json.loads(messages[2].content) == {"error": "ValueError: no such owner: Quartz"}
    assert (messages[2].tool_call_id, messages[2].is_error) == (call.id, True)
    *before, last = demonstrated("gives_up").demonstrated_messages()
    assert tuple(before) == messages[:3]
    assert (last.role, last.content) == ("assistant", "Sorry, I could not find it out.")
    chinese = demonstrated("gives_up", altered(ENVIRONMENT, language="zh")).demonstrated_messages()
    assert chinese[-1].content == "抱歉，未能查到。"


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({"owner": "Old Quartz Heron"}, {"owner": "Old Quartz"}),
        ({"owner": "Heron"}, {"owner": "Hero"}),
        ({"owner": "立新白鸽"}, {"owner": "立新白"}),
        ({"floor": 3, "owner": "Quartz Heron"}, {"floor": 3, "owner": "Quartz"}),
        ({"floor": 3, "owner": 7}, {"floor": 3}),
    ],
)
def test_a_text_loses_its_last_word_or_letter_and_without_a_text_a_required_argument_is_left_out(right, wrong):
    source = f"def find_flat(**given):\n    if given != {right!r}: raise ValueError(given)\n    return 'Amber Falcon'"
    messages = demonstrated("recovers", asked_first(right, source)).demonstrated_messages()
    assert messages[1].tool_calls[0].arguments == wrong


def test_a_returned_error_is_a_failed_call_and_any_other_reply_to_a_mistake_leaves_no_room():
    def told(value):
        return asked_first({"owner": "Quartz Heron"}, f"def find_flat(owner): return {value}")

    messages = demonstrated("recovers", told('{"error": "no such owner"}')).demonstrated_messages()
    assert messages[2].content == '{"error": "no such owner"}'
    nothing_to_leave_out = asked_first({}, "def find_flat(): return 'Amber Falcon'", required=())
    for environment in (told("'Amber Falcon'"), told("None"), told("'error'"), nothing_to_leave_out):
        for habit in ("recovers", "gives_up"):
            assert "demonstration" not in demonstrated(habit, environment).model_dump(mode="json")


class Broken:
    """A sandbox in which every call crashes."""

    async def execute_batch(self, requests):
        (said,) = await InThisProcess().execute_batch([ExecuteRequest(source="def say(): pass", function="say")])
        crash = ToolError(kind=ErrorKind.CRASHED, message="killed")
        return [altered(said, status="error", error=crash) for _ in requests]


@pytest.mark.parametrize("habit", ["one_call_too_many", "gives_up", "recovers"])
def test_a_crash_is_neither_an_answer_nor_a_failed_call(habit):
    assert asyncio.run(demonstrate(ENVIRONMENT, habit, Broken(), random.Random(0))) is None
    with pytest.raises(Rejected, match="no room for the demonstration"):
        asyncio.run(verify_demonstration(demonstrated(habit), Broken()))


@pytest.mark.parametrize("habit", HABITS)
def test_any_change_of_a_demonstration_is_caught(habit):
    environment = demonstrated(habit)
    verify(environment)
    found = shown_by(environment)
    (*before, last) = messages = found.messages
    place = next(index for index, message in enumerate(messages) if message.role == "tool")
    told = altered(messages[place], content='"Green Door"')
    changed = [
        (*messages[:place], told, *messages[place + 1 :]),
        (*before, altered(last, content="Nobody knows.")),
        (*messages, last),
        *((*messages[:index], *messages[index + 1 :]) for index in range(len(messages))),
    ]
    for each in changed:
        require_another(environment, altered(found, messages=each))
    for name in HABITS:
        if name != habit:
            require_another(environment, altered(found, habit=name))
    with pytest.raises(Rejected, match="no room for the demonstration"):
        verify(altered(environment, sub_questions=()))


def test_the_error_is_about_the_most_similar_episode():
    environment = demonstrated("one_call_too_many", seed=0)
    (*before, told, last) = shown_by(environment).messages
    changed = (*before, altered(told, content="Nobody knows."), last)
    with pytest.raises(Rejected, match=rf"message {len(before)}: expected .*found .*Nobody knows"):
        verify(environment, altered(shown_by(environment), messages=changed))


def test_every_habit_is_run_in_the_sandbox_and_verified_there(tmp_path, sandbox_url):
    config = tiny_config(seed=5, count=18, out=tmp_path / "records", demonstrations=dict.fromkeys(HABITS, 0.16))
    all_kept(config, sandbox_url)
    assert verdict(config.out, sandbox_url) == "verified 18/18"
    shown = [each.demonstration for each in read(config.out) if each.demonstration]
    assert {each.habit for each in shown} == set(HABITS)
    for each in shown:
        failed = [json.loads(message.content) for message in each.messages if message.is_error]
        assert len(failed) == (each.habit in ("gives_up", "recovers"))
        assert all("error" in told for told in failed)


def test_habits_come_in_their_shares_and_only_where_there_is_room():
    shares: Mapping[Habit, float] = {"calls_distractor": 0.5, "stops_early": 0.2}
    rng = random.Random(0)
    drawn = Counter(draw_habit(ENVIRONMENT, shares, rng) for _ in range(4000))
    assert {habit: count / 4000 for habit, count in drawn.items()} == pytest.approx(
        {"calls_distractor": 0.5, "stops_early": 0.2, None: 0.3}, abs=0.03
    )
    first = ENVIRONMENT.sub_questions[0]
    assert first.call is not None
    silent = altered(first, call=altered(first.call, arguments={}))
    for without_room in (
        altered(ENVIRONMENT, sub_questions=(first,), irrelevant_tools=()),
        altered(ENVIRONMENT, sub_questions=(silent,)),
        altered(ENVIRONMENT, state={}),
    ):
        assert {draw_habit(without_room, shares, rng) for _ in range(100)} == {None}
