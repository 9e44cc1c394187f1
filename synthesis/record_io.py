"""Record directories: ArrayRecord shards of JSON texts beside a `dataset.json` that describes them.

    out/
      shard-00000-of-00002.array_record      one JSON record per entry, UTF-8
      shard-00001-of-00002.array_record
      dataset.json                           schema version, counts, SHA-256 per shard, rejections by reason
      certificate.json                       if `astra records attack` ran: figures of policies that must not succeed

A directory is written beside its final place and renamed when it is whole: a reader never sees half of one.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import file_digest
from itertools import chain, islice
from pathlib import Path
from typing import Final, Generic, TypeVar

from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from pydantic import BaseModel, Field, ValidationError

from synthesis.errors import SynthesisError
from synthesis.records import (
    SCHEMA_VERSION,
    Certificate,
    Environment,
    JsonValue,
    KeptRecord,
    RejectedEnvironment,
    RejectedTrajectory,
    ServerDocument,
    Trajectory,
)
from synthesis.run.destination import records_of, whole_folder
from synthesis.run.fingerprint import digest

RecordT = TypeVar("RecordT", bound=KeptRecord)

RECORD_TYPES: Mapping[str, type[KeptRecord]] = {
    "server_document": ServerDocument,
    "trajectory": Trajectory,
    "rejected_trajectory": RejectedTrajectory,
    "environment": Environment,
    "rejected_environment": RejectedEnvironment,
}
"""The kinds of record that a directory can hold."""
CERTIFICATE: Final = "certificate.json"
"""Name of the certificate's file in a record directory or an export."""

_WRITER_OPTIONS = "group_size:1,zstd:3"
"""Options of the writer: with one record per group, random access reads no neighbours of a record."""


class DatasetCard(BaseModel):
    """The contents of `dataset.json`, which describes a record directory."""

    kind: str
    schema_version: int
    count: int
    shards: dict[str, str]
    """Shard file name to SHA-256 of its bytes."""
    config_hash: str
    rejected: dict[str, int]
    """Number of rejected items by reason."""
    read: int = 0
    """Number of items that were worked on, kept and rejected ones; 0 if they were not counted."""
    repaired: int = 0
    made_with: dict[str, JsonValue] = {}
    """Fingerprint of the synthesis; empty without one, and in cards of older versions."""
    packages: dict[str, str] = Field(default={}, exclude_if=lambda packages: not packages)
    """Packages that tools need beside the standard library: name to the version that proved the tools."""


class RecordDirectoryError(SynthesisError):
    """A record directory is missing, damaged or of another kind; the message names the directory and the remedy."""


def write_records(
    out: Path,
    records: Iterable[KeptRecord],
    *,
    kind: str,
    config_hash: str = "",
    rejected: Mapping[str, int] | None = None,
    read: int = 0,
    repaired: int = 0,
    made_with: Mapping[str, JsonValue] | None = None,
    report: str | None = None,
    records_per_shard: int = 4096,
) -> DatasetCard:
    """Write records, in order, as a whole record directory; an earlier one of the same kind and name is replaced.

    Each gets its digest, unless it has one. `report` is the text of a `report.json` beside them.

    Raises:
        DestinationRefused: something else is at `out`; nothing was written.
        OSError: the disk is full or not writable; nothing is left at `out` that was not there before.
        TypeError: a record is not of `kind`.
    """
    record_type = RECORD_TYPES[kind]
    with whole_folder(out, records_of(kind)) as folder:
        # The name of a shard holds the number of shards, which is known at the last record: renamed below.
        unnumbered: list[Path] = []
        packages: dict[str, str] = {}
        count, remaining = 0, iter(records)
        for first in remaining:
            unnumbered.append(folder / f"shard-{len(unnumbered):05d}")
            # `_writing` stands around ArrayRecord's calls alone: `records` may raise a RuntimeError of its own.
            with _writing(out):
                writer = ArrayRecordWriter(str(unnumbered[-1]), _WRITER_OPTIONS)
            for record in chain([first], islice(remaining, records_per_shard - 1)):
                if not isinstance(record, record_type):
                    raise TypeError(f"expected a record of kind {kind!r}, found {type(record).__name__}")
                with _writing(out):
                    writer.write(record.sealed().model_dump_json().encode())
                count += 1
                packages |= record.packages if isinstance(record, Environment) else {}
            with _writing(out):
                writer.close()
        shards = {}
        for path in unnumbered:
            shard = path.with_name(f"{path.name}-of-{len(unnumbered):05d}.array_record")
            path.rename(shard)
            shards[shard.name] = _sha256(shard)
        card = DatasetCard(
            kind=kind,
            schema_version=SCHEMA_VERSION,
            count=count,
            shards=shards,
            config_hash=config_hash,
            rejected=dict(Counter(rejected or {})),
            read=read,
            repaired=repaired,
            made_with=dict(made_with or {}),
            packages=dict(sorted(packages.items())),
        )
        if report is not None:
            (folder / "report.json").write_text(report, encoding="utf-8")
        (folder / "dataset.json").write_text(card.model_dump_json(indent=2) + "\n")
    return card


@contextlib.contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # as ArrayRecord says it
        raise OSError(f"cannot write records to {out}: {_first_line(error)}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def read_card(directory: Path) -> DatasetCard:
    """Read the card of a record directory, its `dataset.json`.

    Raises:
        RecordDirectoryError: the directory or its card is missing, unreadable or of another schema version.
    """
    path = directory / "dataset.json"
    if not path.is_file():
        raise RecordDirectoryError(
            f"{directory} is not a record directory: it has no dataset.json; check the path, or run the synthesis that "
            "writes it"
        )
    try:
        card = DatasetCard.model_validate_json(path.read_text())
    except (ValidationError, UnicodeDecodeError) as error:
        fault = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "no UTF-8 text"
        raise RecordDirectoryError(f"{path} is not a dataset card: {fault}") from error
    if card.schema_version != SCHEMA_VERSION:
        raise RecordDirectoryError(
            f"expected records of schema version {SCHEMA_VERSION}, found {card.schema_version} in {path}; "
            "write them again with this version, or read them with the one that wrote them"
        )
    if card.kind not in RECORD_TYPES:
        raise RecordDirectoryError(f"expected records of {', '.join(RECORD_TYPES)}, found kind {card.kind!r} in {path}")
    return card


def packages_of(*directories: Path) -> dict[str, str]:
    """Return the packages that the tools of record directories need, with their versions, by the cards."""
    found: dict[str, str] = {}
    for directory in directories:
        found = read_card(directory).packages | found
    return found


def digest_of_records(directory: Path) -> str:
    """Return a digest of the records in a directory."""
    card = read_card(directory)
    return digest([card.kind, sorted(card.shards.items())])


def read_certificate(directory: Path) -> Certificate | None:
    """Read the certificate of a record directory; None if there is none.

    Raises:
        RecordDirectoryError: it cannot be read, its figures do not agree with one another, or it is of other records.
    """
    path = directory / CERTIFICATE
    if not path.is_file():
        return None
    try:
        written = json.loads(path.read_bytes())
        certificate = Certificate.model_validate({key: written[key] for key in Certificate.model_fields})
        if certificate.model_dump(mode="json") != written:
            raise ValueError("its figures do not agree with one another")
        if certificate.digest != (found := digest_of_records(directory)):
            raise ValueError(f"it is of other records: expected the digest {found}, found {certificate.digest}")
    except (ValueError, KeyError, TypeError) as error:
        raise RecordDirectoryError(
            f"{path} does not hold: {_first_line(error)}; run `astra records attack {directory}` again"
        ) from error
    return certificate


class RecordSource(Sequence[RecordT], Generic[RecordT]):
    """Random access to the records of a directory, in the order they were written (a Grain data source)."""

    def __init__(self, directory: Path, record_type: type[RecordT]):
        """Open every shard of a directory.

        Raises:
            RecordDirectoryError: the directory is missing, of another kind, or has other shards than its card says.
        """
        self.directory = Path(directory)
        self.card = read_card(self.directory)
        self._record_type = record_type
        if RECORD_TYPES[self.card.kind] is not record_type:
            raise RecordDirectoryError(
                f"expected records of type {record_type.__name__}, found kind {self.card.kind!r} in {directory}"
            )
        self._readers = []
        self._starts = [0]
        for name in sorted(self.card.shards):  # numbered with leading zeros, so this is the order of writing
            reader = _opened_shard(self.directory / name)
            self._readers.append(reader)
            self._starts.append(self._starts[-1] + reader.num_records())
        if self._starts[-1] != self.card.count:
            raise RecordDirectoryError(
                f"expected {self.card.count} records, found {self._starts[-1]} in {directory}; the directory is damaged"
            )

    def __len__(self) -> int:
        return self.card.count

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(f"record {index} of {len(self)} in {self.directory}")
        index %= len(self)  # from the end, where it is negative
        shard = next(s for s in range(len(self._readers)) if index < self._starts[s + 1])
        try:
            text = self._readers[shard].read([index - self._starts[shard]])[0]
            return self._record_type.model_validate_json(text)
        except (ValueError, IndexError, RuntimeError) as error:  # ArrayRecord's ways of saying so, and pydantic's
            raise RecordDirectoryError(
                f"record {index} of {self.directory} cannot be read: {_first_line(error)}; the shard is damaged"
            ) from error


def require_records(source: RecordSource[RecordT]) -> None:
    """Raise a `RecordDirectoryError` if a directory holds no record."""
    if not len(source):
        raise RecordDirectoryError(f"{source.directory} has no record; name another directory")


def _opened_shard(path: Path) -> ArrayRecordReader:
    if not path.is_file():
        raise RecordDirectoryError(f"the shard {path} is missing, so the directory is damaged; write it again")
    try:
        return ArrayRecordReader(str(path))
    except (ValueError, IndexError, RuntimeError) as error:
        raise RecordDirectoryError(f"{path} cannot be read: {_first_line(error)}; the shard is damaged") from error


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def check_shards(directory: Path) -> None:
    """Compare every shard's bytes with the SHA-256 in the card.

    Raises:
        RecordDirectoryError: the card cannot be read, or a shard is missing or its bytes have changed; the message
            names it.
    """
    for name, expected in read_card(directory).shards.items():
        path = directory / name
        found = _sha256(path) if path.is_file() else "no file"
        if found != expected:
            raise RecordDirectoryError(f"expected SHA-256 {expected} of {path}, found {found}; the shard is damaged")
