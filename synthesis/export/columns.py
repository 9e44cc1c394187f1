"""The columns of rows: their types, read from the class of a row, and Parquet files of rows.

A reader that guesses types takes "0042" for a number and a date for a time. A column whose values have several types
is `json`: any JSON value, kept as it is. In Parquet it is Arrow's `json`, which `datasets` reads as `Json()`.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from synthesis.export.openai_rows import ExportImpossible
from synthesis.records import JsonObject, JsonValue

_SCALARS = {str: "string", bool: "bool", int: "int64", float: "float64"}


def features(row_type: type[BaseModel]) -> list[JsonObject]:
    """Return the columns of a row as `dataset_info.features` of a data card has them.

    Every column may be null: a row may leave it out.

    >>> from synthesis.records import ToolCall
    >>> features(ToolCall)
    [{'name': 'id', 'dtype': 'string'}, {'name': 'name', 'dtype': 'string'}, {'name': 'arguments', 'dtype': 'json'}]
    """
    return [
        {"name": name, **_feature(field.annotation)}
        for name, field in row_type.model_fields.items()
        if not field.exclude
    ]


def _feature(annotation: Any) -> JsonObject:
    annotation = _without_none(annotation)
    if get_origin(annotation) in (list, tuple):
        item = _feature(get_args(annotation)[0])
        return {"list": item.get("struct", item.get("dtype", item))}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {"struct": features(annotation)}
    if get_origin(annotation) is Literal:
        types_of_values = {type(value) for value in get_args(annotation)}
        annotation = types_of_values.pop() if len(types_of_values) == 1 else Any
    return {"dtype": _SCALARS.get(annotation, "json")}


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = [part for part in get_args(annotation) if part is not type(None)]
    return rest[0] if len(rest) == 1 else Any


_ROWS_AT_ONCE: Final = 1024


def write_parquet(folder: Path, split: str, row_type: type[BaseModel], rows: Iterable[BaseModel]) -> Path:
    """Write rows of one class as the file of a split, and return it; the same rows give the same bytes.

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
    as_text, typed = (
        pyarrow.schema(_arrow_type(columns, json_type)) for json_type in (pyarrow.string(), pyarrow.json_())
    )
    remaining, file = iter(rows), folder / f"{split}.parquet"
    with pyarrow.parquet.ParquetWriter(file, typed, compression="zstd") as writer:
        while batch := list(islice(remaining, _ROWS_AT_ONCE)):
            values = [_stored(row.model_dump(mode="json"), columns) for row in batch]
            try:  # first as text: Arrow makes no `json` of values, but of text
                table = pyarrow.Table.from_pylist(values, schema=as_text).cast(typed)
            except (pyarrow.ArrowException, OverflowError) as error:
                raise ExportImpossible(
                    f"one of {len(batch)} rows has a value of another type than its column: "
                    f"{str(error).splitlines()[0]}; the format jsonl holds any"
                ) from error
            writer.write_table(table)
    return file


def _arrow_type(feature: JsonValue, json_type: Any) -> Any:
    import pyarrow

    if isinstance(feature, str):
        return json_type if feature == "json" else pyarrow.type_for_alias(feature)
    if isinstance(feature, list):
        return pyarrow.struct([(column["name"], _arrow_type(column, json_type)) for column in feature])
    if "list" in feature:
        return pyarrow.list_(_arrow_type(feature["list"], json_type))
    return _arrow_type(feature["struct"] if "struct" in feature else feature["dtype"], json_type)


def _stored(value: JsonValue, feature: JsonValue) -> JsonValue:
    """Return a value as Arrow takes it; a `json` value becomes its text."""
    if value is None:
        return None
    if isinstance(feature, list):
        if unknown := sorted(value.keys() - {column["name"] for column in feature}):
            raise ExportImpossible(f"a row has the keys {unknown}, which have no column; the format jsonl holds any")
        return {column["name"]: _stored(value.get(column["name"]), column) for column in feature}
    if isinstance(feature, dict):
        if "list" in feature:
            return [_stored(item, feature["list"]) for item in value]
        return _stored(value, feature["struct"] if "struct" in feature else feature["dtype"])
    return json.dumps(value, ensure_ascii=False) if feature == "json" else value
