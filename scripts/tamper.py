"""Whether `astra records verify` finds a record that somebody has changed: fourteen ways, on both kinds of record.

    python scripts/tamper.py [--environments 24] [--trajectories 60] [--seed 0] [--at-most 4]

Records are made offline by the embedded teacher. Each way is tried on at most so many of them: what comes of it is
written as a new directory, whose shards have the bytes that their card says, and verified. `caught` counts the changed
records that fail; `resealed` those that fail though whoever changed them has also computed their digest anew, which
leaves what a replay or a rule finds. One line per way, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, get_args

from sandbox.local import local_sandbox
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.verification import verify_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, Habit, JsonValue, Message, Trajectory
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.verification import verify_trajectories

HABITS: tuple[Habit, ...] = get_args(Habit)


class Tampering(NamedTuple):
    """A way to change a record; the function returns None where a record has no place for it."""

    kind: str
    name: str
    change: Callable[[Any], Any]


class Caught(NamedTuple):
    """How many records that were changed in one way fail."""

    kind: str
    name: str
    changed: int
    caught: int
    resealed: int


def other(value: JsonValue) -> JsonValue:
    """Return another value of the same type.

    >>> other(7), other("Oak"), other([True])
    (17, 'Oak Hill', [False])
    """
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 10
        case list():
            return [other(item) for item in value]
    return f"{value} Hill"


# --- environments ---------------------------------------------------------------------------------------------------


def question_text(environment: Environment) -> Environment:
    """Ask for something else."""
    return environment.model_copy(update={"question": f"{environment.question} Answer for the year before."})


def sub_question_text(environment: Environment) -> Environment:
    """Let a sub-question ask for something else."""
    first, *rest = environment.sub_questions
    return environment.model_copy(update={"sub_questions": (first.model_copy(update={"question": "Who?"}), *rest)})


def gold_answer(environment: Environment) -> Environment | None:
    """Write another answer down."""
    return _answered(environment) if environment.expectation == "answer" else None


def refusal_gold(environment: Environment) -> Environment | None:
    """Write another answer down where a refusal is expected, which no tool can tell."""
    return _answered(environment) if environment.expectation == "refuse" else None


def _answered(environment: Environment) -> Environment:
    return environment.model_copy(update={"answer": other(environment.answer)})


def missing_name(environment: Environment) -> Environment | None:
    """Name another tool as the one that was withheld."""
    return environment.model_copy(update={"missing": "get_weather"}) if environment.expectation == "refuse" else None


def band_label(environment: Environment) -> Environment | None:
    """Put a distractor into another band."""
    if not environment.irrelevant_tools:
        return None
    first, *rest = environment.irrelevant_tools
    band = "low" if first.band == "high" else "high"
    return environment.model_copy(update={"irrelevant_tools": (first.model_copy(update={"band": band}), *rest)})


def habit_label(environment: Environment) -> Environment | None:
    """Give a demonstration's habit another name."""
    if (shown := environment.demonstration) is None:
        return None
    habit = HABITS[HABITS.index(shown.habit) - 1]
    return environment.model_copy(update={"demonstration": shown.model_copy(update={"habit": habit})})


def last_sentence(environment: Environment) -> Environment | None:
    """Let a demonstration end in other words."""
    if (shown := environment.demonstration) is None:
        return None
    ended = _with_message(shown.messages, len(shown.messages) - 1, content="The answer is Amber Fox.")
    return environment.model_copy(update={"demonstration": shown.model_copy(update={"messages": ended})})


# --- trajectories ---------------------------------------------------------------------------------------------------


def _with_message(messages: Sequence[Message], place: int, **changes: Any) -> tuple[Message, ...]:
    return (*messages[:place], messages[place].model_copy(update=changes), *messages[place + 1 :])


def task_text(trajectory: Trajectory) -> Trajectory:
    """Let the user ask for something else, in the task and in the conversation."""
    text = f"{trajectory.task.text} By tomorrow."
    messages = _with_message(trajectory.messages, 0, content=text)
    return trajectory.model_copy(
        update={"task": trajectory.task.model_copy(update={"text": text}), "messages": messages}
    )


def calls_renamed(trajectory: Trajectory) -> Trajectory | None:
    """Give every call another name."""
    messages = tuple(
        message.model_copy(
            update={
                "tool_calls": tuple(call.model_copy(update={"name": f"{call.name}_x"}) for call in message.tool_calls)
            }
        )
        for message in trajectory.messages
    )
    return trajectory.model_copy(update={"messages": messages}) if messages != trajectory.messages else None


def document_renamed(trajectory: Trajectory) -> Trajectory | None:
    """Give the document of the first tool that is called another name."""
    called = next((call.name for message in trajectory.messages for call in message.tool_calls), None)
    tools = tuple(
        tool.model_copy(update={"name": f"{tool.name}_x"}) if tool.name == called else tool for tool in trajectory.tools
    )
    return trajectory.model_copy(update={"tools": tools}) if tools != trajectory.tools else None


def argument_changed(trajectory: Trajectory) -> Trajectory | None:
    """Change the first text that a call passes."""
    for place, message in enumerate(trajectory.messages):
        for ordinal, call in enumerate(message.tool_calls):
            for name, value in call.arguments.items():
                if isinstance(value, str):
                    calls = list(message.tool_calls)
                    calls[ordinal] = call.model_copy(update={"arguments": {**call.arguments, name: other(value)}})
                    messages = _with_message(trajectory.messages, place, tool_calls=tuple(calls))
                    return trajectory.model_copy(update={"messages": messages})
    return None


def response_changed(trajectory: Trajectory) -> Trajectory | None:
    """Change the last response that is a JSON object, by one field."""
    for place, message in reversed(list(enumerate(trajectory.messages))):
        if message.role == "tool" and not message.is_error and message.content.startswith("{"):
            field, *_ = (told := json.loads(message.content))
            content = json.dumps({**told, field: other(told[field])}, ensure_ascii=False)
            return trajectory.model_copy(
                update={"messages": _with_message(trajectory.messages, place, content=content)}
            )
    return None


def score_raised(trajectory: Trajectory) -> Trajectory | None:
    """Give every axis the full mark."""
    reward = trajectory.reward
    full = reward.model_copy(update={axis: 1.0 for axis in reward.AXES if getattr(reward, axis) is not None})
    return trajectory.model_copy(update={"reward": full}) if full != reward else None


TAMPERINGS = (
    Tampering("environment", "question text", question_text),
    Tampering("environment", "a sub-question's text", sub_question_text),
    Tampering("environment", "gold answer", gold_answer),
    Tampering("environment", "refusal gold", refusal_gold),
    Tampering("environment", "missing-tool name", missing_name),
    Tampering("environment", "band label", band_label),
    Tampering("environment", "habit label", habit_label),
    Tampering("environment", "a demonstration's last sentence", last_sentence),
    Tampering("trajectory", "the user's words", task_text),
    Tampering("trajectory", "every call renamed", calls_renamed),
    Tampering("trajectory", "a called tool's document renamed", document_renamed),
    Tampering("trajectory", "an argument", argument_changed),
    Tampering("trajectory", "a response", response_changed),
    Tampering("trajectory", "scores raised", score_raised),
)


def made_environments(folder: Path, count: int, seed: int, url: str) -> list[Environment]:
    """Synthesise environments: with habits, and such as must refuse or ask back."""
    found: list[Environment] = []
    for name, changes in {
        "habits": {"demonstrations": dict.fromkeys(HABITS, 0.9 / len(HABITS))},
        "varieties": {"varieties": {"withheld_tool": 0.5, "missing_parameter": 0.25, "stateful": 0.25}},
    }.items():
        config = EnvironmentsConfig.model_validate(
            {"out": folder / name, "seed": seed, "count": max(4, count // 2), **changes}
        )
        asyncio.run(synthesize_environments(config, ProceduralTeacher(), url))
        found += RecordSource(config.out, Environment)
    return found


def made_trajectories(folder: Path, count: int, seed: int) -> list[Trajectory]:
    """Synthesise trajectories over the shipped tool documents."""
    config = TrajectoriesConfig(seed=seed, count=count, out=folder / "made", max_offered_tools=8, follow_up_share=0.2)
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
    return list(RecordSource(config.out, Trajectory))


def num_failing(folder: Path, kind: str, records: Sequence[Any], url: str) -> int:
    """Write records as a directory, verify it, and return how many fail."""
    write_records(folder, records, kind=kind)
    if kind == "environment":
        verified = asyncio.run(verify_environments(folder, url))
    else:
        verified = asyncio.run(verify_trajectories(folder, ProceduralTeacher()))
    return len({name for name, _ in verified.failures})


def caught(folder: Path, tampering: Tampering, records: Sequence[Any], at_most: int, url: str) -> Caught:
    """Change the first records that have a place for it, and count how many of them fail."""
    changed = [change for record in records if (change := tampering.change(record)) is not None][:at_most]
    resealed = [record.model_copy(update={"digest": ""}) for record in changed]
    return Caught(
        tampering.kind,
        tampering.name,
        len(changed),
        num_failing(folder / "tampered", tampering.kind, changed, url),
        num_failing(folder / "tampered", tampering.kind, resealed, url),
    )


def all_caught(folder: Path, num_environments: int, num_trajectories: int, seed: int, at_most: int) -> list[Caught]:
    """Make the records and try every way on them, and none."""
    with local_sandbox(workers=2) as url:
        records: dict[str, list[Any]] = {
            "environment": made_environments(folder, num_environments, seed, url),
            "trajectory": made_trajectories(folder, num_trajectories, seed),
        }
        found = []
        for kind, made in records.items():
            (folder / kind).mkdir()
            untouched = Tampering(kind, "none: the record as it was made", lambda record: record)
            found.append(caught(folder / kind, untouched, made, len(made), url))
            found += [caught(folder / kind, each, made, at_most, url) for each in TAMPERINGS if each.kind == kind]
    return found


def table(found: Sequence[Caught]) -> str:
    """Return the counts as lines of text.

    >>> print(table([Caught("environment", "gold answer", 4, 4, 3)]))
    record       what is changed                        changed  caught  resealed
    environment  gold answer                                  4       4         3
    """
    lines = [f"{'record':13}{'what is changed':36}{'changed':>10}{'caught':>8}{'resealed':>10}"]
    lines += [f"{each.kind:13}{each.name:36}{each.changed:>10}{each.caught:>8}{each.resealed:>10}" for each in found]
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=24)
    parser.add_argument("--trajectories", type=int, default=60)
    parser.add_argument("--at-most", type=int, default=4, help="records that are changed in each way")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    with TemporaryDirectory() as folder:
        found = all_caught(Path(folder), options.environments, options.trajectories, options.seed, options.at_most)
    print(table(found))
    tampered = [each for each in found if not each.name.startswith("none")]
    ways = sum(0 < each.changed == each.caught for each in tampered)
    false_alarms = sum(each.caught for each in found if each.name.startswith("none"))
    print(f"{ways} of {len(tampered)} ways caught every time; {false_alarms} false alarms")
    rows = [each._asdict() for each in found]
    print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - started, 1), "tampering": rows}))
    return 0 if ways == len(tampered) and not false_alarms else 1


if __name__ == "__main__":
    sys.exit(main())
