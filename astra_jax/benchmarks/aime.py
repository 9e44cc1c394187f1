r"""AIME: problems that the user brings, sampled many times over and scored by the last `\boxed{}`.

A file of problems is JSON lines, `{"id", "problem", "answer"}`, also with capitals as some collections have them. The
figure of a year is the mean over all samples of all problems, as in the paper (mean of 32).
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import aiohttp
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from astra_jax.benchmarks.benchmark import Benchmark, BenchmarkConfig, request_seed, work_through
from astra_jax.benchmarks.relay import chat_client, send_chat
from astra_jax.benchmarks.results import Answer, BenchmarkFailed, HarnessDocument, Sample, sample_of, whole_lines
from astra_jax.config import ConfigError
from astra_jax.errors import first_fault
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.code import source_of
from synthesis.run.destination import write_whole
from synthesis.run.fingerprint import digest_of_files
from synthesis.run.places import Place

Year = Literal["2024", "2025", "2026"]
_ASK: Final = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
_BOX: Final = r"\boxed{"
_BRACE: Final = re.compile("[{}]")
_AROUND: Final = re.compile(r"\\[,;!: ]|\s|\$|\^\{?\\circ\}?|\\text\{[a-zA-Z ]*\}")
"""Text around a number that does not change it: spaces, dollars, degrees, a unit in words."""
_MOST_ANSWER: Final = 999


class AIMEConfig(BenchmarkConfig):
    """Config of `astra evaluate aime`."""

    problems: dict[Year, Place] = Field(min_length=1)
    """Year to a file of its problems; the package has none."""
    samples: int = Field(default=32, ge=1)
    """Samples of each problem."""
    top_p: float = Field(default=0.95, gt=0, le=1)
    top_k: int = Field(default=20, ge=-1)
    """Number of likeliest ids that a token is drawn from; -1 for all: the paper has both."""
    max_tokens: int = Field(default=38912, ge=1)
    """Tokens of one answer."""
    requests_at_once: int = Field(default=32, ge=1)


def _integer(value: Any) -> Any:
    """Read an answer, which files have as a number or as a text, with zeros before it or not."""
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
    """One line of `raw/answers.jsonl`: the reply to one request."""

    id: str
    trial: int
    content: str | None
    """Text of the answer; None if the request failed."""
    reasoning: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    seconds: float
    error: str = ""


class AIME(Benchmark):
    """AIME, scored by this package."""

    name = "aime"
    config_type = AIMEConfig
    config: AIMEConfig

    def choose(self, limit: int | None) -> None:
        """Choose the first `limit` problems of each year."""
        files = sorted(self.config.problems.items())
        every = {year: read_problems(path) for year, path in files}
        self.problems = {f"{year}/{each.id}": each for year, problems in every.items() for each in problems[:limit]}
        self.num_cases, self.of_cases = len(self.problems), sum(map(len, every.values()))
        self.trials, self.sources = self.config.samples, source_of(__name__)
        digests = {f"problems of {year}": digest_of_files([path]) for year, path in files}
        self.made_with = {**digests, "problems": self.num_cases, **self.sources}

    def scored_by(self) -> HarnessDocument:
        """Return the digest of this file as the version of the code that scores."""
        return HarnessDocument(package="astra-jax", version=f"{self.sources['source of astra_jax/benchmarks/aime.py']}")

    async def run(self, endpoint: Endpoint, raw: Path) -> None:
        """Ask for every sample that has no answer yet; a line is written as soon as its answer is there."""
        if self.config.max_tokens >= endpoint.most_tokens:
            raise ConfigError(
                f"expected max_tokens below the {endpoint.most_tokens} tokens that a sequence may have at "
                f"{endpoint.url}, found {self.config.max_tokens}"
            )
        answers = raw / "answers.jsonl"
        before = [line for line in map(_Answer.model_validate, whole_lines(answers)) if line.content is not None]
        # Without a half line, and requests that failed are sent again
        write_whole(answers, "".join(line.model_dump_json() + "\n" for line in before))
        done = {(line.id, line.trial) for line in before}
        asked = [(name, trial) for trial in range(self.trials) for name in self.problems]
        async with chat_client(endpoint) as client:
            with answers.open("a", encoding="utf-8") as file:

                async def ask(which: tuple[str, int]) -> None:
                    line = await self._ask(endpoint, client, *which)
                    file.write(line.model_dump_json() + "\n")
                    file.flush()

                missing = [which for which in asked if which not in done]
                await work_through(missing, ask, at_once=self.config.requests_at_once)

    def read(self, raw: Path) -> list[Sample]:
        """Score all answers, in the order of problems and trials."""
        lines = map(_Answer.model_validate, whole_lines(raw / "answers.jsonl"))
        found = {(line.id, line.trial): line for line in lines}
        return [
            _sample(found[name, trial], problem)
            for name, problem in self.problems.items()
            for trial in range(self.trials)
        ]

    async def _ask(self, endpoint: Endpoint, client: aiohttp.ClientSession, name: str, trial: int) -> _Answer:
        """Send one request, and return its answer or its fault."""
        config, started = self.config, time.monotonic()
        body = {
            "model": endpoint.model,
            "messages": [{"role": "user", "content": self.problems[name].problem + _ASK}],
            **{key: getattr(config, key) for key in self.sampling},
            # Each sample has a seed of its own: one seed would give one answer 32 times.
            "seed": request_seed(config.seed, name, trial),
        }
        try:
            status, reply = await send_chat(client, endpoint, body)
            fields = _fields(reply) if status == 200 else {"content": None, "error": f"HTTP {status}: {reply}"[:300]}
        except (aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
            fields = {"content": None, "error": f"{type(error).__name__}: {error}"[:300]}
        return _Answer(id=name, trial=trial, seconds=round(time.monotonic() - started, 3), **fields)


def read_problems(path: Path) -> list[Problem]:
    """Read a file of problems.

    Raises:
        BenchmarkFailed: it is missing or empty, a line of it is no problem, or two problems have the same id.
    """
    form = 'a JSON line {"id", "problem", "answer"}'
    try:
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BenchmarkFailed(f"{path} cannot be read: {error}; bring the problems of that year, each {form}") from None
    problems: dict[str, Problem] = {}
    for number, line in enumerate(lines, 1):
        try:
            problem = Problem.model_validate_json(line)
        except ValidationError as error:
            raise BenchmarkFailed(f"line {number} of {path} is not {form}: {first_fault(error)}") from None
        if problem.id in problems:
            raise BenchmarkFailed(f"two problems in {path} have the id {problem.id!r}; give each its own")
        problems[problem.id] = problem
    if not problems:
        raise BenchmarkFailed(f"{path} is empty; write each problem as {form}")
    return list(problems.values())


def boxed(text: str) -> str | None:
    r"""Return the text in the last closed `\boxed{}` of a text; None if there is none.

    >>> boxed(r"so \boxed{1}, no: \boxed{m+n=\frac{50}{2}}"), boxed(r"\boxed{12"), boxed("12")
    ('m+n=\\frac{50}{2}', None, None)
    """
    last: tuple[int, int] | None = None
    opened: list[int] = []  # the places just behind the braces that are not closed yet
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.end())
        elif opened and text.endswith(_BOX, 0, first := opened.pop()) and (last is None or first > last[0]):
            last = first, brace.start()
    return None if last is None else text[slice(*last)]


def answer_of(text: str) -> int | None:
    r"""Return the whole number in the last box of a text; None if it holds none from 0 to 999.

    >>> [answer_of(rf"\boxed{{{inner}}}") for inner in ("073", " $25^\\circ$ ", "m+n = 25", "1/2", "1000", "-3")]
    [73, 25, 25, None, None, None]
    """
    inner = boxed(text)
    if inner is None:
        return None
    return whole_number(_AROUND.sub("", inner).rpartition("=")[2])


def whole_number(text: str) -> int | None:
    """Read a whole number from 0 to 999, with or without zeros before it; None if it is none.

    >>> whole_number("007"), whole_number("７"), whole_number("")
    (7, None, None)
    """
    number = int(text) if re.fullmatch("[0-9]{1,9}", text) else None
    return number if number is not None and number <= _MOST_ANSWER else None


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
    """Score one answer, without the thoughts before it."""
    answers, found = [], None
    if answer.content is not None:
        is_empty, found = not answer.content.strip(), answer_of(answer.content)
        answers = [Answer(answer.finish == "length", is_empty, answer.prompt_tokens, answer.completion_tokens)]
    return sample_of(
        answers,
        passed=found == problem.answer,
        causes={"transport": not answers},
        seconds=answer.seconds,
        id=answer.id,
        category=answer.id.partition("/")[0],
        trial=answer.trial,
        turns=1,
        tool_calls=0,
        detail=answer.error or ("no whole number in a box" if found is None else ""),
    )
