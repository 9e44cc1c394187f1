"""The audit of a judge: the share of sound trajectories that it passes, and of those with each kind of planted fault.

    trajectories ─► a sample ─┬─► judged again ─────────────────────────┬─► passes of each kind
                              └─► nine kinds planted ─► judged as well ─┘   AUC of each axis against the unmodified

AUC of an axis: share of the pairs in which the unmodified trajectory scores higher than the one with the fault. Ties
count half. An axis that cannot tell the two apart has an AUC of 0.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from scipy.stats import rankdata

from synthesis.audit.planted import KINDS, Elsewhere, planted
from synthesis.record_io import RecordSource, check_shards, require_records
from synthesis.records import JsonObject, RewardAxes, Trajectory
from synthesis.stage import Rejected, all_in_order
from synthesis.teacher.protocol import Teacher
from synthesis.trajectories.reward_axes import RewardThresholds, check_thresholds, judge_axes

UNMODIFIED: Final = "unmodified"

Verdict = tuple[RewardAxes | None, bool]
"""Scores of a trajectory, None if a rule rejected it before any axis was judged; and whether it passes."""


@dataclass(frozen=True)
class KindAudit:
    """The result for all trajectories with one kind of fault."""

    kind: str
    count: int
    passes: int
    auc: dict[str, float | None]
    """AUC by axis; None if no trajectory of the kind has the axis."""

    @property
    def share(self) -> float:
        """Share of these trajectories that pass; 0 if there is none."""
        return self.passes / self.count if self.count else 0.0


async def audit(
    directory: Path, teacher: Teacher, thresholds: RewardThresholds, *, at_most: int, seed: int
) -> list[KindAudit]:
    """Audit `teacher` as a judge, on at most `at_most` trajectories; the first result is for the unmodified ones.

    Raises:
        RecordDirectoryError: the directory is missing, damaged, empty or of another kind.
    """
    check_shards(directory)
    source = RecordSource(directory, Trajectory)
    require_records(source)
    trajectories = list(source)
    sample = Random(f"{seed}/sample").sample(trajectories, min(at_most, len(trajectories)))
    elsewhere = Elsewhere(trajectories)
    sound = await _judged(sample, teacher, thresholds)
    audited = [_audited(UNMODIFIED, sound, sound)]
    for kind in KINDS:
        drawn = [planted(kind, each, elsewhere, Random(f"{seed}/{kind}/{each.id}")) for each in sample]
        bad = await _judged([each for each in drawn if each is not None], teacher, thresholds)
        audited.append(_audited(kind, bad, sound))
    return audited


async def _judged(trajectories: Sequence[Trajectory], teacher: Teacher, thresholds: RewardThresholds) -> list[Verdict]:
    async def verdict(trajectory: Trajectory) -> Verdict:
        reward = None
        try:
            reward = await judge_axes(trajectory.task, trajectory.tools, trajectory.messages, teacher, seed=0)
            check_thresholds(reward, thresholds)
        except Rejected:
            return reward, False
        return reward, True

    return await all_in_order(verdict(each) for each in trajectories)


def _audited(kind: str, found: Sequence[Verdict], sound: Sequence[Verdict]) -> KindAudit:
    def scores(verdicts: Sequence[Verdict], axis: str) -> list[float]:
        return [value for reward, _ in verdicts if (value := getattr(reward, axis, None)) is not None]

    auc = {axis: area_under_curve(scores(sound, axis), scores(found, axis)) for axis in RewardAxes.AXES}
    return KindAudit(kind, len(found), sum(passes for _, passes in found), auc)


def area_under_curve(good: Sequence[float], bad: Sequence[float]) -> float | None:
    """Return the share of pairs in which the good one scores higher, ties counted half; None if a side is empty.

    >>> area_under_curve([1.0, 1.0], [0.5, 1.0]), area_under_curve([], [0.5])
    (0.75, None)
    """
    if not good or not bad:
        return None
    places = rankdata([*good, *bad])[: len(good)]  # from 1 on; equal scores share the mean of theirs
    return float((places.sum() - len(good) * (len(good) + 1) / 2) / (len(good) * len(bad)))


def table(audited: Sequence[KindAudit]) -> str:
    """Return the audit as lines of text.

    >>> print(table([KindAudit("no call", 4, 1, {"planning": 0.75, "final_answer": None})]))
    kind               count  pass  share  planning  final answer
    no call                4     1  25.0%      0.75             –
    """
    names = [axis.replace("_", " ") for axis in audited[0].auc]
    lines = ["  ".join([f"{'kind':17}  count  pass  share", *names])]
    for each in audited:
        cells = [
            f"{'–' if value is None else f'{value:.2f}':>{len(name)}}"
            for name, value in zip(names, each.auc.values(), strict=True)
        ]
        lines.append("  ".join([f"{each.kind:17}  {each.count:>5}  {each.passes:>4}  {each.share:>5.1%}", *cells]))
    return "\n".join(lines)


def as_json(audited: Sequence[KindAudit]) -> JsonObject:
    """Return the audit as `astra records audit --json` prints it."""
    return {"kinds": {each.kind: {"count": each.count, "passes": each.passes, "auc": each.auc} for each in audited}}
