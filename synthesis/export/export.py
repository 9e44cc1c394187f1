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
from synthesis.export.astra_rows import AstraRow, astra_row
from synthesis.export.columns import features, write_parquet
from synthesis.export.data_card import DATA_CARD, Contents, data_card
from synthesis.export.openai_rows import ExportImpossible, OpenAIRow, openai_row
from synthesis.export.rl_rows import TrlRow, VerlRow, trl_row, verl_row
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
    notes: tuple[str, ...] = ()
    """Notes for a reader of the rows, such as parts of a record that they do not carry."""
    write: Callable[[Path, str, type[BaseModel], Iterator[BaseModel]], Path] = _write_lines
    """Function that writes rows of a class as a split into a folder, and returns the file or folder that holds them."""


_GROUND_TRUTH: Final = (
    "Where `ground_truth` has `user_reply`, the user says it to the first message that asks back, and the episode goes "
    "on; `state_conditions` hold of the last state beside `final_state`, and what none names is as it was; of "
    "a state with `sql`, only its `queries` are compared: there the paths of the conditions begin; where a "
    "sub-task has `arguments`, its tool has bad replies, which the state counts: a call with these arguments that "
    "returns another value than the answer is not counted as a call."
)

FORMATS: Final[Mapping[str, Format]] = {
    "jsonl": Format(
        RECORD_TYPES,
        lambda record, *_: cast(BaseModel, record),
        (
            "`datasets` takes a text of digits in a `json` column for a number when it reads these lines (seen with "
            '5.2.0: "007" becomes 7). Give it the format `parquet`, which it reads as it is.',
        ),
    ),
    "parquet": Format(
        RECORD_TYPES,
        lambda record, *_: cast(BaseModel, record),
        (
            "The file has the types of its columns; `json` is Arrow's type of that name, text of JSON. Whole numbers "
            "of more than 64 bits in it are read by Python's `json`, and refused by `datasets`.",
        ),
        write=write_parquet,
    ),
    "tfds": Format(
        {"trajectory": TrajectoryExample, "environment": EnvironmentExample},
        lambda record, *_: example_of(record),
        (
            "A data set of `tensorflow-datasets` in ArrayRecord files, read without TensorFlow: "
            "`tfds.data_source(NAME, split=…, data_dir=FOLDER)`, where NAME is the folder beside this file and FOLDER "
            "the one that holds both. Texts come as bytes. `record` is the whole record as JSON text.",
        ),
        write=write_tfds,
    ),
    "openai": Format(
        {"trajectory": OpenAIRow, "environment": OpenAIRow},
        lambda record, *_: openai_row(record),
        (
            "`messages` and `tools` are those of OpenAI's chat API; `reasoning_content` is no part of it, and stands "
            "in messages whose thoughts the records have.",
            "Of an environment the row is the episode that SFT imitates: the gold one, or one with a planted habit. "
            "Scores, gold answers and whether a call failed are not carried.",
        ),
    ),
    "astra": Format(
        {"environment": AstraRow},
        lambda record, *_: astra_row(record),
        (
            "`prompt`, `tool_schema`, `tool_dict` and `sub_qa_dict` are the columns of ASTRA's published RL data.",
            "They carry question, tools, code and the sub-answers as text, under the tool that returns them. Which "
            "call finds an answer, what depends on what, which tools are distractors, the state and the types of "
            "answers stand in `environment`.",
        ),
    ),
    "verl": Format(
        {"environment": VerlRow},
        lambda record, index, split: verl_row(record, index=index, split=split),
        (
            "`create_kwargs` of each tool are what `sandbox.client.AsyncSandboxClient.execute` takes beside the call's "
            "`arguments` (`state` is JSON text): a tool's `execute` is one call of it. `ground_truth` is JSON text.",
            _GROUND_TRUTH,
            "verl knows a tool by its name for a whole run, and wants its schema in the run's tool configuration; here "
            "the schemas of a row stand in `extra_info.tools`. Rows that have another document under the same name "
            "cannot be in one run.",
        ),
    ),
    "trl": Format(
        {"environment": TrlRow},
        lambda record, *_: trl_row(record),
        (
            "`reset` of an environment class and the reward functions get these columns by name. `sandbox_tools` is "
            "JSON text of what `sandbox.client.AsyncSandboxClient.execute` takes beside the call's `arguments`; "
            "`state` and `ground_truth` are JSON text.",
            _GROUND_TRUTH,
            "TRL takes the tools of a run from Python methods: one method that is given a tool's name and its "
            "arguments can serve all rows, with the schemas in `tools` shown by the prompt.",
        ),
    ),
}
"""The formats, by the names that the command knows them by."""


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
        BenchmarkUnreadable: a file of `against` is missing, cannot be read, or holds no text.
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
            notes=form.notes,
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
