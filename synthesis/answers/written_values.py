"""The value of a text: a number, a quantity with its unit, a date, or the text itself.

    "8,000,000"  "8 million"  "800万"          the number 8000000
    "5 km"  "5,000 metres"  "5公里"             the quantity 5000 m
    "3 March 2021"  "2021年3月3日"  "2021/3/3"  the date 2021-03-03

Only texts with one possible reading are read. Not read: 03/04/2021 and 1,5, which differ between countries; digits
without a mark of a number, such as "5", "007" and "1.10", which may be a code or a version (a number has a type of its
own in JSON); 1e5, 5M and other marks of codes; texts with digits in two places. A unit is converted if the factor is
exact by definition; one currency never into another, and percent never into percentage points. Any other word must be
the same ("8 million people"), and the number before it is no fraction ("3.10 LTS" is no "3.1 LTS") unless it is marked
("8.2 million people"). Nothing is rounded.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from synthesis.nfkc import nfkc

_WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SCALES: Final[dict[str, int]] = _WORDS["scales"]
MONTHS: Final = tuple(_WORDS["months"].split())
UNITS: Final[list[list[str]]] = _WORDS["units"]
"""Each unit's kind, its factor to the kind's unit of factor 1, its names; an underscore stands for a space."""


def _is_cased(name: str) -> bool:
    # 5 m are metres, and 5 M are not; 5 mWh are no 5 MWh.
    return name.isascii() and (len(name) < 3 or name.endswith("Wh"))


_UNIT_BY_NAME: Final = {
    spelling: (kind.upper(), Decimal(factor))
    for kind, factor, names in UNITS
    for name in (each.replace("_", " ") for each in nfkc(names).split())
    for spelling in ({name} if _is_cased(name) else {name, name.casefold()})
}
"""Kind and factor by name of a unit. Kinds are in capitals and counted words are not, so 5 "length" are no 5 m."""
_CURRENCIES: Final = ("US$", "HK$", "$", "€", "£", "¥", "USD", "HKD", "CAD", "AUD", "EUR", "GBP", "CNY", "RMB", "JPY")
_MONEY: Final = {_UNIT_BY_NAME[name][0] for name in _CURRENCIES}

LETTER: Final = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"
"""Pattern of a letter or digit in a script that separates words; a Chinese character may stand beside any value."""
_NAMES: Final = sorted(_UNIT_BY_NAME, key=lambda name: (-len(name), name))
_UNIT_AFTER: Final = re.compile(
    # The longest name first, and whole; Chinese puts nothing between words, so a few longer ones are named.
    r"\s*(?!周年|周岁|元素|吨位|吨公里|码头|升级)"
    rf"(?P<name>{'|'.join(re.escape(name) if _is_cased(name) else f'(?i:{re.escape(name)})' for name in _NAMES)})"
    rf"(?:(?<=[\u3400-\u9fff])|(?!{LETTER}))".replace(r"\ ", r"\s")
)
_BEFORE: Final = f"(?i:{'|'.join(map(re.escape, _CURRENCIES))})"
_CURRENCY_BEFORE: Final = re.compile(rf"(?<!{LETTER})(?P<name>{_BEFORE})\s?$")
_SHORT_SCALE: Final = re.compile(rf"\s?(?i:k|mm?|mn|bn?|tn?)(?!{LETTER})")
_RATE: Final = re.compile(r"\s?/\s?[^\W0-9]|\^|每")
WITH_DIGITS: Final = "|".join(re.escape(name) for name in _NAMES if re.search("[0-9]", name))
"""Pattern of the units whose names hold a digit, such as m2."""
_ENGLISH_SCALES: Final = "|".join(name for name in SCALES if name.isascii())
_CHINESE_SCALES: Final = "|".join(sorted((name for name in SCALES if not name.isascii()), key=len, reverse=True))
SCALE: Final = (
    # 千米, 千克 and 百分点 are units: 5千米 are 5 km. ASCII alone has case: "ı" would match
    # an "i", and `lower` makes none of it.
    rf"(?:(?ai:(?:{_ENGLISH_SCALES})s?(?![a-z]))|(?!千(?:[米克瓦卡焦赫帕伏兆]|字节)|百[分帕])(?:{_CHINESE_SCALES}))"
)
"""Pattern of a scale, such as million or 万."""

# Repeats are bounded: a text may be ten thousand digits.
DIGITS: Final = r"(?:0|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,10}|[1-9][0-9]{0,40})(?:\.[0-9]{1,20})?"
_QUANTITY: Final = re.compile(
    rf"(?P<minus>-?)(?P<before>{_BEFORE})? ?(?P<sign>-?)(?P<digits>{DIGITS})"
    rf"(?P<after>[^0-9]{{0,48}}|[^0-9]{{0,16}}(?i:{WITH_DIGITS}))"
)
_SCALED: Final = re.compile(rf" ?(?P<scale>{SCALE})(?P<after>.*)")
POWER_OR_FRACTION: Final = re.compile("(?<=[0-9\u3400-\u9fff])(?=[²³¹¼-¾⁰-ₜ⅐-↉])")
"""Pattern of the places where NFKC would lose a power or a fraction: 10² is no 102."""
_EXACT: Final = Context(prec=500)
"""Context of decimal arithmetic with more digits than any number that is read."""
_MONTH: Final = "|".join(f"{name}|{name[:3]}" for name in MONTHS) + "|sept"
_DATES: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})",
        r"(?P<year>[0-9]{4})/(?P<month>[0-9]{1,2})/(?P<day>[0-9]{1,2})",
        r"(?P<year>[0-9]{4}) ?年 ?(?P<month>[0-9]{1,2}) ?月 ?(?P<day>[0-9]{1,2}) ?[日号]",
        rf"(?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<month>{_MONTH})\.?,? (?P<year>[0-9]{{4}})",
        rf"(?P<month>{_MONTH})\.? (?P<day>[0-9]{{1,2}})(?:st|nd|rd|th)?,? (?P<year>[0-9]{{4}})",
    )
)


@dataclass(frozen=True)
class Quantity:
    """A number of something."""

    number: int | Decimal
    """The exact number; an integer if it is whole."""
    what: str = ""
    """Kind of the unit in capitals, or the counted noun in lower case; empty for a number alone."""


@lru_cache(maxsize=8192)  # one gold answer is compared with every tool response of its episodes
def value_of(text: str) -> Quantity | date | None:
    """Return the value of a whole text; None if it is not certainly a number, a quantity or a date.

    >>> value_of("8 million"), value_of("800万"), value_of("5 km")
    (Quantity(number=8000000, what=''), Quantity(number=8000000, what=''), Quantity(number=5000, what='LENGTH'))
    >>> value_of("March 3, 2021"), value_of("03/04/2021"), value_of("7"), value_of("Room 12")
    (datetime.date(2021, 3, 3), None, None, None)
    """
    if not text.isascii() and POWER_OR_FRACTION.search(text):
        return None
    plain = " ".join(nfkc(text).replace("−", "-").split())
    if not any(character.isdigit() for character in plain):
        return None
    return _date_of(plain.casefold()) or _quantity_of(plain)


def _date_of(plain: str) -> date | None:
    for pattern in _DATES:
        if found := pattern.fullmatch(plain):
            month = found["month"]
            number = int(month) if month.isdigit() else [name[:3] for name in MONTHS].index(month[:3]) + 1
            try:
                return date(int(found["year"]), number, int(found["day"]))
            except ValueError:  # no such day: a code that looks like one
                return None
    return None


def _quantity_of(plain: str) -> Quantity | None:
    found = _QUANTITY.fullmatch(plain)
    if found is None or (found["minus"] and found["sign"]):
        return None
    before, digits, after, scale = found["before"] or "", found["digits"], found["after"], 1
    # 5千瓦时 are 5 kWh, not 5000 of something: a name in the table goes before a scale.
    if _unit_of(after.strip()) is None and (scaled := _SCALED.fullmatch(after)):
        scale, after = scale_of(scaled["scale"]), scaled["after"]
    counted = after.strip()
    is_marked = scale > 1 or "," in digits
    if not (before or counted or is_marked):  # a text may be digits, and no number
        return None
    if (before and counted) or _SCALED.match(counted):
        return None
    unit = _unit_of(before or counted)
    # "5th" and "12B" are no 5 and no 12 of something, and "3.10 LTS" is a version.
    if counted and unit is None and (not after.startswith(" ") or ("." in digits and not is_marked)):
        return None
    what, factor = unit or (counted.casefold(), Decimal(1))
    is_negative = found["minus"] or found["sign"]
    return Quantity(_times(exact_number(digits, scale), -factor if is_negative else factor), what)


def _unit_of(name: str) -> tuple[str, Decimal] | None:
    return _UNIT_BY_NAME.get(name) or (None if _is_cased(name) else _UNIT_BY_NAME.get(name.casefold()))


def scale_of(name: str) -> int:
    """Return the factor of a scale that `SCALE` finds, such as "Million", "millions" or "万"."""
    return SCALES[name.lower().removesuffix("s")]


def exact_number(digits: str, scale: int = 1) -> int | Decimal:
    """Return the number of digits and their separators, times its scale; an integer if it is whole.

    >>> exact_number("1,234.50", 100), exact_number("0.5")
    (123450, Decimal('0.5'))
    """
    plain = digits.replace(",", "")
    return _times(Decimal(plain), Decimal(scale)) if "." in plain else int(plain) * scale


def _times(number: int | Decimal, factor: Decimal) -> int | Decimal:
    product = _EXACT.multiply(Decimal(number), factor)
    return int(product) if product == product.to_integral_value() else product


def quantity_at(text: str, start: int, end: int, number: int | Decimal) -> tuple[Quantity, int, int] | None:
    """Return the quantity of a number at a place of a text and the unit beside it, and the place of both.

    The longest name of a unit right after the number counts, or a currency right before it; None if no name is whole.
    The text is in NFKC.

    >>> quantity_at("in 5 km.", 3, 4, 5)
    (Quantity(number=5000, what='LENGTH'), 3, 7)
    >>> quantity_at("5 kmx", 0, 1, 5), quantity_at("5 km/day", 0, 1, 5)
    (None, None)
    """
    after = _UNIT_AFTER.match(text, end)
    unit = _unit_of(" ".join(after["name"].split())) if after else None
    if before := _CURRENCY_BEFORE.search(text[max(0, start - 8) : start]):
        currency = _UNIT_BY_NAME[before["name"].upper()]
        if unit and unit[0] in _MONEY and unit != currency:  # "$5 CAD"
            return None
        if _SHORT_SCALE.match(text, end):  # "$5m"
            return None
        start -= len(before[0])
        return Quantity(-number if text[start - 1 : start] == "-" else number, currency[0]), start, end
    if not after or not unit or (unit[0] not in _MONEY and _RATE.match(text, after.end())):
        return None
    return Quantity(_times(number, unit[1]), unit[0]), start, after.end()


def spellings_of(day: date) -> Iterator[str]:
    """Yield patterns of the ways in which a date is written, in lower case."""
    full = MONTHS[day.month - 1]
    name = rf"(?:{full}|{full[:3]}{'t?' if full == 'september' else ''}\.?)"
    ordinal = rf"0?{day.day}(?:st|nd|rd|th)?"
    yield f"{day.year:04}-{day.month:02}-{day.day:02}"
    yield rf"{day.year:04}[/.]0?{day.month}[/.]0?{day.day}"
    yield rf"{day.year:04}\s*年\s*0?{day.month}\s*月\s*0?{day.day}\s*[日号]"
    yield rf"{name}\s+{ordinal},?\s+{day.year:04}"
    yield rf"{ordinal}(?:\s+of)?\s+{name},?\s+{day.year:04}"
