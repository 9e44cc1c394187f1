"""What BFCL reads and writes of multi-turn cases: their ids, its results, its scores, the tools that they have."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.benchmarks.results import BenchmarkFailed, Failure, Sample, whole_lines
from synthesis.run.destination import whole_file

Category = Literal["base", "miss_func", "miss_param", "long_context"]
CATEGORIES: Final[tuple[Category, ...]] = ("base", "miss_func", "miss_param", "long_context")
CASES_PER_CATEGORY: Final = 200
_MOST_STEPS: Final = 20
"""In a turn; a case with one more is failed as a whole."""
_LOST: Final = "Error during inference"
"""What stands in the place of the answers of a case one of whose requests failed."""


class _Result(BaseModel):
    """One line of a file of results: by turn and step."""

    model_config = ConfigDict(extra="ignore")

    id: str
    result: str | list[list[Any]]
    """Of a step: a list of calls, or what was said."""
    input_token_count: list[list[int]] = []
    output_token_count: list[list[int]] = []
    latency: list[list[float]] = []

    @property
    def is_lost(self) -> bool:
        return isinstance(self.result, str)


def case_ids(category: Category, number: int) -> list[str]:
    """Return the ids of a category's first cases.

    >>> case_ids("miss_func", 2)
    ['multi_turn_miss_func_0', 'multi_turn_miss_func_1']
    """
    return [f"multi_turn_{category}_{case}" for case in range(number)]


def category_of(case_id: str) -> str:
    """Return the category of a case.

    >>> category_of("multi_turn_long_context_17")
    'long_context'
    """
    return case_id.removeprefix("multi_turn_").rpartition("_")[0]


def tool_names(packages: Path) -> frozenset[str]:
    """Read the names of all tools that multi-turn cases have, from the package in its environment.

    Raises:
        BenchmarkFailed: there are none.
    """
    files = sorted((packages / "bfcl_eval" / "data" / "multi_turn_func_doc").glob("*.json"))
    names = frozenset(str(document["name"]) for path in files for document in whole_lines(path))
    if not names:
        raise BenchmarkFailed(
            f"expected BFCL's tool documents below {packages}, found none; delete its environment and set it up again"
        )
    return names


def drop_lost_results(results: Path) -> int:
    """Take the cases out of BFCL's results that it shall run again: half written lines, lost answers; return how many.

    It passes over every case that has a line.
    """
    dropped = 0
    for path in sorted(results.rglob("*_result.json")):
        before = path.read_bytes().splitlines()
        kept = [line for line in whole_lines(path) if not _is_lost(line)]
        if len(kept) != len(before):
            dropped += len(before) - len(kept)
            with whole_file(path) as file:
                file.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
    return dropped


def read_samples(results: Path, scores: Path, cut: Mapping[tuple[int, int], int], asked: Iterable[str]) -> list[Sample]:
    """Read what BFCL's generation and evaluation have left of the cases that were asked for, in their order.

    `cut` counts the answers that were cut off at their longest, by their tokens of prompt and answer: BFCL's files do
    not say so, and whether an answer was cut is decided by the two.

    Raises:
        BenchmarkFailed: a case is missing or has no verdict, or a file is none of BFCL's.
    """
    found: dict[str, _Result] = {}
    for path in sorted(results.rglob("*_result.json")):
        for number, line in enumerate(whole_lines(path), 1):
            try:
                result = _Result.model_validate(line)
            except ValidationError as error:
                raise BenchmarkFailed(
                    f"expected a result of BFCL in line {number} of {path}, found a fault: {error.errors()[0]['msg']}"
                ) from None
            found[result.id] = result
    wrong = _read_scores(scores, Counter(category_of(case) for case in found))
    samples = []
    for case in asked:
        if case not in found:
            raise BenchmarkFailed(f"expected a result of {case} in {results}, found none; the same command goes on")
        samples.append(_sample(found[case], wrong.get(case), cut))
    return samples


def _read_scores(scores: Path, counts: Mapping[str, int]) -> dict[str, str]:
    """Return why each failed case failed; the header of each file must count what was run."""
    wrong: dict[str, str] = {}
    for category, count in counts.items():
        paths = sorted(scores.rglob(f"*_multi_turn_{category}_score.json"))
        if len(paths) != 1:
            raise BenchmarkFailed(f"expected one file of scores of {category} below {scores}, found {len(paths)}")
        header, *failed = whole_lines(paths[0]) or [{}]
        if (header.get("total_count"), header.get("correct_count")) != (count, count - len(failed)):
            raise BenchmarkFailed(
                f"expected verdicts on {count} cases, {len(failed)} of them wrong, in {paths[0]}, found "
                f"{header.get('correct_count')} right of {header.get('total_count')}; the same command scores again"
            )
        wrong |= {str(line["id"]): _reason(line) for line in failed}
    return wrong


def _reason(line: Mapping[str, Any]) -> str:
    error = line.get("error")
    found = error.get("error_type", error) if isinstance(error, dict) else error
    return str(found)[:200]


def _sample(result: _Result, wrong: str | None, cut: Mapping[tuple[int, int], int]) -> Sample:
    turns: Sequence[Sequence[Any]] = [] if isinstance(result.result, str) else result.result
    prompt, completion = list(chain(*result.input_token_count)), list(chain(*result.output_token_count))
    num_cut = sum((before, said) in cut for before, said in zip(prompt, completion, strict=True))
    num_empty = sum(_is_empty(step) for turn in turns for step in turn)
    failure: Failure | None = None
    if wrong is not None:
        causes: dict[Failure, bool] = {
            "transport": result.is_lost,
            "cut": num_cut > 0,
            "empty": num_empty > 0,
            "step_limit": any(len(turn) > _MOST_STEPS for turn in turns),
        }
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    elif result.is_lost:
        raise BenchmarkFailed(f"expected BFCL to fail {result.id}, whose answers were lost, found that it passed")
    return Sample(
        id=result.id,
        category=category_of(result.id),
        score=float(wrong is None),
        passed=wrong is None,
        failure=failure,
        turns=len(turns),
        steps=sum(map(len, turns)),
        tool_calls=sum(len(step) for turn in turns for step in turn if isinstance(step, list)),
        cut_answers=num_cut,
        empty_answers=num_empty,
        prompt_tokens=sum(prompt),
        completion_tokens=sum(completion),
        seconds=round(sum(chain(*result.latency)), 3),
        detail=(result.result[:200] if isinstance(result.result, str) else wrong) or "",
    )


def _is_empty(step: Any) -> bool:
    """Say whether an answer has neither a call nor a word."""
    return not (step.strip() if isinstance(step, str) else step)


def _is_lost(line: Mapping[str, Any]) -> bool:
    return isinstance(line.get("result"), str) and line["result"].startswith(_LOST)
