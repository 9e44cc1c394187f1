"""The quality threshold, and a selection from a finished run under another threshold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from synthesis.records import Environment, JsonObject, RejectedEnvironment, record_id
from synthesis.stage import Rejected
from synthesis.track.run import TrackRun
from synthesis.track.selection import NEVER_WORKED_ON, Selection

REJECTED_KIND: Final = "rejected_environment"
TOO_LOW: Final = "quality below threshold"


class Percentile(BaseModel):
    """A threshold relative to all scores of a run: the percentage of them that lies below it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    percentile: float = Field(ge=0, lt=100)


def least_quality(scores: Sequence[float], threshold: float | Percentile) -> float:
    """Return the least score that is kept; equal scores are kept or rejected together.

    >>> least_quality([0.5, 0.75, 1.0], 0.9), least_quality([0.5, 0.75, 1.0], Percentile(percentile=50))
    (0.9, 0.75)
    """
    if isinstance(threshold, float):
        return threshold
    return float(np.percentile(scores, threshold.percentile)) if scores else 0.0


def selection_of(threshold: float | Percentile, run: TrackRun) -> Selection[Environment, RejectedEnvironment]:
    """Return how a run with this quality threshold selects; a percentile counts the scores of all drafts.

    Raises:
        RecordDirectoryError: one of the directories is damaged.
    """

    def selection(least: float) -> Selection[Environment, RejectedEnvironment]:
        return Selection(
            Environment,
            RejectedEnvironment,
            REJECTED_KIND,
            ("quality_threshold",),
            whole=lambda item: item.environment if item.is_whole else None,
            kept=partial(_kept, least),
            rejection=rejection,
        )

    any_quality = selection(0.0)
    if not any_quality.is_due(run):
        return any_quality
    scores = drafted_scores(item for _, item in any_quality.items(run))
    return selection(least_quality(scores, threshold))


def drafted_scores(items: Iterable[Environment | RejectedEnvironment]) -> list[float]:
    """Return the scores that a percentile counts; a stateful task is proven, and has no draft that was scored."""

    def is_stateful(item: Environment | RejectedEnvironment) -> bool:
        environment = item if isinstance(item, Environment) else item.environment
        return environment is not None and environment.state is not None

    return [item.quality.mean for item in items if item.quality is not None and not is_stateful(item)]


def too_low(quality: float, least: float, made: JsonObject | None = None) -> Rejected:
    """Return the rejection of an environment below the threshold."""
    return Rejected(TOO_LOW, f"QS {quality:.2f} < {least:.2f}", made)


def _kept(least: float, item: Environment | RejectedEnvironment, num_kept: int) -> Environment:
    """Return the environment of a slot if it reaches the threshold.

    Raises:
        Rejected: it does not, or was never made executable.
    """
    environment = item if isinstance(item, Environment) else item.environment if item.is_whole else None
    if environment is None:
        assert isinstance(item, RejectedEnvironment)
        if item.reason not in (TOO_LOW, NEVER_WORKED_ON) or item.quality is None:
            raise Rejected(item.reason, item.detail)
        if item.quality.mean < least:
            raise too_low(item.quality.mean, least)
        raise Rejected(NEVER_WORKED_ON, item.draft["instance"]["question"] if item.draft else "")
    if environment.quality.mean < least:
        raise too_low(environment.quality.mean, least)
    return environment


def rejection(
    slot: int, rejected: Rejected, item: Environment | RejectedEnvironment | None = None
) -> RejectedEnvironment:
    """Return the record of a rejected item, with its unfinished parts."""
    if isinstance(item, RejectedEnvironment):
        return item.model_copy(update={"reason": rejected.reason, "detail": rejected.detail, "digest": ""})
    made = dict(rejected.made)
    if item is not None:
        made = {"environment": item, "quality": item.quality, "is_whole": True}
    return RejectedEnvironment(
        id=record_id(REJECTED_KIND, slot, rejected.reason, rejected.detail),
        slot=slot,
        reason=rejected.reason,
        detail=rejected.detail,
        **made,
    )
