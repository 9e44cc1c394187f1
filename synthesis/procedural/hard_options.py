"""Optional parameters of hard worlds' tools, whose settings the questions ask for in words.

Each property draws its option from the world's seed, so that a tool and its siblings have the same; each tool draws
the documented default. A question asks for one of the settings, and names each but the plain one in words; the call
sets the parameter unless the default is the setting asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from synthesis.procedural.written_words import written_words
from synthesis.records import JsonValue, Language, ToolDocument

OPTION_SHARE: Final = 0.6
"""Share of the attributes whose tools have an option."""
LEAST_YEARS: Final = 5
"""Least range of years in which years alone tell rows apart."""
PAGES: Final = 3


class ValueRange(NamedTuple):
    """The range of a number; of a date, its first and its last year."""

    least: float
    greatest: float
    unit: str = ""
    step: float = 0
    """Step from value to value; 0 for whole numbers and cents."""


OPTIONS: Final[Mapping[str, Any]] = written_words("hard_options")
"""Options by name: `settings` (the plain one first), `schema`, `sizes`; `en` and `zh` have words."""
_CODE: Final[Mapping[str, tuple[str, ...]]] = {
    "unit": ("if unit != 'one':", "    value = value / TABLES['sizes'][unit]"),
    "currency": ("if currency != 'USD':", "    value = round(value * TABLES['sizes'][currency], 2)"),
    "precision": ("value = value[: TABLES['sizes'][precision]]",),
    "last_four": ("if last_four:", "    value = value[-4:]"),
    "page": ("pages = value", "if not 0 < page <= len(pages):", "    raise ValueError('no such page')",
             "value = pages[page - 1]"),
}  # fmt: skip


def code_of(option: str | None) -> list[str]:
    """Return the lines of a tool that turn the looked-up `value` into the value that its option asks for."""
    if option is None:
        return []
    known = [f"if {option} not in TABLES['sizes']:", f"    raise ValueError(f'unknown {option}: {{{option}}}')"]
    return [*(known if "sizes" in OPTIONS[option] else []), *_CODE[option]]


def with_drawn_option(
    document: ToolDocument, key: tuple[str, str], kind: str, given: ValueRange | None, seed: int, language: Language
) -> ToolDocument:
    """Draw an option for the tools of a property, whose values are of this kind and in this range; or none.

    Funds have none, since the tools on a state have none. The default is this tool's own, except of a page and of a
    currency: a question without a word means the plain one.
    """
    if kind == "funds":
        return document
    rng, given = random.Random(f"option/{seed}/{key}"), given or ValueRange(0, 0)
    is_whole = kind in ("amount", "yearly")
    fitting = ["page"] if is_whole or kind == "decimal" else ["last_four"] if kind in ("code", "phone") else []
    fitting += [*(["currency"] if given.unit == "USD" else []), *(["unit"] if is_whole else [])]
    fitting += ["precision"] if kind == "date" and given.greatest - given.least >= LEAST_YEARS else []
    if not fitting or rng.random() >= OPTION_SHARE:
        return document
    of = OPTIONS[option := rng.choice(fitting)]
    of_tool = random.Random(f"default/{seed}/{document.name}")
    default = of["settings"][0] if option in ("page", "currency") else of_tool.choice(of["settings"])
    written = {option: {**of["schema"], "description": of[language]["described"], "default": default}}
    properties = {**document.parameters["properties"], **written}
    return document.model_copy(update={"parameters": {**document.parameters, "properties": properties}})


def option_of(document: ToolDocument) -> str | None:
    """Return the name of a generated document's option; None where it has none."""
    return next((name for name in document.parameters["properties"] if name not in document.required), None)


def set_value(option: str, setting: JsonValue, cell: JsonValue, seed: int) -> JsonValue:
    """Return the value of a property at a setting; earlier pages depend on the world's seed and the value alone.

    >>> set_value("precision", "month", "2024-05-01", 0), set_value("unit", "thousand", 4210, 0)
    ('2024-05', 4.21)
    """
    sizes = OPTIONS[option].get("sizes", {})
    match option:
        case "unit":
            return cell if setting == "one" else cell / sizes[setting]
        case "currency":
            return cell if setting == "USD" else round(cell * sizes[setting], 2)
        case "page":
            return paged(cell, f"{seed}/{cell}")[setting - 1]
        case "precision":
            return cell[: sizes[setting]]
    return cell[-4:] if setting else cell


def paged(number: float, key: str) -> list[float]:
    """Return a number and earlier ones, each at least a twentieth smaller, so that no page repeats another."""
    rng = random.Random(f"pages/{key}")
    pages = [number]
    while len(pages) < PAGES:
        pages.append(round(pages[-1] * rng.uniform(0.8, 0.95), 2 if isinstance(number, float) else None))
    return pages
