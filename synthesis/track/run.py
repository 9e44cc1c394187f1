"""One run of a track: its fingerprint and journals, an earlier result, the records that it writes at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from synthesis.record_io import read_card, write_records
from synthesis.records import SCHEMA_VERSION, KeptRecord, RejectedRecord
from synthesis.run.code import source_of
from synthesis.run.destination import records_of, require_destination
from synthesis.run.fingerprint import Fingerprint, MadeOtherwise, digest, flattened, require_same
from synthesis.run.json_values import JsonValue
from synthesis.stage import StageReport
from synthesis.teacher.protocol import Teacher
from synthesis.track.journal import Journal, JournalError


@dataclass(frozen=True)
class TrackRun:
    """A run of a track that writes records of one kind into `out`."""

    name: str
    """Name of the track in reports."""
    out: Path
    kind: str
    fingerprint: Fingerprint
    """Settings and inputs that decide the records."""
    journal_paths: Mapping[str, Path]
    """Journals by stage, in order."""

    def finished_report(self) -> StageReport | None:
        """Return the report of the synthesis whose records already lie in `out`; None if there are none.

        Journals that a kill left beside the finished records are taken away.

        Raises:
            DestinationRefused: something else lies there.
            MadeOtherwise: they have another fingerprint.
            RecordDirectoryError: their `dataset.json` cannot be read, or is of another schema version.
        """
        out = self.out
        require_destination(out, records_of(self.kind))
        if not (out / "dataset.json").is_file():
            return None
        card = read_card(out)
        require_same(out, card.made_with, self.fingerprint, advice="Name another `out`, or move these records away")
        for stage, path in self.journal_paths.items():
            if path.is_file():
                # A journal of another fingerprint, or another file, is not this run's to delete.
                with suppress(MadeOtherwise, JournalError):
                    Journal(path, stage, self.fingerprint).close()
                    _delete_journal(path)
        rejected = Counter(card.rejected)
        return StageReport(self.name, card.read, card.count, rejected=rejected, out=str(out), already_complete=True)

    @contextmanager
    def open_journals(self) -> Iterator[list[Journal]]:
        """Open the journal of each stage, or begin it."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(closing(Journal(path, stage, self.fingerprint)))
                for stage, path in self.journal_paths.items()
            ]

    def write(self, report: StageReport, records: Iterable[KeptRecord], run_report: str | None = None) -> None:
        """Write the records of a run that is at its end, unless there are none; `run_report` is their `report.json`."""
        if report.kept:
            self._write(self.out, self.kind, records, report, run_report)

    def write_rejected(self, report: StageReport, records: Iterable[RejectedRecord], kind: str) -> None:
        """Write rejected items with their scores and reasons into a directory of their own beside the records.

        If no item was kept, and the others are nothing but reasons, nothing is written: the error tells the reasons.
        """
        if not report.kept:
            records = list(records)
        if report.kept or any(record.has_content for record in records):
            self._write(rejected_beside(self.out), kind, records, report)

    def _write(
        self, out: Path, kind: str, records: Iterable[KeptRecord], report: StageReport, run_report: str | None = None
    ) -> None:
        write_records(
            out,
            records,
            kind=kind,
            config_hash=digest(self.fingerprint),
            rejected=report.rejected,
            read=report.read,
            made_with=self.fingerprint,
            report=run_report,
        )

    def close(self, report: StageReport) -> None:
        """Remove the closed journals, whose records are written.

        Raises:
            NothingKept: there is no record.
        """
        # Before the verdict: were the journals of nothing but rejections kept, the next run could do no better.
        for path in self.journal_paths.values():
            _delete_journal(path)
        report.require_kept(self.kind)


def rejected_beside(out: Path) -> Path:
    """Return the directory of a run's rejected items.

    >>> rejected_beside(Path("runs/trajectories")).as_posix()
    'runs/trajectories.rejected'
    """
    return out.with_name(f"{out.name}.rejected")


def _delete_journal(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal", ""):  # SQLite's own, by name: a copy that the user made stays
        path.with_name(f"{path.name}{suffix}").unlink(missing_ok=True)


def synthesis_fingerprint(
    track: str, config: BaseModel, teacher: Teacher, contents: Mapping[str, JsonValue]
) -> Fingerprint:
    """Return the fingerprint of the records of a track, whose pipeline is the module `track`.

    It holds the config without destination, concurrency and prices; `contents`, which stand for the paths
    under the keys of these names; the teacher; and the code of the track and of the teacher, prompts included.
    """
    settings = getattr(config, "teacher", None)
    asked = {} if settings is None else settings.what_decides()
    # A teacher's base classes answer too: a subclass in another module keeps its parent's source in.
    teachers = {kind.__module__ for kind in type(teacher).__mro__ if kind.__module__.startswith("synthesis.")}
    return {
        "schema_version": SCHEMA_VERSION,
        **flattened(
            config.model_dump(mode="json"), leave_out={"out", "concurrency", "teacher", "templates", *contents}
        ),
        **{name: digest(content) for name, content in contents.items()},
        **flattened({"teacher": {"name": teacher.name, **asked}}),
        **source_of(track, *sorted(teachers)),
    }
