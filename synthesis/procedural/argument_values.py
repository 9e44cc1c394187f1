"""Values for arguments and outputs, drawn by their names, types, formats and limits.

The vocabulary (`argument_vocabulary.toml`) is wide and its parts combine, so that a small model has to copy a value
rather than remember it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from importlib.resources import files
from random import Random
from typing import Any, Final

from synthesis.records import JsonObject, JsonValue, Language, ServerDocument, ToolDocument
from synthesis.tools.names import words_of
from synthesis.tools.nouns import is_identifier, singular
from synthesis.trajectories.bindings import scalar_type

_VOCABULARY: Final[Mapping[str, Any]] = tomllib.loads(
    files("synthesis.procedural").joinpath("argument_vocabulary.toml").read_text(encoding="utf-8")
)
_FIRST_DAY: Final = date(2026, 3, 2)


def known_or_drawn_value(
    server: ServerDocument, tool: ToolDocument, argument: str, schema: JsonObject, rng: Random
) -> JsonValue:
    """Draw a value that the server's operator lists for an argument, or one that fits its name and schema."""
    listed = server.argument_values.get(f"{tool.name}.{argument}") or server.argument_values.get(argument)
    if listed:
        return rng.choice(listed)
    return drawn_value(argument, schema, rng, server.language)


def drawn_value(name: str, schema: JsonValue, rng: Random, language: Language) -> JsonValue:
    """Draw a value that fits a name and a schema.

    >>> drawn_value("days", {"type": "integer", "minimum": 2, "maximum": 2}, Random(0), "en")
    2
    >>> drawn_value("unit", {"enum": ["km"]}, Random(0), "en")
    'km'
    """
    if not isinstance(schema, dict):
        schema = {}
    if "const" in schema:
        return schema["const"]
    # A user cannot say an empty choice.
    if choices := [choice for choice in schema.get("enum", ()) if choice not in ("", None)]:
        return rng.choice(choices)
    match scalar_type(schema):
        case "string":
            return _fitted(_text(name, schema, rng, language), schema, rng)
        case "integer":
            return int(_number(name, schema, rng, decimals=0))
        case "number":
            return _number(name, schema, rng, decimals=None)
        case "boolean":
            return rng.random() < 0.5
    if schema.get("type") == "array":
        least = max(1, schema.get("minItems", 1))
        count = min(rng.randint(least, max(least, 2)), schema.get("maxItems", least + 2))
        items = [drawn_value(singular(name), schema.get("items", {}), rng, language) for _ in range(count)]
        # Without repetitions, unless the schema asks for several: one fewer might be too few.
        return [item for index, item in enumerate(items) if item not in items[:index]] if least == 1 else items
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        fields = schema.get("required") or list(properties)[:3]
        return {field: drawn_value(field, properties.get(field, {}), rng, language) for field in fields}
    for alternative in schema.get("anyOf") or schema.get("oneOf") or ():
        if isinstance(alternative, dict) and alternative.get("type") != "null":
            return drawn_value(name, alternative, rng, language)
    return _text(name, {}, rng, language)


def _number(name: str, schema: JsonObject, rng: Random, decimals: int | None) -> int | float:
    lowest, highest, places = _range(name)
    if decimals is not None:
        places = decimals
    # Without a limit the inner default and the step of 1 cancel out.
    lowest = max(lowest, schema.get("minimum", schema.get("exclusiveMinimum", lowest - 1) + 1))
    highest = min(highest, schema.get("maximum", schema.get("exclusiveMaximum", highest + 1) - 1))
    if lowest > highest:  # the schema's limits lie outside the range of the name
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", schema.get("maximum", 1) - 10) + 1)
        highest = max(lowest, min(lowest + 20, schema.get("maximum", lowest + 20)))
    step = schema.get("multipleOf")
    if step:
        first, last = -(-lowest // step), highest // step  # rounded up and down to whole steps
        return rng.randint(int(first), int(max(first, last))) * step
    if places == 0:
        return rng.randint(int(lowest), int(highest))
    return round(rng.uniform(lowest, highest), places)


def is_number(name: str) -> bool:
    """Say whether a value is a number by its name alone.

    >>> is_number("temperature"), is_number("weather")
    (True, False)
    """
    return any(word in _VOCABULARY["numbers"] for word in words_of(name)[-1:])


def _range(name: str) -> tuple[float, float, int]:
    numbers = _VOCABULARY["numbers"]
    for word in reversed(words_of(name)):  # the last word tells most: `max_price` is a price
        if found := numbers.get(word) or numbers.get(f"{word}s"):
            return found[0], found[1], found[2]
    return 1, 60, 0


def _text(name: str, schema: JsonObject, rng: Random, language: Language) -> str:
    words = words_of(name)
    last = singular(words[-1]) if words else ""
    day = _FIRST_DAY + timedelta(days=rng.randint(0, 120))
    text_format = schema.get("format", "")
    described = str(schema.get("description", "")).lower()
    if text_format == "date-time" or last in ("datetime", "timestamp"):
        return f"{day.isoformat()}T{rng.randint(7, 21):02d}:{rng.choice((0, 15, 30, 45)):02d}:00Z"
    if text_format == "date" or last in ("date", "checkin", "checkout", "deadline", "since", "until", "birthday"):
        return day.isoformat()
    if text_format == "time" or last == "time" or "hh:mm" in described:
        return f"{rng.randint(7, 21):02d}:{rng.choice((0, 15, 30, 45)):02d}"
    if text_format == "email" or last == "email":
        return _combined("email_name", rng, "en")
    if text_format in ("uri", "url") or last in ("url", "uri", "link", "website", "webpage"):
        return f"https://{_combined('domain', rng, 'en')}/{rng.choice(('news', 'about', 'item', 'docs'))}"
    if last in ("phone", "mobile", "telephone"):
        return f"555-{rng.randint(1000, 9999)}"
    if text_format == "uuid" or is_identifier(name) or last in ("number", "serial", "hash", "sku", "isbn"):
        letter = (words[0] if words else "x")[0].upper()
        return f"{letter if letter.isascii() else 'N'}{rng.randint(1000, 9999)}"
    return _named_text(words, rng, language)


def _named_text(words: Sequence[str], rng: Random, language: Language) -> str:
    """Draw from the list that the last telling word of a name stands for; "product name" is a product's."""
    synonyms = _VOCABULARY["synonyms"]
    telling = [singular(word) for word in words if word != "name" or len(words) == 1]
    for word in reversed(telling):
        for key in (word, synonyms.get(word)):
            if key in _VOCABULARY[language] and key not in ("role", "constraint"):
                return _combined(key, rng, language)
            if key in _VOCABULARY["en"]:
                return _combined(key, rng, "en")
    return _combined("title" if words and words[-1] == "name" else "topic", rng, language)


_JOINED_WITHOUT_SPACE: Final = frozenset(
    {"company", "username", "file", "path", "domain", "host", "code", "email_name", "expression"}
)


def _combined(key: str, rng: Random, language: Language) -> str:
    separator = "" if key in _JOINED_WITHOUT_SPACE or language == "zh" else " "
    return separator.join(rng.choice(part) for part in _VOCABULARY[language][key])


def _fitted(text: str, schema: JsonObject, rng: Random) -> str:
    """Bring a text inside the schema's limits of length."""
    while len(text) < schema.get("minLength", 0):
        text = f"{text} {_combined('topic', rng, 'en')}"
    limit = schema.get("maxLength")
    if limit and len(text) > limit:
        letters = "ABCDEFGHJKLMNPRSTUVWXYZ"  # so short a text is a code, not the beginning of a word
        text = "".join(rng.choice(letters) for _ in range(limit)) if limit <= 5 else text[:limit].strip()
    return text


def phrase(key: str, rng: Random, language: Language) -> str:
    """Draw a phrase of the vocabulary by its key, e.g. `role` or `constraint`."""
    return _combined(key, rng, language)
