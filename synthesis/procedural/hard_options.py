"""Optional parameters of hard worlds' tools, whose settings the questions ask for in words.

Each tool draws its option and the documented default from the world's seed. A question asks for one of the settings,
and names each but the plain one in words; the call sets the parameter unless the default is the setting asked for.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Final, TypeAlias

from pydantic import BaseModel, ConfigDict

from synthesis.records import JsonObject, JsonValue, Language, ToolDocument

OPTION_SHARE: Final = 0.6
"""Share of the tools of attributes that have an option."""
LEAST_YEARS: Final = 5
PAGES: Final = 3
ValueRange: TypeAlias = tuple[float, float, str, float]
"""Least and greatest value, unit and step (0 for whole numbers and cents); of a date the first and the last year."""


class OptionWords(BaseModel):
    """The words for an option in one language."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    described: str
    phrases: tuple[str, ...]
    """Words around a property {x}, by setting."""


class HardOption(BaseModel):
    """An optional parameter of a lookup."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    settings: tuple[bool | int | str, ...]
    """The settings a question may ask for, the plain one first."""
    tables: JsonObject
    """Data that the code reads."""
    en: OptionWords
    zh: OptionWords

    @property
    def schema_of_parameter(self) -> JsonObject:
        """JSON Schema of the parameter."""
        match self.settings[0]:
            case bool():
                return {"type": "boolean"}
            case int():
                return {"type": "integer", "minimum": 1}
        return {"type": "string", "enum": list(self.settings)}


@cache
def hard_options() -> Mapping[str, HardOption]:
    """Return the options by name."""
    text = files(__package__).joinpath("hard_options.toml").read_text(encoding="utf-8")
    return {name: HardOption.model_validate(fields) for name, fields in tomllib.loads(text).items()}


CODE: Final[Mapping[str, tuple[str, ...]]] = {
    "unit": (
        "if unit not in TABLES['unit_sizes']:",
        "    raise ValueError(f'unknown unit: {unit}')",
        "value = value if unit == 'one' else value / TABLES['unit_sizes'][unit]",
    ),
    "currency": (
        "if currency not in TABLES['rates']:",
        "    raise ValueError(f'unknown currency: {currency}')",
        "if currency != TABLES['base']:",
        "    value = round(value * TABLES['rates'][currency], 2)",
    ),
    "page": (
        "pages = value",
        "if not 0 < page <= len(pages):",
        "    raise ValueError(f'no page {page} of {len(pages)}')",
        "value = pages[page - 1]",
    ),
    "precision": (
        "if precision not in TABLES['precision_lengths']:",
        "    raise ValueError(f'unknown precision: {precision}')",
        "value = value[: TABLES['precision_lengths'][precision]]",
    ),
    "last_four": ("if last_four:", "    value = value[-4:]"),
}
"""Lines of a tool that turn the looked-up `value` into the value that its option asks for."""


def option_for(rng: random.Random, kind: str, given: ValueRange | None) -> str | None:
    """Draw the option of a tool whose values are of this kind and in this range; None for a tool without one."""
    least, greatest, unit, _ = given or (0, 0, "", 0)
    fitting = ["page"] if kind in ("amount", "funds", "yearly", "decimal") else []
    fitting += ["currency"] if unit == "USD" else []
    fitting += ["unit"] if kind in ("amount", "funds", "yearly") else []
    fitting += ["precision"] if kind == "date" and greatest - least >= LEAST_YEARS else []  # years must tell rows apart
    fitting += ["last_four"] if kind in ("code", "phone") else []
    return rng.choice(fitting) if fitting and rng.random() < OPTION_SHARE else None


def with_hard_option(document: ToolDocument, option: str, rng: random.Random, language: Language) -> ToolDocument:
    """Add an option to a document, with a default that is drawn; a page's is the first."""
    of = hard_options()[option]
    default = 1 if option == "page" else rng.choice(of.settings)
    words = of.zh if language == "zh" else of.en
    written = {**of.schema_of_parameter, "description": words.described, "default": default}
    properties = {**document.parameters["properties"], option: written}
    return document.model_copy(update={"parameters": {**document.parameters, "properties": properties}})


def set_value(option: str, setting: JsonValue, cell: JsonValue, key: str) -> JsonValue:
    """Return the value of a property at a setting; `key` names the cell, whose earlier pages are drawn from it.

    >>> set_value("precision", "month", "2024-05-01", ""), set_value("unit", "thousand", 4210, "")
    ('2024-05', 4.21)
    """
    match option, setting:
        case "unit", "thousand":
            return cell / 1000
        case "currency", "EUR":
            return round(cell * hard_options()[option].tables["rates"][setting], 2)
        case "page", _:
            return paged(cell, key)[setting - 1]
        case "precision", _:
            return cell[: hard_options()[option].tables["precision_lengths"][setting]]
        case "last_four", True:
            return cell[-4:]
    return cell


def paged(number: float, key: str) -> Sequence[float]:
    """Return a number and earlier, smaller ones, each at least a twentieth smaller than the one before."""
    rng = random.Random(f"pages/{key}")
    pages = [number]
    while len(pages) < PAGES:
        pages.append(round(pages[-1] * rng.uniform(0.8, 0.95), 2 if isinstance(number, float) else None))
    return pages
