"""The quality threshold, and a selection from a finished run under another threshold."""

from __future__ import annotations

from functools import partial
from typing import Final

from synthesis.records import Environment, JsonObject, RejectedEnvironment, record_id
from synthesis.stage import Rejected
from synthesis.track.selection import NEVER_WORKED_ON, Selection

REJECTED_KIND: Final = "rejected_environment"
TOO_LOW: Final = "quality below threshold"


def selection_of(threshold: float) -> Selection[Environment, RejectedEnvironment]:
    """Return the selection of a run with this quality threshold."""
    return Selection(
        Environment,
        RejectedEnvironment,
        REJECTED_KIND,
        ("quality_threshold",),
        whole=lambda item: item.environment if item.is_whole else None,
        kept=partial(_kept, threshold),
        rejection=rejection,
    )


def too_low(quality: float, least: float, made: JsonObject | None = None) -> Rejected:
    """Return the rejection of an environment below the threshold."""
    return Rejected(TOO_LOW, f"QS {quality:.2f} < {least:.2f}", made)


def _kept(least: float, item: Environment | RejectedEnvironment, num_kept: int) -> Environment:
    """Return the environment of a slot if it was made executable and reaches the threshold, else reject it."""
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
