"""Which trajectories of a finished run reach other thresholds: at most `count` are kept, in order of their slots."""

from __future__ import annotations

from functools import partial
from typing import Final

from synthesis.records import RejectedTrajectory, Trajectory, record_id
from synthesis.stage import Rejected
from synthesis.track.selection import NEVER_WORKED_ON, Selection
from synthesis.trajectories.config import TrajectoriesConfig
from synthesis.trajectories.reward_axes import check_thresholds
from synthesis.trajectories.task_scores import check_scores

REJECTED_KIND: Final = "rejected_trajectory"


def selection_of(config: TrajectoriesConfig) -> Selection[Trajectory, RejectedTrajectory]:
    """Return how a run with this configuration selects."""
    return Selection(
        Trajectory,
        RejectedTrajectory,
        REJECTED_KIND,
        ("task_thresholds.", "reward_thresholds."),
        whole=lambda item: item.trajectory,
        kept=partial(_kept, config),
        rejection=rejection,
    )


def _kept(config: TrajectoriesConfig, item: Trajectory | RejectedTrajectory, num_kept: int) -> Trajectory:
    """Return the trajectory of a slot if it reaches the thresholds.

    Raises:
        Rejected: it does not, or was never judged.
    """
    trajectory = item if isinstance(item, Trajectory) else item.trajectory
    if trajectory is None:
        assert isinstance(item, RejectedTrajectory)
        if item.task_scores is None:
            raise Rejected(item.reason, item.detail)
        check_scores(item.task_scores, item.detail.partition(": ")[2], config.task_thresholds)
        raise Rejected(NEVER_WORKED_ON, item.detail)
    check_scores(trajectory.task.scores, repr(trajectory.task.text[:80]), config.task_thresholds)
    check_thresholds(trajectory.reward, config.reward_thresholds)
    if num_kept == config.count:
        raise Rejected("more than count", trajectory.task.text[:80])
    return trajectory


def rejection(slot: int, rejected: Rejected, item: Trajectory | RejectedTrajectory | None = None) -> RejectedTrajectory:
    """Return the record of what was not kept, with what was made of it."""
    if isinstance(item, RejectedTrajectory):
        return item.model_copy(update={"reason": rejected.reason, "detail": rejected.detail, "digest": ""})
    made = {name: part for name, part in rejected.made.items() if name != "usage"}
    if item is not None:
        made = {"trajectory": item}
    if isinstance(whole := made.get("trajectory"), Trajectory):
        made["trajectory"] = whole.sealed()  # as it would lie among the records
    known = made.get("trajectory") or made.get("task") or made
    return RejectedTrajectory(
        id=record_id(REJECTED_KIND, slot, known if isinstance(known, dict) else known.id),
        slot=slot,
        reason=rejected.reason,
        detail=rejected.detail,
        **made,
    )
