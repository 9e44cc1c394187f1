"""ACEBench's agent split, by the official code: an agent that writes its calls as text, and a user that another plays.

Every conversation is a process of its own, between two relays of its own, so that a request is known to be of a case,
and a case at which the official code ends is one that failed, not the end of the run.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astra_jax.benchmarks.acebench_files import CASES, MODEL, Category, ConversationFiles, Language, Outcome
from astra_jax.benchmarks.endpoint import ServingConfig, answering, named_model
from astra_jax.benchmarks.harness_process import AGENT_PORT, USER_PORT, last_line, relay_url, run_harness
from astra_jax.benchmarks.harnesses import ACEBENCH
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkResults,
    Failure,
    ModelDocument,
    ProgramFailed,
    RunDocument,
    Sample,
    Summary,
    begin,
    finish,
    read_results,
    require_benchmark,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.benchmarks.simulated_user import SimulatedUser
from astra_jax.config import ConfigError
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.destination import whole_file
from synthesis.run.fingerprint import flattened

_USER: Final = "gpt-4o"
"""Another name for which it takes the address from a variable, and another one."""
_CPU_SECONDS, _MEMORY_BYTES = 900, 8 * 2**30
"""Of one conversation's process: what a model writes is evaluated, and may never end. Its own needs are seconds."""


class ACEBenchConfig(BaseModel):
    """Config of `astra evaluate acebench`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Path | None = None
    """Policy folder or HuggingFace folder, for which a server is started; or name a server by `--url`."""
    out: Path
    """Folder of the results."""
    user: SimulatedUser
    """Model that plays the user."""
    language: Language = "en"
    """Language of the cases."""
    categories: tuple[Category, ...] = Field(default=tuple(CASES), min_length=1)
    """Categories to run."""
    trials: int = Field(default=4, ge=1)
    """Conversations of each case."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature of the policy; the official code asks for 0.001 and has no option that reaches the agent."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability that tokens are drawn from; without it 1, as in the official code."""
    top_k: int | None = Field(default=None, ge=-1)
    """Number of likeliest ids that a token is drawn from; without it the server's default."""
    max_tokens_floor: int | None = Field(default=None, ge=1)
    """Least limit of tokens of one answer; the official code asks for 1,000, which cuts off a model that thinks."""
    max_messages: int = Field(default=40, ge=1)
    """Messages of the longest conversation, after the first."""
    requests_at_once: int = Field(default=8, ge=1)
    """Conversations at once; each has one request under way."""
    seed: int = 0
    """Seed of the requests of every conversation, and of the bootstrap."""
    serving: ServingConfig = ServingConfig()
    """Server of the policy."""


@dataclass(frozen=True)
class _Conversation:
    """One trial of a case."""

    category: Category
    number: int
    trial: int

    @property
    def id(self) -> str:
        return f"agent_{self.category}_{self.number}"


class _Ended(BaseModel):
    """`outcome.json` of a conversation: written last."""

    model_config = ConfigDict(frozen=True)

    sample: Sample
    process: float
    is_broken_off: bool
    """By the official code, at what the model said."""


def evaluate_acebench(config: ACEBenchConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run ACEBench's agent split, or go on with a run, and return its results; one that is finished is only read.

    `limit` is how many cases are run in all, the first of each category alike.

    Raises:
        HarnessMissing: its environment is not there.
        ConfigError: `limit` does not share out over the categories.
        DestinationRefused: `out` is something else, or a run begun with something else.
        BenchmarkFailed: the harness does not begin, cannot be confined, or leaves what cannot be read.
        DecoderError: nobody answers.
    """
    environment = managed_environment(ACEBENCH)
    asked = _conversations(config, limit)
    run = _run_document(config, environment, named_model(config.policy, url), len(asked) // config.trials)
    if require_benchmark(config.out, run.made_with):
        return read_results(config.out)
    begin(config.out, run)
    started = time.monotonic()
    with answering(config.policy, url, config.serving, config.out / "raw" / "server.log") as endpoint:
        try:
            ended = asyncio.run(_run(config, environment, endpoint, asked))
        except* BenchmarkFailed as failed:
            raise _first(failed) from None
    samples, summary = _summed_up(config, ended)
    finish(config.out, run.ended(time.monotonic() - started, endpoint.most_tokens), samples, summary)
    return read_results(config.out)


def _first(failed: BaseExceptionGroup[Any]) -> BaseException:
    found: BaseException = failed
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _conversations(config: ACEBenchConfig, limit: int | None) -> list[_Conversation]:
    """Return what is run, all cases of one trial before the next."""
    numbers = {category: CASES[category] for category in config.categories}
    if limit is not None:
        of_each, rest = divmod(limit, len(numbers))
        if rest or not 0 < of_each <= min(numbers.values()):
            raise ConfigError(
                f"expected --limit to be a multiple of the {len(numbers)} categories, up to {min(numbers.values())} "
                f"cases of each, found {limit}"
            )
        numbers = dict.fromkeys(numbers, of_each)
    return [
        _Conversation(category, number, trial)
        for trial in range(config.trials)
        for category, count in numbers.items()
        for number in range(count)
    ]


def _run_document(
    config: ACEBenchConfig, environment: ManagedEnvironment, model: ModelDocument, cases: int
) -> RunDocument:
    leave_out = {"policy", "out", "requests_at_once", "serving.rows", "user.url"}
    sampling = ("temperature", "top_p", "top_k", "max_tokens_floor")
    return RunDocument(
        benchmark="acebench",
        harness=environment.document,
        model=model,
        sampling={name: getattr(config, name) for name in sampling},
        samples=cases,
        of_samples=sum(CASES.values()),
        trials=config.trials,
        seed=config.seed,
        user_simulator=config.user.model,
        made_with={
            **flattened(config.model_dump(mode="json"), leave_out=leave_out),
            **flattened({"harness": environment.document.model_dump()}),
            **flattened({"model": model.digest or model.name, "cases": cases}),
        },
    )


async def _run(
    config: ACEBenchConfig, environment: ManagedEnvironment, endpoint: Endpoint, asked: list[_Conversation]
) -> list[_Ended]:
    folders = {each: config.out.resolve() / "raw" / "conversations" / f"{each.id}.{each.trial}" for each in asked}
    waiting = iter([each for each in asked if (found := _ended(folders[each])) is None or _is_lost(found)])

    async def converse_on() -> None:
        for each in waiting:
            await _converse(config, environment, endpoint, each, folders[each])

    async with asyncio.TaskGroup() as group:
        for _ in range(config.requests_at_once):
            group.create_task(converse_on())
    ended = [found for each in asked if (found := _ended(folders[each])) is not None]
    if len(ended) < len(asked):  # the score would be that of fewer cases
        raise BenchmarkFailed(
            f"expected the outcomes of {len(asked)} conversations in {config.out}, found {len(ended)}; look at the "
            "disk, and the same command runs the others again"
        )
    return ended


def _ended(folder: Path) -> _Ended | None:
    """Return how a conversation ended; None of one that has not."""
    try:
        return _Ended.model_validate_json((folder / "outcome.json").read_bytes())
    except (OSError, ValidationError):
        return None


def _is_lost(ended: _Ended) -> bool:
    return ended.sample.failure == "transport"


async def _converse(
    config: ACEBenchConfig, environment: ManagedEnvironment, endpoint: Endpoint, which: _Conversation, folder: Path
) -> None:
    """Run one conversation and its evaluation, and write down how it ended."""
    shutil.rmtree(folder, ignore_errors=True)  # lost, or half run
    files = ConversationFiles(folder / "harness", config.language, which.category)
    files.prepare(environment.source(), which.number)
    logs = {who: folder / f"requests_of_{who}.jsonl" for who in ("agent", "user")}
    log, started = folder / "harness.log", time.monotonic()
    name = f"{config.seed}/{which.id}/{which.trial}"
    agent = Relay(
        endpoint,
        # Of its own for each trial: they would be alike.
        settings={"top_k": config.top_k, "seed": int.from_bytes(sha256(name.encode()).digest()[:4]) >> 1},
        replaced={"temperature": config.temperature, "top_p": config.top_p},
        max_tokens_floor=config.max_tokens_floor,
        tool_names=None,
        log=logs["agent"],
        empty_as="",  # at none it ends
    )
    user = Relay(
        config.user.endpoint(),
        settings={},
        replaced={"temperature": config.user.temperature},
        max_tokens_floor=config.user.max_tokens,
        tool_names=None,
        log=logs["user"],
        empty_as="",
    )
    outcome, broken_off = None, ""
    async with agent, user:
        try:
            for command, relays in _commands(config, environment, which, {AGENT_PORT: agent, USER_PORT: user}):
                await run_harness(
                    command,
                    folder=files.folder,
                    log=log,
                    variables=_variables(environment),
                    readable=[environment.folder],
                    relays=relays,
                    cpu_seconds=_CPU_SECONDS,
                    memory_bytes=_MEMORY_BYTES,
                )
        except ProgramFailed as failed:
            broken_off = last_line(log)
            if not (logs["agent"].stat().st_size or logs["user"].stat().st_size):
                raise BenchmarkFailed(f"expected ACEBench to ask for an answer, found none asked: {failed}") from None
    if not broken_off:
        try:
            outcome = files.outcome()
        except ProgramFailed as failed:
            broken_off = str(failed)
    requests = {who: whole_lines(path) for who, path in logs.items()}
    ended = _Ended(
        sample=_sample(config, which, files, outcome, broken_off[:200], requests, time.monotonic() - started),
        process=0.0 if outcome is None else outcome.process,
        is_broken_off=outcome is None,
    )
    with whole_file(folder / "outcome.json") as file:
        file.write_text(ended.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _commands(
    config: ACEBenchConfig, environment: ManagedEnvironment, which: _Conversation, relays: dict[int, Relay]
) -> list[tuple[list[str], dict[int, Relay]]]:
    """Return the two programs: the conversation, and its evaluation, which asks nobody."""
    python = str(environment.program("python"))
    generate = [python, str(environment.source() / "generate.py"), "--model", MODEL, "--user-model", _USER]
    generate += ["--category", "agent", "--language", config.language, "--max-dialog-turns", str(config.max_messages)]
    evaluate = [python, str(environment.source() / "eval_main.py"), "--model", MODEL]
    evaluate += ["--category", f"agent_{which.category}", "--language", config.language]
    return [(generate, relays), (evaluate, {})]


def _variables(environment: ManagedEnvironment) -> dict[str, str]:
    return {
        "PYTHONPATH": str(environment.stubs()),
        "OPENBLAS_NUM_THREADS": "1",  # which would take address space for each core
        "GPT_AGENT_BASE_URL": relay_url(AGENT_PORT),
        "GPT_AGENT_API_KEY": "none",
        "GPT_BASE_URL": relay_url(USER_PORT),
        "GPT_API_KEY": "none",
    }


def _sample(
    config: ACEBenchConfig,
    which: _Conversation,
    files: ConversationFiles,
    outcome: Outcome | None,
    broken_off: str,
    requests: dict[str, list[dict[str, Any]]],
    seconds: float,
) -> Sample:
    answers = [line for line in requests["agent"] if line["status"] == 200]
    said_by_user = [line for line in requests["user"] if line["status"] == 200]
    lost = [lines[-1] for lines in requests.values() if lines and lines[-1]["status"] != 200]
    cut, empty = sum(line["finish"] == "length" for line in answers), sum(line["is_empty"] for line in answers)
    is_right = outcome is not None and outcome.is_right
    causes: dict[Failure, bool] = {
        "transport": outcome is None and bool(lost),
        "cut": cut > 0,
        "empty": empty > 0,
        "user": any(line["finish"] == "length" or line["is_empty"] for line in said_by_user),
        "step_limit": files.most_messages_were_said(config.max_messages),
    }
    failure: Failure | None = None
    if not is_right:
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    detail = f"the official code ended: {broken_off}" if outcome is None else outcome.error
    if failure == "transport":
        detail = str(lost[0].get("error"))[:200]
    return Sample(
        id=which.id,
        category=which.category,
        trial=which.trial,
        score=float(is_right),
        passed=is_right,
        failure=failure,
        turns=len(said_by_user) if which.category == "multi_turn" else 1,
        steps=len(answers),
        tool_calls=0 if outcome is None else outcome.executed_messages,
        cut_answers=cut,
        empty_answers=empty,
        prompt_tokens=sum(line["prompt_tokens"] for line in answers),
        completion_tokens=sum(line["completion_tokens"] for line in answers),
        seconds=round(seconds, 3),
        detail=detail,
    )


def _summed_up(config: ACEBenchConfig, ended: list[_Ended]) -> tuple[list[Sample], Summary]:
    samples = [each.sample for each in ended]
    lost = Counter(sample.failure == "transport" for sample in samples)[True]
    counted = {"lost_conversations": lost, "broken_off": sum(each.is_broken_off for each in ended) - lost}
    process: dict[str, list[float]] = {}
    for each in ended:
        process.setdefault(each.sample.category, []).append(each.process)
    summary = sum_up(samples, requests=counted, seed=config.seed)
    means = {category: sum(shares) / len(shares) for category, shares in process.items()}
    return samples, summary.model_copy(update={"process": means})
