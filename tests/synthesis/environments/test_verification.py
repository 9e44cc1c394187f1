"""Every promise of a finished environment is replayed: what was broken after its proof is found."""

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
    replay_environment,
    verify_environment,
    verify_environments,
)
from synthesis.record_io import RecordDirectoryError, write_records
from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, ToolDocument
from synthesis.stage import Rejected
from tests.synthesis.environments.in_this_process import InThisProcess

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


def with_weather(source: str) -> Environment:
    document = ToolDocument(name="weather", description="Weather", parameters={"type": "object", "properties": {}})
    weather = EnvironmentTool(document=document, source=source)
    distractor = IrrelevantTool(tool=weather, band="low", similarity=0.0)
    return ENVIRONMENT.model_copy(update={"irrelevant_tools": (distractor,)})


def test_a_sound_environment_holds_all_its_promises() -> None:
    for whole in (True, False):
        check(with_weather("def weather():\n    return 'rain'\n"), whole=whole)


def test_a_tool_that_answers_strangers_fails_though_its_gold_call_replays() -> None:
    find_flat, get_rent = ENVIRONMENT.tools
    careless = get_rent.model_copy(
        update={
            "source": "def get_rent(flat: str):\n    return TABLES['rows'].get(flat, max(TABLES['rows'].values()))\n"
        }
    )
    environment = ENVIRONMENT.model_copy(update={"tools": (find_flat, careless)})
    check(environment, whole=False)
    with pytest.raises(Rejected, match="ignores its arguments"):
        check(environment)


@pytest.mark.parametrize("whole", [True, False])
def test_a_distractor_must_be_allowed_and_run(whole: bool) -> None:
    with pytest.raises(Rejected, match="import not allowed"):
        check(with_weather("import os\n\ndef weather():\n    return os.name\n"), whole=whole)
    with pytest.raises(Rejected, match="distractor does not run: weather: crashed"):
        check(with_weather("def weather():\n    return 'rain'\n"), whole=whole, sandbox=CrashingWeather())
    check(with_weather("def weather():\n    raise ValueError('no weather')\n"), whole=whole)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hops": 3}, "wrong hops"),
        ({"scenario": "single_hop"}, "wrong scenario"),
        ({"answer": 2151}, "composition gives another answer"),
        ({"sub_questions": ()}, "no sub-task"),
        ({"sub_questions": (), "expectation": "refuse", "missing": "get_rent"}, "withheld tool is there"),
    ],
)
def test_a_record_that_contradicts_itself_fails(changes: dict[str, Any], reason: str) -> None:
    for whole in (True, False):
        with pytest.raises(Rejected, match=reason):
            check(ENVIRONMENT.model_copy(update=changes), whole=whole)


def test_records_whose_bytes_are_not_those_of_their_card_are_not_verified(tmp_path: Path, sandbox_url: str) -> None:
    write_records(tmp_path / "out", [ENVIRONMENT], kind="environment")
    assert asyncio.run(verify_environments(tmp_path / "out", sandbox_url)).closing_line() == "verified 1/1"
    card = tmp_path / "out" / "dataset.json"
    document = json.loads(card.read_text())
    (name,) = document["shards"]
    document["shards"][name] = "0" * 64
    card.write_text(json.dumps(document))
    with pytest.raises(RecordDirectoryError, match=r"expected SHA-256 0{64} of .*; the shard is damaged"):
        asyncio.run(verify_environments(tmp_path / "out", sandbox_url))
