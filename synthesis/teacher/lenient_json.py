r"""JSON as language models write it: found inside prose, fences and thoughts, and read although it is not quite JSON.

What is mended has a name, by which it is counted (`Mended`). Nothing is made up: a value that is cut off, or that lacks
a comma or a colon, is no value.

    prose around it   {"a": 1,}   {'a': True}   {"a": "two
    lines"}   {"a": "\d"}   "{\"a\": 1}"

Decided: docs/decisions/teacher.md, “Replies are parsed leniently by our own reader and validated strictly”.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from synthesis.records import JsonValue

_MAX_DEPTH: Final = 100
_MAX_STARTS: Final = 200
"""So many brackets of a text are tried as the start of a value."""
_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])")
_WORD: Final = re.compile(r"[A-Za-z]+")
_WORDS: Final[dict[str, tuple[JsonValue, str]]] = {
    "true": (True, ""),
    "false": (False, ""),
    "null": (None, ""),
    "True": (True, "literals of Python"),
    "False": (False, "literals of Python"),
    "None": (None, "literals of Python"),
}
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\\x00-\x1f]+") for quote in "\"'"}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", "\\": "\\", '"': '"'}
_UNICODE: Final = re.compile(r"u([0-9a-fA-F]{4})")
_THOUGHTS_END: Final = ("</think>", "</thinking>", "</thought>", "</reasoning>")
_FENCE: Final = re.compile(r"```[\w+-]*+[ \t]*+\n?(.*?)```", re.DOTALL)


class Found(NamedTuple):
    """A value of a text, and what had to be mended to read it."""

    value: JsonValue
    mended: frozenset[str]


class _NotJson(ValueError):
    """Here stands no value."""

    def __init__(self, problem: str, place: int, *, is_broken: bool):
        super().__init__(f"{problem} at character {place}")
        self.is_broken = is_broken
        """Whether a value had begun: what stands in it is a part, and must not be taken for the whole."""


def json_values(text: str) -> Iterator[Found]:
    r"""Yield the values that a reply can be read as, the likeliest first: the whole of it, then from its end.

    >>> [found.value for found in json_values('Sure {here}: {"a": [1, 2,]}. Done {"b": 1}')]
    [{'b': 1}, {'a': [1, 2]}]
    >>> found = next(json_values('<think>{"a": 0}</think>\n```json\n{"a": 1}\n```'))
    >>> found.value, sorted(found.mended)
    ({'a': 1}, ['a fence', 'thoughts'])
    >>> list(json_values('{"a": {"b": 1}')), list(json_values('{"a": 1 "b": {}}'))
    ([], [])
    """
    try:
        yield from _as_whole(_strictly(text), frozenset())
        return
    except (ValueError, RecursionError):
        pass
    spoken = text[max(text.rfind(end) + len(end) if end in text else 0 for end in _THOUGHTS_END) :]
    mended = frozenset({"thoughts"} if spoken != text else ())
    if spoken.lstrip().startswith("<think"):  # they never end
        return
    try:
        yield from _as_whole(_strictly(spoken), mended)
        return
    except (ValueError, RecursionError):
        pass
    for block in reversed(_FENCE.findall(spoken)):
        for found in _values_inside(block):
            yield Found(found.value, found.mended | mended | {"a fence"})
    for found in _values_inside(spoken):
        yield Found(found.value, found.mended | mended)


def _as_whole(value: JsonValue, mended: frozenset[str]) -> Iterator[Found]:
    if isinstance(value, str):  # JSON of JSON
        for found in json_values(value):
            yield Found(found.value, found.mended | mended | {"JSON in a string"})
    else:
        yield Found(value, mended)


def _strictly(text: str) -> JsonValue:
    """Read JSON; what is no JSON, and a number that is none of ours, is a `ValueError`."""
    return json.loads(text, parse_constant=_no_number, parse_float=lambda digits: _finite(float(digits)))


def _finite(number: float) -> float:
    return number if math.isfinite(number) else _no_number(str(number))


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _values_inside(text: str) -> Iterator[Found]:
    """Yield the objects and lists that stand in a text, the last one first."""
    found: list[Found] = []
    place = 0
    for _ in range(_MAX_STARTS):
        start = min((at for at in (text.find("{", place), text.find("[", place)) if at >= 0), default=-1)
        if start < 0:
            break
        reader = _Reader(text)
        try:
            value, place = reader.value(start, 0)
        except _NotJson as error:
            if error.is_broken:
                break
            place = start + 1
        else:
            around = text[:start].strip() + text[place:].strip()
            found.append(Found(value, frozenset(reader.mended | ({"prose"} if around else set()))))
    yield from reversed(found)


class _Reader:
    """Reads one value from a place of a text on, by recursive descent."""

    def __init__(self, text: str):
        self._text = text
        self.mended: set[str] = set()

    def value(self, place: int, depth: int) -> tuple[JsonValue, int]:
        """Return the value that begins at a place, and where it ends.

        Raises:
            _NotJson: there is none.
        """
        text = self._text
        if depth > _MAX_DEPTH:
            raise _NotJson("nested too deeply", place, is_broken=True)
        place = self._after_space(place)
        head = text[place : place + 1]
        if head == "{":
            return self._object(place + 1, depth)
        if head == "[":
            return self._list(place + 1, depth)
        if head in ('"', "'") and head:
            return self._string(place)
        if number := _NUMBER.match(text, place):
            try:
                return _strictly(number[0]), number.end()
            except ValueError as error:  # too large, or too long
                raise _NotJson(str(error), place, is_broken=True) from error
        if (word := _WORD.match(text, place)) and word[0] in _WORDS:
            value, mended = _WORDS[word[0]]
            self.mended |= {mended} - {""}
            return value, word.end()
        raise _NotJson("expected a value", place, is_broken=place >= len(text))

    def _object(self, place: int, depth: int) -> tuple[dict[str, Any], int]:
        found: dict[str, Any] = {}
        while True:
            place = self._after_space(place)
            if self._text.startswith("}", place):
                self.mended |= {"a trailing comma"} if found else set()
                return found, place + 1
            if self._text[place : place + 1] not in ('"', "'"):
                # Braces of prose have no key; a brace that the text ends with may have been going to have one.
                is_broken = bool(found) or place >= len(self._text)
                raise _NotJson("expected a key", place, is_broken=is_broken)
            key, place = self._string(place)
            place = self._after_space(place)
            if not self._text.startswith(":", place):
                raise _NotJson("expected a colon", place, is_broken=True)
            try:
                found[key], place = self.value(place + 1, depth + 1)
            except _NotJson as error:
                error.is_broken = True
                raise
            place = self._after_space(place)
            if self._text.startswith("}", place):
                return found, place + 1
            if not self._text.startswith(",", place):
                raise _NotJson("expected a comma or a bracket", place, is_broken=True)
            place += 1

    def _list(self, place: int, depth: int) -> tuple[list[Any], int]:
        found: list[Any] = []
        while True:
            place = self._after_space(place)
            if self._text.startswith("]", place):
                self.mended |= {"a trailing comma"} if found else set()
                return found, place + 1
            value, place = self.value(place, depth + 1)
            found.append(value)
            place = self._after_space(place)
            if self._text.startswith("]", place):
                return found, place + 1
            if not self._text.startswith(",", place):
                is_prose = not any(isinstance(item, dict | list) for item in found) and place < len(self._text)
                raise _NotJson("expected a comma or a bracket", place, is_broken=not is_prose)
            place += 1

    def _string(self, place: int) -> tuple[str, int]:
        text, quote = self._text, self._text[place]
        if quote == "'":
            self.mended.add("single quotes")
        parts: list[str] = []
        place += 1
        while True:
            if plain := _PLAIN[quote].match(text, place):
                parts.append(plain[0])
                place = plain.end()
            if place >= len(text):
                raise _NotJson("a text that does not end", place, is_broken=True)
            if text[place] == quote:
                return "".join(parts), place + 1
            if text[place] == "\\":
                part, place = self._escape(place + 1)
            else:
                self.mended.add("raw newlines")
                part, place = text[place], place + 1
            parts.append(part)

    def _escape(self, place: int) -> tuple[str, int]:
        escaped = self._text[place : place + 1]
        if escaped in _ESCAPES and escaped:
            return _ESCAPES[escaped], place + 1
        if code := _UNICODE.match(self._text, place):
            # A character beyond the first plane is two of them.
            second = re.compile(r"\\u([dD][c-fC-F][0-9a-fA-F]{2})").match(self._text, code.end())
            if 0xD800 <= int(code[1], 16) < 0xDC00 and second:
                return json.loads(f'"\\u{code[1]}\\u{second[1]}"'), second.end()
            return chr(int(code[1], 16)), code.end()
        if escaped == "'":
            return "'", place + 1
        self.mended.add("unknown escapes")  # such as \d of a regular expression: the backslash is meant
        return "\\", place

    def _after_space(self, place: int) -> int:
        space = _SPACE.match(self._text, place)
        return place if space is None else space.end()
