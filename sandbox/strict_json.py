"""JSON as both sides of the service mean it: finite numbers, bounded nesting, and one spelling of each reply.

Refused are NaN, infinities and numbers that overflow to one (`1e999`), because no reader after us could take them;
nesting beyond `MAX_NESTING`, because every reader after us recurses; and integers of more than 4,300 digits, as Python
does. In requests the last of two equal keys counts, as in Python. In replies the text must be the one that the
sandbox's own encoder writes: no key twice, no half of a surrogate pair, no other spelling of a number.
"""

from __future__ import annotations

import json
import math
from typing import Any

MAX_NESTING = 100  # lists and objects within each other in arguments, state and value


def parse(data: bytes, most_nesting: int) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is refused; the message is one line.

    >>> parse(b"[1e999]", 2)
    Traceback (most recent call last):
    ValueError: the number 1e999 is too large
    """
    try:
        value = _DECODER.decode(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    # Counting brackets, those in strings too, is cheap and enough for most.
    if data.count(b"[") + data.count(b"{") > most_nesting and nesting(value) > most_nesting:
        raise ValueError(f"nested too deeply: more than {MAX_NESTING} lists and objects within each other")
    return value


def parse_reply(data: bytes, most_nesting: int) -> Any:
    """Return the value of a JSON text that the sandbox's encoder wrote.

    Raises:
        ValueError: another encoder wrote it; the message is one line.

    >>> parse_reply(b'{"a":1,"a":2}', 1)
    Traceback (most recent call last):
    ValueError: two keys of an object are the same text: 'a'
    """
    value = parse(data, most_nesting)
    # Written again, it must come out the same: that refuses every second spelling without a list of them.
    if _ENCODER.encode(value).encode() != data:
        json.loads(data, object_pairs_hook=_refuse_same_keys)
        raise ValueError("it is not spelled as JSON is written here")
    return value


def nesting(value: Any) -> int:
    """Return how many lists and objects of a JSON value lie within each other.

    >>> nesting({"a": [{}, [], 1]}), nesting("[")
    (3, 0)
    """
    depth, level = 0, [value]
    while containers := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [inner for each in containers for inner in (each.values() if isinstance(each, dict) else each)]
    return depth


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:40]} is too large")
    return value


def _refuse_same_keys(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"two keys of an object are the same text: {key[:40]!r}")
        seen.add(key)


# Made once: `json.loads` and `json.dumps` make another for every text.
_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
