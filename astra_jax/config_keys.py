"""The keys of a config: each with its default, and its explanation."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python


class Key(NamedTuple):
    """One key of a config, or the head of a table of keys."""

    path: str
    """Names from the outermost table to the key, with dots between them."""
    default: str
    """Value of a key that is left out, written as in TOML; `required` without a default, `none` for nothing."""
    explanation: str
    """First sentence of the field's docstring; empty without one."""
    is_table: bool
    """Whether the key is the head of a table: it is set by setting the keys that follow."""
    kind: str = ""
    """Type of the value, such as `int`, `list of path` or one of several texts; empty for a table."""
    bounds: str = ""
    """Bounds of a number, or of a list's length, such as `≥ 0, < 2147483648`; empty without any."""


def keys_of(config_type: type[BaseModel], above: str = "") -> Iterator[Key]:
    """Yield the keys of a config in the order of its fields, those of nested tables after the head of the table."""
    docstrings = _docstrings(config_type)
    for name, field in config_type.model_fields.items():
        path, tables = above + name, [] if get_origin(field.annotation) is dict else _configs_in(field.annotation)
        kind = "" if tables else kind_of(field.annotation)
        yield Key(path, _default(field), _first_sentence(docstrings.get(name, "")), bool(tables), kind, _bounds(field))
        for table in tables:
            yield from keys_of(table, f"{path}.")


def kind_of(annotation: Any) -> str:
    """Return a type in words.

    >>> from pathlib import Path
    >>> [kind_of(each) for each in (int | None, tuple[Path, ...], dict[str, float], Literal["a", "b"])]
    ['int', 'list of path', 'table of str to float', '"a" or "b"']
    """
    origin, arguments = get_origin(annotation), [each for each in get_args(annotation) if each not in (type(None), ...)]
    if origin is Annotated:
        return kind_of(arguments[0])
    if origin is Literal:
        return " or ".join(map(json.dumps, arguments))
    if origin in (tuple, list, set, frozenset):
        return f"list of {' or '.join(dict.fromkeys(map(kind_of, arguments)))}"
    if origin is dict:
        return f"table of {' to '.join(map(kind_of, arguments))}"
    if origin is not None:
        return " or ".join(dict.fromkeys(map(kind_of, arguments)))
    return {"Path": "path", "NoneType": "none"}.get(annotation.__name__, annotation.__name__)


_SIGNS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤"}


def _bounds(field: FieldInfo) -> str:
    values = [(sign, getattr(each, name, None)) for each in field.metadata for name, sign in _SIGNS.items()]
    return ", ".join(f"{sign} {value}" for sign, value in values if value is not None)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = to_jsonable_python(field.get_default(call_default_factory=True))
    return "none" if value is None else _in_toml(value)


def _in_toml(value: Any) -> str:
    if value and isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_in_toml(part)}' for key, part in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)


def _first_sentence(docstring: str) -> str:
    """Return the first sentence of a docstring, on one line.

    >>> _first_sentence("Share of the steps\\n    that warm up. The rest follows.")
    'Share of the steps that warm up.'
    """
    sentence, stop, _ = " ".join(docstring.split()).partition(". ")
    return sentence + "." if stop else sentence


def _configs_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [config for argument in get_args(annotation) for config in _configs_in(argument)]


@lru_cache(maxsize=128)
def _docstrings(config_type: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field of a class and of its bases, by the field's name."""
    found: dict[str, str] = {}
    for base in reversed(config_type.__mro__):
        if not issubclass(base, BaseModel) or base is BaseModel:
            continue
        definition = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(definition, ast.ClassDef)
        for field, below in zip(definition.body, definition.body[1:], strict=False):
            is_text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                found[field.target.id] = str(below.value.value)  # type: ignore[attr-defined]
    return found
