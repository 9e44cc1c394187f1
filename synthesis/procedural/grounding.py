"""What an answer says that nobody told it: names and codes that stand in no source, labels before another's value.

Nothing is asked of the words with which a result is reported, so that an agent may report it in words of its own. A
lower-case word that was made up is found where the label of a field stands before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from synthesis.records import JsonValue, ToolDocument
from synthesis.tools.names import words_of

_TOKEN: Final = re.compile(r"[A-Za-z0-9]+(?:['’_.:/-][A-Za-z0-9]+)*")
_OPENING: Final = re.compile(r"(?:^|[.!?:;：。！？；\n-]\s*)$")
_NOTHING: Final = r"\s*(?:[:：,，.。;；]|如下|(?:is |are )?as follows|$)"


def words_of_documents(tools: Iterable[ToolDocument]) -> list[str]:
    """Return what tools call themselves, what they take and what they return; the values that they list are no source.

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
    told: set[str] = set()
    for source in sources:
        for token in _TOKEN.findall(source):
            told |= {token.casefold(), *_pieces(token)}
    found = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        has_letters = any(character.isalpha() for character in token)
        is_code = has_letters and any(character.isdigit() for character in token)
        is_name = len(token) > 1 and token[0].isupper() and _OPENING.search(text[: match.start()]) is None
        if (is_code or is_name) and token.casefold() not in told and not _pieces(token) <= told:
            found.append(token)
    return found


def _pieces(token: str) -> set[str]:
    return {piece.casefold() for piece in re.split(r"[^A-Za-z0-9]+", token) if piece}


def mislabelled(text: str, facts: Sequence[tuple[str, str]]) -> list[str]:
    """Return the labels that stand in a text before something else, while none of their values stands in it.

    `facts` are (label, value) of what was returned; a label before another one, or before `as follows`, claims nothing.

    >>> facts = [("level", "poor"), ("aqi", "35")]
    >>> mislabelled("Done. aqi 35, level good.", facts), mislabelled("Level poor at an aqi of 35.", facts)
    (['level'], [])
    """
    values: dict[str, list[str]] = {}
    for label, value in facts:
        if label and label in text:
            values.setdefault(label, []).append(value)
    if not values:
        return []
    # Of labels that begin alike the longest is the one that stands there.
    labels = "|".join(_whole(label) for label in sorted(values, key=len, reverse=True))
    claims_nothing = re.compile(rf"{_NOTHING}|\s*(?:{labels})")
    return [
        match[0]
        for match in re.finditer(labels, text)
        if claims_nothing.match(text, match.end()) is None
        and not any(stands_in(value, text) for value in values[match[0]])
    ]


def stands_in(value: str, text: str) -> bool:
    """Say whether a value stands whole in a text, and not inside a longer number or word.

    >>> stands_in("3", "seat 13"), stands_in("13", "seat 13."), stands_in("水", "喝水")
    (False, True, True)
    """
    return value in text and re.search(_whole(value), text) is not None


def _whole(value: str) -> str:
    before = r"(?<![A-Za-z0-9])" if value[:1].isascii() and value[:1].isalnum() else ""
    after = r"(?![A-Za-z0-9])" if value[-1:].isascii() and value[-1:].isalnum() else ""
    return f"{before}{re.escape(value)}{after}"
