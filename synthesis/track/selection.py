"""Selection from a finished run under other thresholds, without asking the teacher.

    out           records that reach the thresholds        ┐ every slot of the run is in one of the two,
    out.rejected  the others, with scores and reasons      ┘ and moves where its scores put it

An item is in `out.rejected` before it leaves `out`: a run that is killed in between loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from synthesis.record_io import RecordDirectoryError, RecordSource, read_card
from synthesis.records import Environment, RejectedRecord, Trajectory
from synthesis.run.fingerprint import Fingerprint
from synthesis.stage import Rejected, StageReport
from synthesis.track.run import TrackRun, rejected_beside

NEVER_WORKED_ON: Final = "never worked on"
"""Reason of an item that would be worked on under the new thresholds, but was not under the old ones."""

Kept = TypeVar("Kept", Trajectory, Environment)
Other = TypeVar("Other", bound=RejectedRecord)


@dataclass(frozen=True)
class Selection(Generic[Kept, Other]):
    """The selection of one track's items."""

    kept_type: type[Kept]
    rejected_type: type[Other]
    rejected_kind: str
    thresholds: tuple[str, ...]
    """Prefixes of the settings that may differ from the finished run's."""
    whole: Callable[[Other], Kept | None]
    """Function that returns the whole record of a rejected item; None if it was not made."""
    kept: Callable[[Kept | Other, int], Kept]
    """Function that returns the record of an item, given the number of records kept before it, or raises `Rejected`."""
    rejection: Callable[[int, Rejected, Kept | Other], Other]
    """Function that returns the record of a slot's item that is not kept."""

    def is_due(self, run: TrackRun) -> bool:
        """Say whether a finished run lies in `out` that differs from this one in its thresholds alone."""
        if not (run.out / "dataset.json").is_file() or not (rejected_beside(run.out) / "dataset.json").is_file():
            return False
        before = read_card(run.out).made_with
        return before != run.fingerprint and self._is_same_work(before, run.fingerprint)

    def _is_same_work(self, one: Fingerprint, other: Fingerprint) -> bool:
        """Say whether two fingerprints differ in thresholds alone, if at all."""
        changed = [name for name in one.keys() | other.keys() if one.get(name) != other.get(name)]
        return all(name.startswith(self.thresholds) for name in changed)

    def _items(self, run: TrackRun) -> Iterator[Kept | Other]:
        """Yield the item of each slot; slots without a rejection have the kept records, in order."""
        out, beside = run.out, rejected_beside(run.out)
        if not self._is_same_work(read_card(out).made_with, read_card(beside).made_with):
            raise RecordDirectoryError(
                f"{beside} has the rejected items of another run than {out}; put those of this run there"
            )
        kept = list(RecordSource(out, self.kept_type))
        ids = {record.id for record in kept}
        # In both where an earlier selection was killed: then the records hold.
        rejected = {
            item.slot: item
            for item in RecordSource(beside, self.rejected_type)
            if (whole := self.whole(item)) is None or whole.id not in ids
        }
        if len(kept) + len(rejected) != (count := read_card(out).read):
            raise RecordDirectoryError(
                f"{out} and {beside} have {len(kept)} and {len(rejected)} items, and {count} were read; one of them is "
                "of another run"
            )
        in_order = iter(kept)
        return (rejected.get(slot) or next(in_order) for slot in range(count))

    def again(self, run: TrackRun) -> StageReport:
        """Apply the thresholds to all items, and write both directories again.

        Raises:
            NothingKept: no item reaches them; both directories stay as they are.
            RecordDirectoryError: one of the directories is damaged, or of another run.
            OSError: the disk is full or not writable.
        """
        report = StageReport(run.name, read=read_card(run.out).read, out=str(run.out))
        kept: list[Kept] = []
        rejected: dict[int, Other] = {}
        both: dict[int, Other] = {}
        for slot, item in enumerate(self._items(run)):
            if isinstance(item, self.rejected_type):
                both[slot] = item
            try:
                kept.append(self.kept(item, len(kept)))
            except Rejected as reason:
                report.reject(reason)
                rejected[slot] = both[slot] = self.rejection(slot, reason, item)
        report.kept = len(kept)
        report.require_kept(run.kind)
        beside = run.out / "report.json"  # its figures are of the stages before the thresholds
        text = beside.read_text(encoding="utf-8") if beside.is_file() else None
        # An item that moves is in both directories until the end.
        run.write_rejected(report, (both[slot] for slot in sorted(both)), self.rejected_kind)
        run.write(report, kept, text)
        run.write_rejected(report, rejected.values(), self.rejected_kind)
        return report
