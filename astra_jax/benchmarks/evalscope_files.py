"""What evalscope writes of a benchmark: one JSON line a case, with its score and what was said.

reviews/MODEL/DATASET_SUBSET.jsonl     {"index", "messages", "sample_score": {"score", "group_id", …}}
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from astra_jax.benchmarks.results import BenchmarkFailed, Failure, Sample, whole_lines

_RIGHT: Final = 0.5
"""A score above it is a success: both benchmarks have 0 and 1 alone."""


class _Read(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Score(_Read):
    value: dict[str, float]
    status: str = "success"
    extracted_prediction: str | None = None
    explanation: str | None = None
    metadata: dict[str, Any] | None = None


class _SampleScore(_Read):
    score: _Score
    group_id: int
    """Number of the case in the order of its data."""
    generation_index: int = 0
    sample_metadata: dict[str, Any] | None = None


class _Spent(_Read):
    latency: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


class _Message(_Read):
    role: str
    content: Any = None
    tool_calls: list[Any] | None = None
    perf_metrics: _Spent | None = None

    @property
    def is_empty(self) -> bool:
        return not self.tool_calls and not str(self.content or "").strip()


class Review(_Read):
    """One line."""

    messages: list[_Message] = Field(default=[])
    sample_score: _SampleScore

    @property
    def is_lost(self) -> bool:
        """Whether an error stands in the place of what was said."""
        try:
            said = json.loads(self.sample_score.score.extracted_prediction or "")
        except ValueError:
            said = None
        return (isinstance(said, dict) and "error" in said) or self.sample_score.score.status != "success"


def read_reviews(work: Path, dataset: str, subset: str) -> list[Review]:
    """Read what evalscope has written of a subset, in no order.

    Raises:
        BenchmarkFailed: the file is missing, or a line is none of evalscope's.
    """
    paths = sorted(work.glob(f"reviews/*/{dataset}_{subset}.jsonl"))
    if len(paths) != 1:
        raise BenchmarkFailed(
            f"expected one file reviews/*/{dataset}_{subset}.jsonl of evalscope in {work}, found {len(paths)}; "
            "the same command runs it again"
        )
    reviews = []
    for number, line in enumerate(whole_lines(paths[0]), 1):
        try:
            reviews.append(Review.model_validate(line))
        except ValidationError as error:
            first = error.errors()[0]
            raise BenchmarkFailed(
                f"expected a review of evalscope in line {number} of {paths[0]}, found a fault at "
                f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            ) from None
    return reviews


def sample_of(
    review: Review, *, id_: str, category: str, turns: Literal["users", "one"], cut: Collection[tuple[int, int]]
) -> Sample:
    """Return a review in the form of every benchmark; `cut` has the tokens of prompt and answer of those cut off.

    Raises:
        BenchmarkFailed: it has no score that is 0 or 1.
    """
    score = review.sample_score.score
    value = score.value.get("acc")
    if value not in (0, 1):
        raise BenchmarkFailed(f"expected a score acc of 0 or 1 of {id_} by evalscope, found {score.value}")
    passed = value > _RIGHT
    answers = [message for message in review.messages if message.role == "assistant"]
    spent = [message.perf_metrics or _Spent() for message in answers]
    num_cut = sum((each.input_tokens, each.output_tokens) in cut for each in spent)
    num_empty = sum(message.is_empty for message in answers)
    causes: dict[Failure, bool] = {"transport": review.is_lost, "cut": num_cut > 0, "empty": num_empty > 0}
    failure: Failure | None = None
    if not passed:
        failure = next((cause for cause, holds in causes.items() if holds), "wrong")
    return Sample(
        id=id_,
        category=category,
        trial=review.sample_score.generation_index,
        score=float(passed),
        passed=passed,
        failure=failure,
        turns=sum(message.role == "user" for message in review.messages) if turns == "users" else 1,
        steps=len(answers),
        tool_calls=sum(len(message.tool_calls or ()) for message in answers),
        cut_answers=num_cut,
        empty_answers=num_empty,
        prompt_tokens=sum(each.input_tokens for each in spent),
        completion_tokens=sum(each.output_tokens for each in spent),
        seconds=round(sum(each.latency for each in spent), 3),
        detail="" if passed else _reason(score),
    )


def _reason(score: _Score) -> str:
    about = score.metadata or {}
    return str(score.explanation or about.get("error") or about.get("math_reason") or "")[:200]
