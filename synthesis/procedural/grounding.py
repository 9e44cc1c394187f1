"""Names and codes in an answer that stand in no source, and labels before another property's value.

An agent may report a result in words of its own: other words than names and codes are not checked. An invented
lower-case word is found only if the label of a field stands before it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from synthesis.records import JsonValue, ToolDocument
from synthesis.tools.names import words_of

_TOKEN: Final = re.compile(r"[A-Za-z0-9]+(?:['’_.:/-][A-Za-z0-9]+)*")
_OPENING: Final = re.compile(r"(?:^|[.!?:;：。！？；\n-]\s*)$")
_NOTHING: Final = re.compile(r"\s*(?:[:：,，.。;；]|如下|(?:is |are )?as follows|$)")


def words_of_documents(tools: Iterable[ToolDocument]) -> list[str]:
    """Return the words of tools' names, descriptions, parameters and outputs; the values that they list are no source.

    >>> schema = {"properties": {"hotelId": {"description": "Id of a hotel", "enum": ["H1"]}}}
    >>> words_of_documents([ToolDocument(name="find_hotel", description="Find one.", parameters=schema)])
    ['find hotel', 'Find one.', 'hotel id', 'Id of a hotel']
    """
    return [
        words
        for tool in tools
        for words in (
            " ".join(words_of(tool.name)),
            tool.description,
            *_fields(tool.parameters),
            *_fields(tool.output_schema),
        )
    ]


def _fields(schema: JsonValue) -> Iterator[str]:
    if isinstance(schema, dict):
        properties = schema.get("properties")
        for name, inner in properties.items() if isinstance(properties, dict) else ():
            yield " ".join(words_of(name))
            if isinstance(inner, dict) and "description" in inner:
                yield str(inner["description"])
            yield from _fields(inner)
        yield from _fields(schema.get("items"))


def unsourced(text: str, sources: Iterable[str]) -> list[str]:
    """Return the names and codes of a text that stand in no source, in order.

    A name is a capitalised word inside of a sentence, a code has digits and letters; numbers have a rule of their own.

    >>> unsourced("Here is the result: hotel Amber Fox, room H12, 3 nights.", ['{"name": "Amber Owl", "nights": 3}'])
    ['Fox', 'H12']
    """
    told: frozenset[str] = frozenset().union(*map(_told_by, sources))
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        has_letters = any(character.isalpha() for character in token)
        is_code = has_letters and any(character.isdigit() for character in token)
        is_name = len(token) > 1 and token[0].isupper() and _OPENING.search(text[: match.start()]) is None
        if (is_code or is_name) and token.casefold() not in told and not _pieces(token) <= told:
            found.append(token)
    return found


def _told_by(source: str) -> frozenset[str]:
    tokens = _TOKEN.findall(source)
    return frozenset(piece for token in tokens for piece in (token.casefold(), *_pieces(token)))


def _pieces(token: str) -> set[str]:
    if token.isalnum():
        return {token.casefold()}
    return {piece.casefold() for piece in re.split(r"[^A-Za-z0-9]+", token) if piece}


def mislabelled(text: str, facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the labels that stand in a text before something else, while their values do not stand in it.

    `facts` are (label, value) of the responses; a label before another one, or before `as follows`, claims nothing.
    A label that has several values, for several responses have the field, must have one for each time that it claims.
    A value that is a part of a label's own words does not stand there.

    >>> facts = [("level", "poor"), ("aqi", "35")]
    >>> mislabelled("Done. aqi 35, level good.", facts), mislabelled("Level poor at an aqi of 35.", facts)
    (['level'], [])
    >>> facts = [("status", "open"), ("status", "closed"), ("hours open", "4")]
    >>> mislabelled("status open, status lost.", facts), mislabelled("status lost, hours open 4.", facts)
    (['status'], ['status'])
    """
    values: dict[str, list[str]] = {}
    for label, value in facts:
        if label and label in text:
            values.setdefault(label, []).append(value)
    if not values:
        return []
    labels = _labels_in(text, values)
    begins = {place for place, _ in labels}
    claims: Counter[str] = Counter()
    for place, label in labels:
        after = text[place + len(label) :]
        next_place = len(text) - len(after.lstrip())
        if _NOTHING.match(after) is None and next_place not in begins:
            claims[label] += 1
    found: list[str] = []
    for label, count in claims.items():
        told = {
            place
            for value in values[label]
            for place in _places(value, text)
            if not any(start <= place and place + len(value) <= start + len(each) for start, each in labels)
        }
        # One value that is told may be claimed again and again; of several, each claim is of its own.
        is_covered = told and len(set(values[label])) == 1
        found += [label] * (0 if is_covered else max(0, count - len(told)))
    return found


def _labels_in(text: str, labels: Iterable[str]) -> list[tuple[int, str]]:
    """Return the places of labels; of labels that begin alike, the longest one that stands there counts."""
    places = sorted(
        ((place, label) for label in labels for place in _places(label, text)), key=lambda at: (at[0], -len(at[1]))
    )
    found: list[tuple[int, str]] = []
    for place, label in places:
        if not found or place >= found[-1][0] + len(found[-1][1]):
            found.append((place, label))
    return found


def stands_in(value: str, text: str) -> bool:
    """Say whether a value stands whole in a text, and not inside a longer number or word.

    >>> stands_in("3", "seat 13"), stands_in("13", "seat 13."), stands_in("水", "喝水")
    (False, True, True)
    """
    return any(True for _ in _places(value, text))


def _places(value: str, text: str) -> Iterator[int]:
    """Yield where a value stands whole. No pattern is compiled: there are as many as values."""
    has_edges = _is_of_a_word(value[:1]), _is_of_a_word(value[-1:])
    place = text.find(value)
    while place >= 0:
        end = place + len(value)
        is_inside = has_edges[0] and place > 0 and _is_of_a_word(text[place - 1])
        if not is_inside and not (has_edges[1] and _is_of_a_word(text[end : end + 1])):
            yield place
        place = text.find(value, place + 1)


def _is_of_a_word(character: str) -> bool:
    return character.isascii() and character.isalnum()
