"""Verification of a record directory: the number of sound records, and the failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from synthesis.record_io import RecordSource
from synthesis.records import KeptRecord
from synthesis.stage import Rejected, all_in_order

_AT_ONCE: Final = 16

RecordT = TypeVar("RecordT", bound=KeptRecord)


@dataclass
class VerificationReport:
    """The number of replayed records, and the failures: record id and reason."""

    read: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)

    def closing_line(self) -> str:
        """Return the last line of `astra records verify`.

        >>> VerificationReport(read=3, failures=[("environment-1", "wrong answer")]).closing_line()
        'verified 2/3'
        """
        return f"verified {self.read - len({name for name, _ in self.failures})}/{self.read}"


async def verify_records(
    source: RecordSource[RecordT], verify: Callable[[RecordT], Awaitable[None]]
) -> VerificationReport:
    """Verify every record; a rejection by `verify` is reported under the record's id."""

    async def broken_promise(record: RecordT) -> str | None:
        try:
            await verify(record)
        except Rejected as rejected:
            return str(rejected)
        return None

    report = VerificationReport(read=len(source))
    # Some at a time, so that records and their replies do not all lie in memory.
    for start in range(0, len(source), _AT_ONCE):
        records = [source[index] for index in range(start, min(start + _AT_ONCE, len(source)))]
        broken = await all_in_order(broken_promise(record) for record in records)
        report.failures += [
            (record.id, reason) for record, reason in zip(records, broken, strict=True) if reason is not None
        ]
    return report


def check_digest(record: KeptRecord) -> None:
    """Compare a record with the digest that it got when it was written.

    Raises:
        Rejected: it has none, or another one.
    """
    computed = record.computed_digest()
    if record.digest != computed:
        found = f"{record.digest[:12]}…" if record.digest else "none"
        raise Rejected("changed after it was written", f"expected the digest {computed[:12]}…, found {found}")
