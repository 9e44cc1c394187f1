"""Every promise of a finished environment is replayed: damage after its proof is found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from astra_jax.testing import tiny_environment
from sandbox.client import ExecuteReply, ExecuteRequest
from sandbox.protocol import ErrorKind, ToolError
from synthesis.environments.verification import (
    ExecutableTools,
    proofs_of,
    replay_environment,
    verify_environment,
    verify_environments,
)
from synthesis.record_io import RecordDirectoryError, write_records
from synthesis.records import Composition, Environment, EnvironmentTool, IrrelevantTool
from synthesis.stage import Rejected
from tests.synthesis.altered import altered
from tests.synthesis.environments.in_this_process import InThisProcess
from tests.synthesis.environments.made import document, faults, verdict

ENVIRONMENT = tiny_environment()


class CrashingWeather(InThisProcess):
    """Runs everything but `weather`, which crashes."""

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        replies = await super().execute_batch(requests)
        crash = {"status": "error", "value": None, "error": ToolError(kind=ErrorKind.CRASHED, message="gone")}
        return [
            reply.model_copy(update=crash) if request.function == "weather" else reply
            for request, reply in zip(requests, replies, strict=True)
        ]


def check(environment: Environment, *, whole: bool = True, sandbox: InThisProcess | None = None) -> None:
    """Verify an environment whole, or replay its gold calls alone."""
    sandbox = sandbox or InThisProcess()
    work = verify_environment if whole else replay_environment
    asyncio.run(work(environment, sandbox, ExecutableTools(sandbox)))


RAIN = "def weather(city):\n    return TABLES['rows'][city]\n"


def with_weather(source: str) -> Environment:
    written = document("weather", "Weather", city="string")
    weather = EnvironmentTool(document=written, source=source, tables={"rows": {"Oslo": "rain", "Rome": "sun"}})
    distractor = IrrelevantTool(tool=weather, band="low", similarity=0.0, arguments={"city": "Oslo"})
    return altered(ENVIRONMENT, irrelevant_tools=(distractor,))


def test_a_sound_environment_holds_all_its_promises() -> None:
    for whole in (True, False):
        check(with_weather(RAIN), whole=whole)
    check(altered(ENVIRONMENT, composition=None, answer="told by a passage"))


def test_a_tool_that_answers_strangers_fails_though_its_gold_call_replays() -> None:
    find_flat, get_rent = ENVIRONMENT.tools
    careless = altered(
        get_rent, source="def get_rent(flat: str):\n    return TABLES['rows'].get(flat, max(TABLES['rows'].values()))\n"
    )
    environment = altered(ENVIRONMENT, tools=(find_flat, careless))
    check(environment, whole=False)
    with pytest.raises(Rejected, match="ignores its arguments"):
        check(environment)


@pytest.mark.parametrize("whole", [True, False])
def test_a_distractor_must_be_allowed_and_run(whole: bool) -> None:
    with pytest.raises(Rejected, match="import not allowed"):
        check(with_weather(f"import os\n\n{RAIN}"), whole=whole)
    with pytest.raises(Rejected, match="distractor does not run: weather: crashed"):
        check(with_weather(RAIN), whole=whole, sandbox=CrashingWeather())
    check(with_weather(RAIN), whole=whole)
    for source, reason in (
        ("    raise ValueError('no weather')\n", "distractor gives no answer: weather: ValueError: no weather"),
        ("    return 'rain'\n", "distractor gives one answer alone: weather: 'rain'"),
        ("    assert city in TABLES['rows']\n    return 'rain'\n", "distractor gives one answer alone"),
    ):
        dead = with_weather(f"def weather(city):\n{source}")
        if whole:
            with pytest.raises(Rejected, match=reason):
                check(dead)
        else:  # in a run, distractors are tools that were proven where they come from
            check(dead, whole=False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"irrelevant_tools": (altered(with_weather(RAIN).irrelevant_tools[0], band="high"),)},
            "wrong similarity band",
        ),
        ({"state": {}}, "state without use"),
        ({"hops": 3}, "wrong hops"),
        ({"scenario": "single_hop"}, "wrong scenario"),
        ({"answer": 2151}, "composition gives another answer"),
        ({"composition": Composition(operation="same", inputs=("q9",))}, "composition fails"),
        ({"composition": Composition(operation="times", inputs=("q2",), operand=10**4299)}, "composition fails"),
        ({"sub_questions": ()}, "no sub-task"),
        ({"sub_questions": (), "expectation": "refuse", "missing": "get_rent"}, "withheld tool is there"),
    ],
)
def test_a_record_that_contradicts_itself_fails(changes: dict[str, Any], reason: str) -> None:
    for whole in (True, False):
        with pytest.raises(Rejected, match=reason):
            check(ENVIRONMENT.model_copy(update=changes), whole=whole)


def test_an_environment_that_withholds_a_tool_has_no_gold_call_to_replay() -> None:
    withheld = {"sub_questions": (), "expectation": "refuse", "missing": "get_owner"}
    environment = with_weather(RAIN).model_copy(update=withheld)
    assert proofs_of(environment) == []
    for whole in (True, False):
        check(environment, whole=whole)
        with pytest.raises(Rejected, match="distractor does not run"):
            check(environment, whole=whole, sandbox=CrashingWeather())


def twin_of_find_flat(answers: str) -> Environment:
    """An environment beside whose `find_flat` stands a tool of the same parameter."""
    find_flat = ENVIRONMENT.tools[0]
    twin = EnvironmentTool(
        document=altered(find_flat.document, name="find_home"),
        source=f"def find_home(owner: str):\n    return TABLES['rows']{answers}\n",
        tables=find_flat.tables,
    )
    distractor = IrrelevantTool(tool=twin, band="high", similarity=0.9, arguments={"owner": "Copper Lynx"})
    return altered(ENVIRONMENT, irrelevant_tools=(distractor,))


def test_only_a_hard_environment_promises_that_no_distractor_answers() -> None:
    answers, tells_else = twin_of_find_flat("[owner]"), twin_of_find_flat("[owner][::-1]")
    check(answers)
    check(altered(tells_else, difficulty="hard"))
    hard = altered(answers, difficulty="hard")
    with pytest.raises(Rejected, match=f"distractor answers: find_home gives an answer of {ENVIRONMENT.id}"):
        check(hard)
    check(hard, whole=False)


def test_a_distractor_that_was_found_not_to_run_fails_every_environment_that_shows_it() -> None:
    sandbox = CrashingWeather()
    executable = ExecutableTools(sandbox)
    environment = with_weather(RAIN)
    for _ in range(2):
        with pytest.raises(Rejected, match="distractor does not run"):
            asyncio.run(verify_environment(environment, sandbox, executable))


def test_of_many_records_each_that_fails_is_named_with_its_reason(tmp_path: Path, sandbox_url: str) -> None:
    sound = [tiny_environment(rent=3000 + number) for number in range(35)]
    broken = {0: ({"hops": 3}, "wrong hops: expected 2, found 3"), 34: ({"sub_questions": ()}, "no sub-task")}
    written = [
        environment.model_copy(update=broken[number][0]) if number in broken else environment
        for number, environment in enumerate(sound)
    ]
    write_records(tmp_path / "out", written, kind="environment")
    report = asyncio.run(verify_environments(tmp_path / "out", sandbox_url))
    assert report.failures == [(sound[number].id, reason) for number, (_, reason) in broken.items()]
    assert (report.read, report.closing_line()) == (35, "verified 33/35")


def test_a_change_that_no_replay_shows_is_found_by_the_digest(tmp_path: Path, sandbox_url: str) -> None:
    asked = altered(ENVIRONMENT.sealed(), question=f"{ENVIRONMENT.question} Answer for the year before.")
    assert faults(tmp_path / "out", sandbox_url, asked) == ["changed after it was written"]


def test_records_whose_bytes_are_not_those_of_their_card_are_not_verified(tmp_path: Path, sandbox_url: str) -> None:
    write_records(tmp_path / "out", [ENVIRONMENT], kind="environment")
    assert verdict(tmp_path / "out", sandbox_url) == "verified 1/1"
    card = tmp_path / "out" / "dataset.json"
    said = json.loads(card.read_text())
    said["shards"] = dict.fromkeys(said["shards"], "0" * 64)
    card.write_text(json.dumps(said))
    with pytest.raises(RecordDirectoryError, match=r"expected SHA-256 0{64} of .*; the shard is damaged"):
        asyncio.run(verify_environments(tmp_path / "out", sandbox_url))
