"""The types of a row's columns, read from the row's class: what a reader must not have to guess.

A reader that guesses takes "0042" for a number and a date for a time. A column whose values have several types is
`json`: any JSON value, kept as it is.
"""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from synthesis.records import JsonObject

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
        annotation = _type_of_all(get_args(annotation))
    return {"dtype": _SCALARS.get(annotation, "json")}


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = [part for part in get_args(annotation) if part is not type(None)]
    return rest[0] if len(rest) == 1 else Any


def _type_of_all(values: tuple[Any, ...]) -> Any:
    found = {type(value) for value in values}
    return found.pop() if len(found) == 1 else Any
