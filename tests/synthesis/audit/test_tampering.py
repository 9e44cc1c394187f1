"""Fourteen ways to change a record on disk, each of which `records verify` finds, and no alarm without a change."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest

from sandbox.local import local_sandbox
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, Habit, JsonValue, Message, Trajectory
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.verification import verify_trajectories

HABITS: tuple[Habit, ...] = get_args(Habit)
AT_MOST = 2
"""Records that are changed in each way."""


def other(value: JsonValue) -> JsonValue:
    """Return another value of the same type."""
    if isinstance(value, list):
        return [other(item) for item in value]
    if isinstance(value, bool):
        return not value
    return value + 10 if isinstance(value, int | float) else f"{value} Hill"


def with_message(messages: tuple[Message, ...], place: int, **changes: Any) -> tuple[Message, ...]:
    place %= len(messages)
    return (*messages[:place], messages[place].model_copy(update=changes), *messages[place + 1 :])


# Each way returns the fields that it changes; none if a record has no place for it.


def first_band(environment: Environment) -> dict[str, Any]:
    if not environment.irrelevant_tools:
        return {}
    first, *rest = environment.irrelevant_tools
    band = "low" if first.band == "high" else "high"
    return {"irrelevant_tools": (first.model_copy(update={"band": band}), *rest)}


def demonstration(environment: Environment, change: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    shown = environment.demonstration
    return {} if shown is None else {"demonstration": shown.model_copy(update=change(shown))}


def argument(trajectory: Trajectory) -> dict[str, Any]:
    for place, message in enumerate(trajectory.messages):
        for ordinal, call in enumerate(message.tool_calls):
            if text := next((name for name, value in call.arguments.items() if isinstance(value, str)), None):
                calls = list(message.tool_calls)
                calls[ordinal] = call.model_copy(
                    update={"arguments": {**call.arguments, text: other(call.arguments[text])}}
                )
                return {"messages": with_message(trajectory.messages, place, tool_calls=tuple(calls))}
    return {}


def calls_renamed(trajectory: Trajectory) -> dict[str, Any]:
    messages = trajectory.messages
    for place, message in enumerate(messages):
        calls = tuple(call.model_copy(update={"name": f"{call.name}_x"}) for call in message.tool_calls)
        messages = with_message(messages, place, tool_calls=calls)
    return {"messages": messages} if messages != trajectory.messages else {}


def document_renamed(trajectory: Trajectory) -> dict[str, Any]:
    called = next((call.name for message in trajectory.messages for call in message.tool_calls), None)
    tools = tuple(
        tool.model_copy(update={"name": f"{tool.name}_x"}) if tool.name == called else tool for tool in trajectory.tools
    )
    return {"tools": tools} if tools != trajectory.tools else {}


def response(trajectory: Trajectory) -> dict[str, Any]:
    for place, message in reversed(list(enumerate(trajectory.messages))):
        if message.role == "tool" and not message.is_error and message.content.startswith("{"):
            field, *_ = (told := json.loads(message.content))
            content = json.dumps({**told, field: other(told[field])}, ensure_ascii=False)
            return {"messages": with_message(trajectory.messages, place, content=content)}
    return {}


def task_text(trajectory: Trajectory) -> dict[str, Any]:
    text = f"{trajectory.task.text} By tomorrow."
    task = trajectory.task.model_copy(update={"text": text})
    return {"task": task, "messages": with_message(trajectory.messages, 0, content=text)}


def scores_raised(trajectory: Trajectory) -> dict[str, Any]:
    reward = trajectory.reward
    full = reward.model_copy(update={axis: 1.0 for axis in reward.AXES if getattr(reward, axis) is not None})
    return {"reward": full} if full != reward else {}


Ways = Mapping[str, Callable[[Any], dict[str, Any]]]
ENVIRONMENTS: Ways = {
    "question": lambda each: {"question": f"{each.question} Answer for the year before."},
    "sub-question": lambda each: {
        "sub_questions": (each.sub_questions[0].model_copy(update={"question": "Who?"}), *each.sub_questions[1:])
    },
    "gold answer": lambda each: {"answer": other(each.answer)} if each.expectation == "answer" else {},
    "answer of a refusal": lambda each: {"answer": other(each.answer)} if each.expectation == "refuse" else {},
    "withheld tool": lambda each: {"missing": "get_weather"} if each.expectation == "refuse" else {},
    "band": first_band,
    "habit": lambda each: demonstration(each, lambda shown: {"habit": HABITS[HABITS.index(shown.habit) - 1]}),
    "last sentence of a demonstration": lambda each: demonstration(
        each, lambda shown: {"messages": with_message(shown.messages, -1, content="The answer is Amber Fox.")}
    ),
}
TRAJECTORIES: Ways = {
    "words of the user": task_text,
    "every call renamed": calls_renamed,
    "document of a called tool renamed": document_renamed,
    "argument": argument,
    "response": response,
    "scores raised": scores_raised,
}


def survivors(folder: Path, records: list[Any], ways: Ways, num_failing: Callable[[Path, list[Any]], int]) -> list[str]:
    """Return the ways that were not found every time; the records as they are must pass."""
    assert num_failing(folder / "whole", records) == 0
    found = []
    for name, way in ways.items():
        changed = [each.model_copy(update=changes) for each in records if (changes := way(each))][:AT_MOST]
        if not changed or num_failing(folder / "changed", changed) < len(changed):
            found.append(name)
    return found


@pytest.mark.slow
def test_each_change_of_an_environment_is_found(tmp_path: Path) -> None:
    with local_sandbox(workers=2) as url:
        assert surviving_changes(tmp_path, url) == []


def surviving_changes(folder: Path, url: str) -> list[str]:
    records: list[Environment] = []
    for name, changes in {
        "habits": {"demonstrations": dict.fromkeys(HABITS, 0.9 / len(HABITS))},
        "varieties": {"varieties": {"withheld_tool": 0.5, "missing_parameter": 0.25, "stateful": 0.25}},
    }.items():
        config = EnvironmentsConfig.model_validate({"out": folder / name, "seed": 0, "count": 10, **changes})
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), url))
        records += RecordSource(config.out, Environment)

    def num_failing(changed_folder: Path, changed: list[Any]) -> int:
        write_records(changed_folder, changed, kind="environment")
        return len({name for name, _ in asyncio.run(verify_environments(changed_folder, url)).failures})

    return survivors(folder, records, ENVIRONMENTS, num_failing)


@pytest.mark.slow
def test_each_change_of_a_trajectory_is_found(tmp_path: Path) -> None:
    config = TrajectoriesConfig(count=30, out=tmp_path / "made", max_offered_tools=8, follow_up_share=0.2)
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))

    def num_failing(folder: Path, changed: list[Any]) -> int:
        write_records(folder, changed, kind="trajectory")
        return len({name for name, _ in asyncio.run(verify_trajectories(folder, ProceduralTeacher())).failures})

    assert survivors(tmp_path, list(RecordSource(config.out, Trajectory)), TRAJECTORIES, num_failing) == []
