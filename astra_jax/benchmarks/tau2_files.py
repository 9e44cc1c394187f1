"""What τ²-bench (its line of v0.2) writes of a domain: one JSON file with every conversation and its reward."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import comb
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.benchmarks.results import BenchmarkFailed, Failure, Sample

Domain = Literal["retail", "telecom"]
TASKS_PER_DOMAIN: Final = 114
ALMOST_ONE: Final = 1 - 1e-6
"""A reward from which on a conversation counts as solved."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")

    role: str
    content: str | None = None
    tool_calls: list[Any] | None = None
    usage: dict[str, int] | None = None
    raw_data: dict[str, Any] | None = None
    """The choice, as it came; greetings and results of tools have none."""

    @property
    def is_cut(self) -> bool:
        return (self.raw_data or {}).get("finish_reason") == "length"


class _Reward(BaseModel):
    model_config = ConfigDict(extra="ignore")

    reward: float


class _Simulation(BaseModel):
    model_config = ConfigDict(extra="ignore")

    task_id: str
    trial: int
    duration: float
    termination_reason: str
    reward_info: _Reward | None = None
    messages: list[_Message]


class _Results(BaseModel):
    model_config = ConfigDict(extra="ignore")

    simulations: list[_Simulation]


def read_simulations(path: Path, domain: Domain, *, empty_as: str) -> list[Sample]:
    """Read the conversations of a domain, by task and trial; none where the file is not there yet.

    `empty_as` is what stands for an answer without a word and without a call: the harness would end the whole run.

    Raises:
        BenchmarkFailed: the file is none of the harness's, or a conversation has no reward.
    """
    if not path.is_file():
        return []
    try:
        results = _Results.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        raise BenchmarkFailed(
            f"expected the simulations of τ²-bench in {path}, found a fault at {'.'.join(map(str, first['loc']))}: "
            f"{first['msg']}; move it away and run again"
        ) from None
    samples = [_sample(each, domain, empty_as, path) for each in results.simulations]
    return sorted(samples, key=lambda sample: (sample.id, sample.trial))


def is_whole(path: Path) -> bool:
    """Say whether a file of simulations can be read: the harness rewrites it in place, and may be killed meanwhile."""
    try:
        return isinstance(json.loads(path.read_bytes()), dict)
    except (OSError, ValueError):
        return False


def pass_hat(samples: Sequence[Sample], k: int) -> float:
    """Return pass^k: the chance that k trials of a task, drawn without return, all pass; the mean over tasks.

    Raises:
        ValueError: a task has fewer trials.
    """
    trials: dict[str, list[bool]] = {}
    for sample in samples:
        trials.setdefault(sample.id, []).append(sample.passed)
    if not trials or min(map(len, trials.values())) < k:
        raise ValueError(f"expected {k} or more trials of each task")
    return sum(comb(sum(each), k) / comb(len(each), k) for each in trials.values()) / len(trials)


def _sample(run: _Simulation, domain: Domain, empty_as: str, path: Path) -> Sample:
    if run.reward_info is None:
        raise BenchmarkFailed(f"expected a reward of task {run.task_id} trial {run.trial} in {path}, found none")
    # What has no raw data was not said by the model: the greeting.
    answers = [message for message in run.messages if message.role == "assistant" and message.raw_data is not None]
    users = [message for message in run.messages if message.role == "user"]
    cut = sum(message.is_cut for message in answers)
    empty = sum(message.content == empty_as and not message.tool_calls for message in answers)
    # An empty answer would have ended the run: whatever came of its placeholder is no success.
    passed = run.reward_info.reward >= ALMOST_ONE and not empty
    causes: dict[Failure, bool] = {
        "cut": cut > 0,
        "empty": empty > 0,
        "user": any(message.is_cut or message.content == empty_as for message in users),
        "step_limit": run.termination_reason in ("max_steps", "too_many_errors"),
    }
    failure: Failure | None = None
    if not passed:
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    usages = [message.usage or {} for message in answers]
    return Sample(
        id=f"{domain}/{run.task_id}",
        category=domain,
        trial=run.trial,
        score=float(passed),
        passed=passed,
        failure=failure,
        turns=sum(bool(message.content) for message in users),
        steps=len(answers),
        tool_calls=sum(len(message.tool_calls or ()) for message in answers),
        cut_answers=cut,
        empty_answers=empty,
        prompt_tokens=sum(usage.get("prompt_tokens", 0) for usage in usages),
        completion_tokens=sum(usage.get("completion_tokens", 0) for usage in usages),
        seconds=round(run.duration, 3),
        detail="" if passed else f"{run.termination_reason}, reward {run.reward_info.reward:g}",
    )
