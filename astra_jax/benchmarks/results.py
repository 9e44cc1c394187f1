"""The files in the folder of a run, the same for every benchmark.

run.json        benchmark, harness, model, settings
samples.jsonl   one line per sample, in the order of their ids
summary.json    the figures, each with its interval, and how many answers failed, by cause
raw/            the files of the harness, unchanged, and a line for each request
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

from pydantic import Field, ValidationError

from astra_jax.config import Frozen
from astra_jax.errors import AstraError, first_fault
from synthesis.run.destination import Result, write_whole
from synthesis.run.fingerprint import Fingerprint
from synthesis.run.manifest import earlier_manifest, write_manifest

BENCHMARK: Final = Result("run of a benchmark", "run.json", "benchmark")
BenchmarkName = Literal["bfcl", "aime", "tau2", "acebench"]
Failure = Literal["transport", "cut", "empty", "user", "step_limit", "wrong"]
"""Cause of a failed sample, the first that holds: an answer of the model was lost on its way, cut off at its longest,
or empty; a message of the simulated user was lost, cut off or empty; there were too many steps; none of these."""
FAILURES: Final[tuple[Failure, ...]] = get_args(Failure)


class BenchmarkFailed(AstraError):
    """A benchmark did not end, lost answers, or its results cannot be read; the message names reason and remedy."""


class ProgramFailed(BenchmarkFailed):
    """A program of a harness was run and did not end well; `said` is the last line that it printed, or the message."""

    def __init__(self, message: str, said: str = ""):
        super().__init__(message)
        self.said = said or message


class HarnessDocument(Frozen):
    """The code that scored."""

    package: str
    version: str
    commit: str | None = None
    """Commit of the checkout, if there is one."""
    packages_sha256: str | None = None
    """Digest of the list of all packages in its environment."""


class ModelDocument(Frozen):
    """The model that was scored."""

    name: str
    digest: str | None
    """Digest of the policy folder; None if the server does not tell it."""
    max_model_len: int | None
    """Tokens of the longest sequence; None while the run is not finished."""


class RunDocument(Frozen):
    """`run.json`."""

    kind: Literal["benchmark"] = "benchmark"
    schema_version: Literal[1] = 1
    benchmark: BenchmarkName
    harness: HarnessDocument
    model: ModelDocument
    sampling: dict[str, float | int | None]
    """Parameters that this command adds to each request; None leaves a parameter to the server."""
    samples: int
    """Cases that were asked for."""
    of_samples: int | None
    """Cases that the benchmark has."""
    trials: int
    seed: int
    user_simulator: str | None = None
    seconds: float | None = None
    """Seconds of the command that finished the run; None while it is not finished."""
    made_with: Fingerprint

    def ended(self, seconds: float, max_model_len: int) -> RunDocument:
        """Return the document of the finished run."""
        model = self.model.model_copy(update={"max_model_len": max_model_len})
        return self.model_copy(update={"seconds": round(seconds, 1), "model": model})


class Sample(Frozen):
    """One case of one trial."""

    id: str
    category: str
    trial: int = 0
    score: float = Field(ge=0, le=1)
    passed: bool
    failure: Failure | None
    """Cause of the failure; None if the sample passed."""
    turns: int
    steps: int
    """Answers of the model."""
    tool_calls: int
    cut_answers: int
    empty_answers: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    detail: str = ""
    """The harness's own words on the failure."""


class Answer(NamedTuple):
    """One answer of the model."""

    is_cut: bool
    is_empty: bool
    prompt_tokens: int
    completion_tokens: int


def sample_of(
    answers: Sequence[Answer], *, passed: bool, causes: Mapping[Failure, bool], seconds: float, **fields: Any
) -> Sample:
    """Return the sample of one case; `causes` are the causes of a failure beside cut and empty answers.

    >>> fields = {"id": "a", "category": "base", "seconds": 1, "turns": 1, "tool_calls": 0}
    >>> sample_of([Answer(True, True, 10, 5)], passed=False, causes={"transport": False}, **fields).failure
    'cut'
    """
    cut, empty = sum(answer.is_cut for answer in answers), sum(answer.is_empty for answer in answers)
    holds = {"cut": cut > 0, "empty": empty > 0, "wrong": True, **causes}
    return Sample(
        **fields,
        score=float(passed),
        passed=passed,
        failure=None if passed else next(cause for cause in FAILURES if holds.get(cause)),
        steps=len(answers),
        cut_answers=cut,
        empty_answers=empty,
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        completion_tokens=sum(answer.completion_tokens for answer in answers),
        seconds=round(seconds, 3),
    )


class Figure(Frozen):
    """A mean of scores between 0 and 1."""

    value: float
    count: int
    """Number of samples."""
    interval: tuple[float, float]
    """95 % interval."""


class Summary(Frozen):
    """`summary.json`."""

    score: Figure
    """The unweighted mean over categories."""
    by_category: dict[str, Figure]
    failures: dict[Failure, int]
    """Samples that failed, by cause."""
    answers: dict[str, int]
    """Counts: answers of the model, cut and empty ones, also in samples that passed; failed requests; renamed calls."""
    pass_hat: dict[int, float] = Field(default_factory=dict)
    """Map of k to pass^k, the chance that k trials of a task all pass; τ²-bench alone has it."""
    effort: dict[str, float]
    """Means: steps a turn, tokens a step and a turn, turns and calls a sample."""


class BenchmarkResults(Frozen):
    """A finished run, read again."""

    run: RunDocument
    samples: tuple[Sample, ...]
    summary: Summary


def finished_results(out: Path, made_with: Fingerprint) -> BenchmarkResults | None:
    """Return the results in `out`; None if there is no run yet, or one that is not finished or has lost answers.

    Raises:
        DestinationRefused: `out` is something else, or a run that was begun with something else (`MadeOtherwise`).
    """
    if earlier_manifest(out, BENCHMARK, made_with) is None or not (out / "summary.json").is_file():
        return None
    results = read_results(out)
    return None if results.summary.failures["transport"] else results


def begin(out: Path, run: RunDocument) -> None:
    """Write `run.json`, and make the folder for the files of the harness."""
    (out / "raw").mkdir(parents=True, exist_ok=True)
    write_manifest(out, BENCHMARK, run.model_dump(mode="json"))


def finish(out: Path, run: RunDocument, samples: Sequence[Sample], summary: Summary) -> None:
    """Write the results, the summary last: a folder with a summary is finished."""
    begin(out, run)
    write_whole(out / "samples.jsonl", "".join(sample.model_dump_json() + "\n" for sample in samples))
    write_whole(out / "summary.json", summary.model_dump_json(indent=2) + "\n")


def read_results(out: Path) -> BenchmarkResults:
    """Read a finished run.

    Raises:
        BenchmarkFailed: there is none, or it is damaged.
    """
    try:
        return BenchmarkResults(
            run=RunDocument.model_validate_json((out / "run.json").read_bytes()),
            samples=tuple(map(Sample.model_validate_json, (out / "samples.jsonl").read_bytes().splitlines())),
            summary=Summary.model_validate_json((out / "summary.json").read_bytes()),
        )
    except FileNotFoundError as error:
        raise BenchmarkFailed(
            f"{out} holds no finished run of a benchmark: {Path(error.filename).name} is missing; finish it first"
        ) from None
    except ValidationError as error:
        raise BenchmarkFailed(
            f"the results of the benchmark in {out} cannot be read: {first_fault(error)}; run it again elsewhere"
        ) from None


def whole_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON objects, one a line; the last line may be half written by a process that was killed.

    Raises:
        BenchmarkFailed: another line is no JSON object.
    """
    lines = path.read_bytes().splitlines() if path.is_file() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            value = json.loads(line)
        except ValueError:
            if number == len(lines):
                break
            value = None
        if not isinstance(value, dict):
            raise BenchmarkFailed(f"line {number} of {path} is not a JSON object; remove it and run again")
        found.append(value)
    return found
