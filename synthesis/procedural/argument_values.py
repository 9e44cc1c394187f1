"""Values for arguments and outputs, drawn by their names, subjects, schemas and examples.

The vocabulary (`argument_vocabulary.toml`) is wide and its parts combine, so that a small model has to copy a value
rather than remember it. A name may mean several kinds of value: the words of tool and server decide that the `address`
of a contract is no street.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, Final

from synthesis.answers.schema_fault import schema_fault
from synthesis.procedural.text_shapes import text_like
from synthesis.procedural.written_words import written_words
from synthesis.records import JsonObject, JsonValue, Language, ServerDocument, ToolDocument
from synthesis.tools.names import words_of
from synthesis.tools.nouns import is_identifier, singular
from synthesis.trajectories.bindings import scalar_type, settled, slot_name

_VOCABULARY: Final[Mapping[str, Any]] = written_words("argument_vocabulary")
_EXAMPLES: Final = re.compile(
    r"(?:\be\.g\.?|\bfor example\b|\bexamples?:|\bsuch as\b|例如|如[:：])[\s:,：，]*"
    r"(?:[`'\"“‘]([^`'\"“”‘’]{1,60})[`'\"”’]|([\w@./:#+-]{2,40}(?=[,;)\s]|$)))",
    re.IGNORECASE,
)
"""An example in a description, quoted or one word."""
_CHOICES: Final = re.compile(
    r"(?:\bone of\b|\boptions?\b|\ballowed\b|\beither\b|可选)[^:：.(\n]{0,40}[:：(]([^.)\n]{3,200})", re.IGNORECASE
)
_CHOICE: Final = re.compile(r"\s*[`'\"]?([\w./-]{1,30})[`'\"]?\s*(?:,|\||/|、|，|\bor\b|$)")
_SHARE_OF_EXAMPLES: Final = 0.6
"""Share of values that are a documented example, where there is one; the others are drawn, so that they vary."""


def known_or_drawn_value(
    server: ServerDocument, tool: ToolDocument, argument: str, schema: JsonObject, rng: Random
) -> JsonValue:
    """Draw a value that the server's operator lists for an argument, or one that fits its name and schema."""
    known = server.argument_values
    if listed := known.get(f"{tool.name}.{argument}") or known.get(argument):
        return rng.choice(listed)
    return drawn_value(argument, schema, rng, server.language, f"{server.name} {tool.name} {tool.description}")


def drawn_value(name: str, schema: JsonValue, rng: Random, language: Language, about: str = "") -> JsonValue:
    """Draw a value that fits a name and a schema; `about` are further words on the subject, such as the tool's.

    >>> text = {"type": "string"}
    >>> drawn_value("address", text, Random(0), "en"), drawn_value("address", text, Random(0), "en", "ERC-20 token")[:6]
    ('103 Elm Drive', '0xd18f')
    >>> drawn_value("days", {"type": "integer", "minimum": 2, "maximum": 2}, Random(0), "en")
    2
    >>> drawn_value("unit", {"enum": ["km"]}, Random(0), "en")
    'km'
    """
    schema = settled(schema)
    if "const" in schema:
        return schema["const"]
    # A user cannot say an empty choice.
    if choices := [choice for choice in schema.get("enum", ()) if choice not in ("", None)]:
        return rng.choice(choices)
    if examples := _documented(name, schema, rng):
        return rng.choice(examples)
    match scalar_type(schema):
        case "string":
            return _fitted(_text(name, schema, rng, language, about), schema, rng)
        case "integer":
            return int(_number(name, schema, rng, decimals=0))
        case "number":
            return _number(name, schema, rng, decimals=None)
        case "boolean":
            return rng.random() < 0.5
    if schema.get("type") == "array":
        least = max(1, schema.get("minItems", 1))
        count = min(rng.randint(least, max(least, 2)), schema.get("maxItems", least + 2))
        items = [drawn_value(singular(name), schema.get("items", {}), rng, language, about) for _ in range(count)]
        # Without repetitions, unless the schema asks for several: one fewer might be too few.
        return [item for index, item in enumerate(items) if item not in items[:index]] if least == 1 else items
    if schema.get("type") == "object" or "properties" in schema:
        properties = schema.get("properties", {})
        fields = schema.get("required") or list(properties)[:3]
        return {field: drawn_value(field, properties.get(field, {}), rng, language, about) for field in fields}
    return _text(name, {}, rng, language, about)


def _documented(name: str, schema: JsonObject, rng: Random) -> list[JsonValue]:
    """Return the choices that a description lists, or for a share of the draws its examples; empty without them."""
    found: list[JsonValue] = list(schema.get("examples") or ())
    if scalar_type(schema) == "string":
        described = str(schema.get("description", ""))
        if (listed := _CHOICES.search(described)) and len(choices := _CHOICE.findall(listed[1])) > 1:
            return [choice for choice in choices if not schema_fault(schema, choice, name)]
        found += [quoted or bare for quoted, bare in _EXAMPLES.findall(described)]
    # An example may break the schema that it stands in.
    usable = [example for example in found if not schema_fault(schema, example, name)]
    return usable if usable and rng.random() < _SHARE_OF_EXAMPLES else []


def _number(name: str, schema: JsonObject, rng: Random, decimals: int | None) -> int | float:
    lowest, highest, places = _range(name)
    places = places if decimals is None else decimals
    # Without a limit the inner default and the step of 1 cancel out.
    lowest = max(lowest, schema.get("minimum", schema.get("exclusiveMinimum", lowest - 1) + 1))
    highest = min(highest, schema.get("maximum", schema.get("exclusiveMaximum", highest + 1) - 1))
    if lowest > highest:  # the schema's limits lie outside the range of the name
        lowest = schema.get("minimum", schema.get("exclusiveMinimum", schema.get("maximum", 1) - 10) + 1)
        highest = max(lowest, min(lowest + 20, schema.get("maximum", lowest + 20)))
    if step := schema.get("multipleOf"):
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


def _text(name: str, schema: JsonObject, rng: Random, language: Language, about: str) -> str:
    words = words_of(name)
    subject = f"format:{schema.get('format', '')} {' '.join(words)} {schema.get('description', '')} {about}".lower()
    shape = schema.get("pattern") or _shape_of(slot_name(name), subject)
    if shape and (text := text_like(shape, rng)) is not None:
        return text
    if is_identifier(name) or (words and singular(words[-1]) in ("number", "serial", "hash", "sku")):
        letter = words[0][0].upper()
        return f"{letter if letter.isascii() else 'N'}{rng.randint(1000, 9999)}"
    return _named_text(words, rng, language, is_argument=bool(about))


def _shape_of(name: str, subject: str) -> str | None:
    """Return the shape of the first kind of text that a name stands for, and the subject allows."""
    kinds = (kind for kind in _VOCABULARY["kinds"] if re.search(kind["words"], name))
    return next((kind["shape"] for kind in kinds if re.search(kind["about"], subject)), None)


def _named_text(words: Sequence[str], rng: Random, language: Language, is_argument: bool) -> str:
    """Draw from the list that the last telling word of a name stands for; "product name" is a product's."""
    synonyms = _VOCABULARY["synonyms"]
    telling = [singular(word) for word in words if word != "name" or len(words) == 1]
    for word in reversed(telling):
        for key in (word, synonyms.get(word)):
            if key in _VOCABULARY[language] and key not in ("role", "constraint"):
                return phrase(key, rng, language)
            if key in _VOCABULARY["en"]:
                return phrase(key, rng, "en")
    # An argument without such a word gets its own name with a number; a topic would be no value of most of them.
    if is_argument and words and words[-1] != "name" and "".join(words).isascii():
        if words[-1] in _VOCABULARY["numbers"]:
            return str(_number(words[-1], {}, rng, decimals=None))
        return f"{words[-1]}-{rng.randint(2, 99)}"
    return phrase("title" if words and words[-1] == "name" else "topic", rng, language)


_JOINED_WITHOUT_SPACE: Final = frozenset(
    {"company", "username", "file", "path", "domain", "host", "code", "expression"}
)


def phrase(key: str, rng: Random, language: Language) -> str:
    """Draw a phrase of the vocabulary by its key, e.g. `role` or `constraint`."""
    separator = "" if key in _JOINED_WITHOUT_SPACE or language == "zh" else " "
    return separator.join(rng.choice(part) for part in _VOCABULARY[language][key])


def _fitted(text: str, schema: JsonObject, rng: Random) -> str:
    """Bring a text inside the schema's limits of length."""
    while len(text) < schema.get("minLength", 0):
        text = f"{text} {phrase('topic', rng, 'en')}"
    limit = schema.get("maxLength")
    if limit and len(text) > limit:
        letters = "ABCDEFGHJKLMNPRSTUVWXYZ"  # so short a text is a code, not the beginning of a word
        text = "".join(rng.choice(letters) for _ in range(limit)) if limit <= 5 else text[:limit].strip()
    return text
