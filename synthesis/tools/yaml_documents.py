"""YAML as JSON sees it, by the core schema of version 1.2: keys, `no`, `22:30` and dates are text.

Aliases are written out within a budget, so that a short text cannot make a document without measure. Merge keys (`<<`)
are read as well. If a text cannot be read, tabs at the ends of its lines go: YAML 1.2 allows them (section 6.2), the
loader does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import yaml
from yaml.scanner import ScannerError

from synthesis.records import JsonValue

_MAX_WRITTEN_OUT: Final = 100_000
"""Maximum number of values that aliases add to a document; without aliases, a text has fewer values than characters."""
_TAG: Final = "tag:yaml.org,2002:"
_CORE: Final = {
    "null": r"null|Null|NULL|~|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
    "merge": r"<<",
}
"""Scalars that are no text (YAML 1.2.2, section 10.3.2); JSON has no infinity."""
_READ: Final[dict[str, Callable[[str], JsonValue]]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": lambda text: int(text, 0 if text[:2] in ("0o", "0x") else 10),
    "float": float,
}


class _CoreLoader(yaml.SafeLoader):
    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {
        None: [(_TAG + kind, re.compile(rf"(?:{pattern})$")) for kind, pattern in _CORE.items()]
    }


def parsed_yaml(text: str) -> tuple[JsonValue, tuple[str, ...]]:
    """Return a YAML text as JSON sees it, and the rules that mended it.

    Raises:
        ValueError: it is no YAML, or its aliases stand for too much.

    >>> parsed_yaml("{200: 2024-01-01, on: no, at: 22:30, size: 0o17}")
    ({'200': '2024-01-01', 'on': 'no', 'at': '22:30', 'size': 15}, ())
    """
    mended = re.sub(r"[ \t]*\t[ \t]*$", "", text, flags=re.MULTILINE)
    budget = iter(range(len(text) + _MAX_WRITTEN_OUT))
    try:
        try:
            return _written_out(yaml.compose(text, _CoreLoader), budget), ()
        except ScannerError:
            if mended == text:
                raise
            return _written_out(yaml.compose(mended, _CoreLoader), budget), ("tab at the end of a YAML line removed",)
    except yaml.YAMLError as error:
        raise ValueError(f"no YAML: {error}") from error


def _written_out(node: yaml.Node | None, budget: Iterator[int]) -> JsonValue:
    """Return the value of a node; each value takes one of the budget."""
    if next(budget, None) is None:
        raise ValueError(f"its aliases stand for more than {_MAX_WRITTEN_OUT} values; write the document without them")
    if isinstance(node, yaml.ScalarNode):
        return _READ.get(node.tag.removeprefix(_TAG), str)(node.value)
    if isinstance(node, yaml.SequenceNode):
        return [_written_out(each, budget) for each in node.value]
    merged: dict[str, JsonValue] = {}
    own: dict[str, JsonValue] = {}
    for key, inner in [] if node is None else node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"line {key.start_mark.line + 1}: expected a text as a key, found {key.id}")
        value = _written_out(inner, budget)
        if key.tag == _TAG + "merge":
            for part in value if isinstance(value, list) else [value]:
                merged = {**part, **merged} if isinstance(part, dict) else merged
        else:  # as it is written: `200` and `1.10` are names
            own[key.value] = value
    return None if node is None else {**merged, **own}
