r"""JSON as language models write it: found in prose, fences and thoughts, its form mended.

Each kind of mending has a name, by which it is counted. Nothing is made up: a value that is cut off, or that lacks a
comma or a colon, is no value.

    prose around it   {"a": 1,}   {'a': True}   {"a": "two
    lines"}   {"a": "\d"}   "{\"a\": 1}"

Decided: docs/decisions/teacher.md, “Replies are parsed leniently by our own reader and validated strictly”.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from synthesis.foreign_messages import strict_json
from synthesis.records import JsonValue

_MAX_DEPTH: Final = 100
_MAX_STARTS: Final = 200
"""Maximum number of brackets in a text that are tried as the start of a value."""
_TOKEN: Final = re.compile(
    r"""\s*+(?:
        (?P<mark>[][{}:,])
        | "(?P<double>(?>(?:[^"\\]|\\.)*))"
        | '(?P<single>(?>(?:[^'\\]|\\.)*))'
        | (?P<number>-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?(?![\w.]))
        | (?P<word>true|false|null|True|False|None)(?![A-Za-z])
    )""",
    re.DOTALL | re.VERBOSE,
)
_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
_IN_A_STRING: Final = re.compile(r"""\\u[0-9a-fA-F]{4}|\\.|["\x00-\x1f]""", re.DOTALL)
_THOUGHTS_END: Final = ("</think>", "</thinking>", "</thought>", "</reasoning>")
_FENCE: Final = re.compile(r"```[\w+-]*+[ \t]*+\n?(.*?)```", re.DOTALL)


class Found(NamedTuple):
    """A value of a text, and the mendings that its reading needed."""

    value: JsonValue
    mended: frozenset[str]


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
    spoken = text[max(text.rfind(end) + len(end) if end in text else 0 for end in _THOUGHTS_END) :]
    mended = frozenset({"thoughts"} if spoken != text else ())
    for whole, mended_so_far in ((text, frozenset[str]()), (spoken, mended)):
        try:
            value = strict_json(whole, "reply", "JSON")
        except ValueError:
            continue
        if not isinstance(value, str):
            yield Found(value, mended_so_far)
            return
        for found in json_values(value):  # JSON of JSON
            yield Found(found.value, found.mended | mended_so_far | {"JSON in a string"})
        return
    if spoken.lstrip().startswith("<think"):  # they never end
        return
    parts = [(block, mended | {"a fence"}) for block in reversed(_FENCE.findall(spoken))]
    for part, mended_so_far in (*parts, (spoken, mended)):
        for found in _values_inside(part):
            yield Found(found.value, found.mended | mended_so_far)


def _values_inside(text: str) -> Iterator[Found]:
    """Yield the objects and lists that stand in a text, the last one first."""
    found: list[Found] = []
    place = 0
    for _ in range(_MAX_STARTS):
        start = min((at for at in (text.find("{", place), text.find("[", place)) if at >= 0), default=-1)
        if start < 0:
            break
        tokens, place, mended = _tokens(text, start)
        try:
            value = json.loads("".join(tokens))
        except ValueError:
            if _has_begun(tokens, text[place:]):  # the values inside are a part, and must not be taken for the whole
                break
            place = start + 1
        else:
            around = text[:start].strip() + text[place:].strip()
            found.append(Found(value, mended | ({"prose"} if around else frozenset())))
    yield from reversed(found)


def _tokens(text: str, start: int) -> tuple[list[str], int, frozenset[str]]:
    """Return the tokens of the value that begins with a bracket as JSON writes them, their end, and the mendings.

    They end with the last bracket of the value, before a text that is no token, or at `_MAX_DEPTH`.
    """
    tokens: list[str] = []
    mended: set[str] = set()

    def in_json(part: re.Match[str]) -> str:
        return _in_json(part[0], mended)

    depth, place = 0, start
    while (token := _TOKEN.match(text, place)) and depth <= _MAX_DEPTH:
        kind, said = token.lastgroup, token[token.lastgroup or 0]
        if tokens[-1:] == ["{"] and kind not in ("double", "single") and said != "}":  # a brace of prose has no key
            break
        if kind == "number":
            try:
                strict_json(said, "reply", "JSON")
            except ValueError:  # larger than a double, or too long
                break
        elif kind == "word":
            mended |= {"literals of Python"} if said in _PYTHON else set()
            said = _PYTHON.get(said, said)
        elif kind != "mark":
            mended |= {"single quotes"} if kind == "single" else set()
            said = f'"{_IN_A_STRING.sub(in_json, said)}"'
        elif said in "]}" and tokens[-1] == "," and tokens[-2] not in "[{,:":
            mended.add("a trailing comma")
            tokens.pop()
        tokens.append(said)
        place = token.end()
        depth += (said in "[{") - (said in "]}") if kind == "mark" else 0
        if not depth:
            break
    return tokens, place, frozenset(mended)


def _in_json(part: str, mended: set[str]) -> str:
    """Return a quote, a control character or an escape of a string as JSON writes it."""
    if part == '"':
        return '\\"'
    if len(part) == 1:
        mended.add("raw newlines")
        return f"\\u{ord(part):04x}"
    if part == "\\'":
        return "'"
    if len(part) > 2 or part[1] in '"\\/bfnrt':
        return part
    mended.add("unknown escapes")  # such as \d of a regular expression: the backslash is meant
    return "\\\\" + _IN_A_STRING.sub(lambda inner: _in_json(inner[0], mended), part[1])


def _has_begun(tokens: list[str], rest: str) -> bool:
    """Say whether tokens are a value that was cut off or is broken, and not brackets of prose."""
    rest = rest.lstrip()
    is_object = any(a == "{" and b.startswith('"') for a, b in itertools.pairwise(tokens))
    is_deep = sum(token in "[{" for token in tokens) > _MAX_DEPTH
    return is_object or is_deep or "]" in tokens or rest[:1] in ("", '"', "'")
