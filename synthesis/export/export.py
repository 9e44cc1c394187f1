"""The export of a record directory: a folder with rows for another trainer, their schema and a data card.

out/
  train.jsonl       one row on each line, UTF-8; or train.parquet, or a folder for `tfds.data_source`
  README.md         the data card
  certificate.json  if the record directory has one
  .astra.json       says that the folder is an export
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from pydantic import BaseModel

from synthesis.contamination import overlap_of
from synthesis.export.columns import features, write_parquet
from synthesis.export.data_card import DATA_CARD, Contents, data_card
from synthesis.export.openai_rows import ExportImpossible, OpenAIRow, openai_row
from synthesis.export.rl_rows import AstraRow, TrlRow, VerlRow, astra_row, trl_row, verl_row
from synthesis.export.tfds_dataset import EnvironmentExample, TrajectoryExample, example_of, write_tfds
from synthesis.record_io import CERTIFICATE, RECORD_TYPES, RecordSource, read_card, read_certificate
from synthesis.records import KeptRecord
from synthesis.run.destination import MARK, DestinationRefused, Result, require_destination, whole_folder

EXPORT: Final = Result("export of records", MARK, "export", is_replaced=True)


def _write_lines(folder: Path, split: str, _: type[BaseModel], rows: Iterator[BaseModel]) -> Path:
    file = folder / f"{split}.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        lines.writelines(row.model_dump_json() + "\n" for row in rows)
    return file


@dataclass(frozen=True)
class Format:
    """A form that records are exported in."""

    row_types: Mapping[str, type[BaseModel]]
    """Kind of record to the class of its rows."""
    row: Callable[[Any, int, str], BaseModel]
    """Function that makes a row from a record, its number and the name of the split."""
    write: Callable[[Path, str, type[BaseModel], Iterator[BaseModel]], Path] = _write_lines
    """Function that writes rows of a class as a split into a folder, and returns the file or folder that holds them."""


FORMATS: Final[Mapping[str, Format]] = {
    "jsonl": Format(RECORD_TYPES, lambda record, *_: cast(BaseModel, record)),
    "parquet": Format(RECORD_TYPES, lambda record, *_: cast(BaseModel, record), write_parquet),
    "tfds": Format(
        {"trajectory": TrajectoryExample, "environment": EnvironmentExample},
        lambda record, *_: example_of(record),
        write_tfds,
    ),
    "openai": Format({"trajectory": OpenAIRow, "environment": OpenAIRow}, lambda record, *_: openai_row(record)),
    "astra": Format({"environment": AstraRow}, lambda record, *_: astra_row(record)),
    "verl": Format({"environment": VerlRow}, lambda record, index, split: verl_row(record, index=index, split=split)),
    "trl": Format({"environment": TrlRow}, lambda record, *_: trl_row(record)),
}
"""The formats, by the names that the command knows them by; `data_card.md.jinja` has the notes on each."""


def export_records(
    directory: Path, out: Path, *, format_name: str, split: str, licence: str, against: Sequence[Path] = ()
) -> int:
    """Write every record of a directory as a row of a format, with a data card; return how many.

    The card says what the records share with the benchmark files `against`, if any are given.
    The folder appears whole or not at all, and may replace an earlier export. The same records give the same bytes.

    Raises:
        DestinationRefused: something else is at `out`, or it lies in the record directory, a whole of known bytes.
        RecordDirectoryError: the directory is missing or damaged, or its certificate does not hold.
        ExportImpossible: the format has no form for records of this kind, or for one of them, or needs a package.
        InputUnusable: a file of `against` is missing, cannot be read, or holds no text.
    """
    card, form = read_card(directory), FORMATS[format_name]
    require_destination(out, EXPORT)
    if out.resolve().is_relative_to(directory.resolve()):
        raise DestinationRefused(
            f"{out} lies in the record directory, which is a whole of known bytes; name a folder outside of it"
        )
    if card.kind not in form.row_types:
        raise ExportImpossible(
            f"expected records of kind {' or '.join(form.row_types)} for the format {format_name}, found {card.kind} "
            f"in {directory}; choose another format"
        )
    certificate = read_certificate(directory)
    source: RecordSource[KeptRecord] = RecordSource(directory, RECORD_TYPES[card.kind])
    contents = Contents()
    with whole_folder(out, EXPORT) as folder:

        def rows() -> Iterator[BaseModel]:
            for index, record in enumerate(source):
                contents.add(record)
                yield form.row(record, index, split)

        file = form.write(folder, split, form.row_types[card.kind], rows())
        text = data_card(
            card,
            contents,
            columns=features(form.row_types[card.kind]),
            format_name=format_name,
            file=file,
            split=split,
            licence=licence,
            certificate=certificate,
            overlap=overlap_of(directory, against) if against else None,
        )
        if certificate is not None:
            (folder / CERTIFICATE).write_text(certificate.model_dump_json(indent=2) + "\n", encoding="utf-8")
        (folder / DATA_CARD).write_text(text, encoding="utf-8")
    return len(source)
