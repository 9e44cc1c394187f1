"""Rows in a Parquet file whose schema is that of their class: nothing is guessed, and digits stay text.

A column of several types is Arrow's `json`, text of JSON in the file; `datasets` reads it as `Json()`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from synthesis.export.openai_rows import ExportImpossible
from synthesis.export.row_schema import features
from synthesis.records import JsonObject, JsonValue

_ROWS_AT_ONCE: Final = 1024


def write_parquet(file: Path, row_type: type[BaseModel], rows: Iterable[BaseModel]) -> None:
    """Write rows of one class; the same rows give the same bytes.

    Raises:
        ExportImpossible: pyarrow is missing, or a value has no place in its column, such as a whole number of more than
            64 bits.
        OSError: the disk is full or not writable.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ExportImpossible(
            "Parquet needs pyarrow, which is not installed; run: pip install 'astra-jax[tables]'"
        ) from error
    columns = features(row_type)
    as_text, typed = (pyarrow.schema(_fields(columns, json_type)) for json_type in (pyarrow.string(), pyarrow.json_()))
    remaining = iter(rows)
    with pyarrow.parquet.ParquetWriter(file, typed, compression="zstd") as writer:
        while batch := list(islice(remaining, _ROWS_AT_ONCE)):
            values = [_stored(row.model_dump(mode="json"), columns) for row in batch]
            try:  # first as text: Arrow makes no `json` of values, but of text
                table = pyarrow.Table.from_pylist(values, schema=as_text).cast(typed)
            except (pyarrow.ArrowException, OverflowError) as error:
                raise ExportImpossible(
                    f"expected values of the columns' types, found another among {len(batch)} rows: "
                    f"{str(error).splitlines()[0]}; the format jsonl holds any"
                ) from error
            writer.write_table(table)


def _fields(columns: list[JsonObject], json_type: Any) -> list[tuple[str, Any]]:
    return [(column["name"], _arrow_type(column, json_type)) for column in columns]


def _arrow_type(feature: JsonValue, json_type: Any) -> Any:
    import pyarrow

    if isinstance(feature, str):
        return json_type if feature == "json" else pyarrow.type_for_alias(feature)
    if isinstance(feature, list):
        return pyarrow.struct(_fields(feature, json_type))
    if "list" in feature:
        return pyarrow.list_(_arrow_type(feature["list"], json_type))
    return _arrow_type(feature["struct"] if "struct" in feature else feature["dtype"], json_type)


def _stored(value: JsonValue, feature: JsonValue) -> JsonValue:
    """Return a value as Arrow takes it: what is `json` as its text."""
    if value is None:
        return None
    if isinstance(feature, list):
        return dict(_parts(value, feature))
    if isinstance(feature, dict):
        if "list" in feature:
            return [_stored(item, feature["list"]) for item in value]
        return _stored(value, feature["struct"] if "struct" in feature else feature["dtype"])
    return json.dumps(value, ensure_ascii=False) if feature == "json" else value


def _parts(value: JsonObject, columns: list[JsonObject]) -> Iterator[tuple[str, JsonValue]]:
    if unknown := sorted(value.keys() - {column["name"] for column in columns}):
        raise ExportImpossible(f"expected the columns of the row's class, found {unknown} besides")
    for column in columns:
        yield column["name"], _stored(value.get(column["name"]), column)
