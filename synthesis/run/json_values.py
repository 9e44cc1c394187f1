"""JSON values: their canonical form, which hashes are taken of, and the texts inside them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

JsonValue: TypeAlias = Any
"""Any value that `json.loads` returns."""

JsonObject: TypeAlias = dict[str, Any]

# `json.dumps` would make an encoder for each call, and a run hashes hundreds of thousands of values.
_CANONICAL: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: JsonValue) -> str:
    """Return a JSON value in its canonical form: sorted keys, no spaces, characters beyond ASCII as they are.

    >>> canonical_json({"b": 1, "a": "房"})
    '{"a":"房","b":1}'
    """
    return _CANONICAL.encode(value)


def texts_in(value: JsonValue) -> Iterator[str]:
    """Yield every text inside a JSON value; keys of objects do not count.

    >>> list(texts_in({"a": ["x", {"b": "y"}], "c": 3}))
    ['x', 'y']
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from texts_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from texts_in(inner)
