r"""AIME: problems that the user brings, sampled many times over and scored by the last `\boxed{}`.

A file of problems is JSON lines, `{"id", "problem", "answer"}`, also with capitals as some collections have them. The
figure of a year is the mean over all samples of all problems, as in the paper (mean of 32).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TextIO

import aiohttp
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from astra_jax.benchmarks.aime_answer import answer_of, whole_number
from astra_jax.benchmarks.endpoint import ServingConfig, answering, named_model
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkResults,
    Failure,
    HarnessDocument,
    ModelDocument,
    RunDocument,
    Sample,
    begin,
    finish,
    read_results,
    require_benchmark,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.config import ConfigError
from astra_jax.evaluate.endpoint import Endpoint, key_or_none
from synthesis.run.code import source_of
from synthesis.run.destination import whole_file
from synthesis.run.fingerprint import Fingerprint, digest_of_files, flattened

Year = Literal["2024", "2025", "2026"]
_ASK: Final = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
_ATTEMPTS: Final = 4


class AIMEConfig(BaseModel):
    """Config of `astra evaluate aime`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Path | None = None
    """Policy folder or HuggingFace folder, for which a server is started; or name a server by `--url`."""
    out: Path
    """Folder of the results."""
    problems: dict[Year, Path] = Field(min_length=1)
    """File of the problems of each year; the package has none."""
    samples: int = Field(default=32, ge=1)
    """Answers to each problem."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature of the policy."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    """Share of probability that tokens are drawn from."""
    top_k: int = Field(default=20, ge=-1)
    """Number of likeliest ids that a token is drawn from; -1 for all: the paper has both."""
    max_tokens: int = Field(default=38912, ge=1)
    """Tokens of the longest answer."""
    requests_at_once: int = Field(default=32, ge=1)
    """Requests under way at once."""
    seed: int = 0
    """Seed of every request, and of the bootstrap."""
    serving: ServingConfig = ServingConfig()
    """Server of the policy."""


def _integer(value: Any) -> Any:
    """AIME's answers are written as numbers and as texts, with zeros before them."""
    text = str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""
    if (number := whole_number(text)) is None:
        raise ValueError("expected a whole number from 0 to 999")
    return number


class Problem(BaseModel):
    """One line of a file of problems."""

    model_config = ConfigDict(extra="ignore", coerce_numbers_to_str=True)

    id: str = Field(validation_alias=AliasChoices("id", "ID"), min_length=1)
    problem: str = Field(validation_alias=AliasChoices("problem", "Problem", "question"), min_length=1)
    answer: Annotated[int, BeforeValidator(_integer)] = Field(validation_alias=AliasChoices("answer", "Answer"))


class _Answer(BaseModel):
    """One line of `raw/answers.jsonl`: what one request gave."""

    id: str
    trial: int
    content: str | None
    """None of a request that failed."""
    reasoning: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float
    error: str = ""


def evaluate_aime(config: AIMEConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Sample and score AIME, or go on with a run, and return its results; one that is finished is only read.

    `limit` is how many problems are asked of each year, the first ones.

    Raises:
        ConfigError: no model is named, or two are.
        DestinationRefused: `out` is something else, or a run begun with something else.
        BenchmarkFailed: a file of problems is missing or damaged.
        DecoderError: nobody answers.
    """
    every = {year: read_problems(path) for year, path in sorted(config.problems.items())}
    problems = {f"{year}/{each.id}": each for year, year_s in every.items() for each in year_s[:limit]}
    sources, there_are = source_of(__name__), sum(map(len, every.values()))
    harness = HarnessDocument(package="astra-jax", version=str(sources["source of astra_jax/benchmarks/aime.py"]))
    run = run_document(config, harness, sources, named_model(config.policy, url), len(problems), there_are)
    if require_benchmark(config.out, run.made_with):
        return read_results(config.out)
    begin(config.out, run)
    answers, started = config.out / "raw" / "answers.jsonl", time.monotonic()
    with answering(config.policy, url, config.serving, config.out / "raw" / "server.log") as endpoint:
        asyncio.run(_ask_all(config, endpoint, problems, answers))
    found = {(line.id, line.trial): line for line in map(_Answer.model_validate, whole_lines(answers))}
    samples = [
        _sample(found[name, trial], problem) for name, problem in problems.items() for trial in range(config.samples)
    ]
    failed = {"failed_requests": sum(answer.content is None for answer in found.values())}
    summary = sum_up(samples, requests=failed, seed=config.seed)
    finish(config.out, run.ended(time.monotonic() - started, endpoint.most_tokens), samples, summary)
    return read_results(config.out)


def read_problems(path: Path) -> list[Problem]:
    """Read a file of problems.

    Raises:
        BenchmarkFailed: it is missing or empty, or a line of it is no problem, or two have one id.
    """
    expected = 'expected JSON lines {"id", "problem", "answer"}'
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkFailed(f"{expected} in {path}, found: {error}; bring the problems of that year") from None
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, 1):
        try:
            problem = Problem.model_validate_json(line)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise BenchmarkFailed(f"{expected} in {path}, found in line {number}: {where} {first['msg']}") from None
        if problem.id in problems:
            raise BenchmarkFailed(f"expected another id for each problem in {path}, found {problem.id!r} twice")
        problems[problem.id] = problem
    if not problems:
        raise BenchmarkFailed(f"{expected} in {path}, found none")
    return list(problems.values())


def run_document(
    config: AIMEConfig, harness: HarnessDocument, made_by: Fingerprint, model: ModelDocument, asked: int, there_are: int
) -> RunDocument:
    """Return what a run by a harness is begun with; `made_by` tells its code from other code."""
    return RunDocument(
        benchmark="aime",
        harness=harness,
        model=model,
        sampling={name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")},
        samples=asked,
        of_samples=there_are,
        trials=config.samples,
        seed=config.seed,
        made_with={
            **flattened(
                config.model_dump(mode="json"),
                leave_out={"policy", "out", "problems", "requests_at_once", "serving.rows"},
            ),
            **{f"problems of {year}": digest_of_files([path]) for year, path in sorted(config.problems.items())},
            **flattened({"model": model.digest or model.name, "problems": asked}),
            **made_by,
        },
    )


async def _ask_all(config: AIMEConfig, endpoint: Endpoint, problems: Mapping[str, Problem], answers: Path) -> None:
    """Ask for every sample that has no answer yet; a line is written when its answer is there."""
    if config.max_tokens >= endpoint.most_tokens:
        raise ConfigError(
            f"expected max_tokens below the {endpoint.most_tokens} tokens that a sequence may have at {endpoint.url}, "
            f"found {config.max_tokens}"
        )
    before = [line for line in map(_Answer.model_validate, whole_lines(answers)) if line.content is not None]
    with whole_file(answers) as partial:  # without a half line, and what failed is asked again
        partial.write_text("".join(line.model_dump_json() + "\n" for line in before), encoding="utf-8")
    done = {(line.id, line.trial) for line in before}
    missing = [(name, trial) for trial in range(config.samples) for name in problems if (name, trial) not in done]
    key = key_or_none(endpoint.key_variable)
    async with aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        connector=aiohttp.TCPConnector(limit=config.requests_at_once),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),  # an answer may take an hour
        trust_env=False,
    ) as client:
        waiting = iter(missing)
        with answers.open("a", encoding="utf-8") as file:

            async def ask_on() -> None:
                for name, trial in waiting:
                    await _ask_one(config, endpoint, client, name, problems[name], trial, file)

            async with asyncio.TaskGroup() as group:
                for _ in range(config.requests_at_once):
                    group.create_task(ask_on())


async def _ask_one(
    config: AIMEConfig,
    endpoint: Endpoint,
    client: aiohttp.ClientSession,
    name: str,
    problem: Problem,
    trial: int,
    file: TextIO,
) -> None:
    body = {
        "model": endpoint.model,
        "messages": [{"role": "user", "content": problem.problem + _ASK}],
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k,
        "max_tokens": config.max_tokens,
        # Of its own for each sample: one seed would give one answer 32 times.
        "seed": int.from_bytes(sha256(f"{config.seed}/{name}/{trial}".encode()).digest()[:4]) >> 1,
    }
    started = time.monotonic()
    fields: dict[str, Any] = {}
    for attempt in range(_ATTEMPTS):
        try:
            async with client.post(f"{endpoint.url}/v1/chat/completions", json=body) as response:
                document = await response.json(content_type=None)
                if response.status != 200:
                    fields = {"content": None, "error": f"HTTP {response.status}: {document}"[:300]}
                    if response.status in (408, 429) or response.status >= 500:
                        raise ConnectionError(fields["error"])
                    break
                fields = _fields(document)
                break
        except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
            fields = {"content": None, "error": f"{type(error).__name__}: {error}"[:300]}
            if attempt < _ATTEMPTS - 1:
                await asyncio.sleep(2.0**attempt)
    line = _Answer(id=name, trial=trial, seconds=round(time.monotonic() - started, 3), **fields)
    file.write(line.model_dump_json() + "\n")
    file.flush()


def _fields(document: Any) -> dict[str, Any]:
    choice, usage = document["choices"][0], document["usage"]
    return {
        "content": choice["message"]["content"] or "",
        "reasoning": choice["message"].get("reasoning_content") or "",
        "finish": choice["finish_reason"],
        "prompt_tokens": usage["prompt_tokens"],
        "completion_tokens": usage["completion_tokens"],
    }


def _sample(answer: _Answer, problem: Problem) -> Sample:
    """Score one answer: what it says after its thoughts is read, never these."""
    is_cut, is_empty = answer.finish == "length", answer.content is not None and not answer.content.strip()
    found = None if answer.content is None else answer_of(answer.content)
    is_right = found == problem.answer
    causes: dict[Failure, bool] = {"transport": answer.content is None, "cut": is_cut, "empty": is_empty}
    failure: Failure | None = None
    if not is_right:
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    return Sample(
        id=answer.id,
        category=answer.id.partition("/")[0],
        trial=answer.trial,
        score=float(is_right),
        passed=is_right,
        failure=failure,
        turns=1,
        steps=int(answer.content is not None),
        tool_calls=0,
        cut_answers=int(is_cut),
        empty_answers=int(is_empty),
        prompt_tokens=answer.prompt_tokens,
        completion_tokens=answer.completion_tokens,
        seconds=answer.seconds,
        detail=answer.error or ("no whole number in a box" if found is None else ""),
    )
