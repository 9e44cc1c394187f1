"""What a written value says: a number, a quantity with its unit, or a date; a text that says none of them is itself.

    "8,000,000"  "8 million"  "800万"          the number 8000000
    "5 km"  "5,000 metres"  "5公里"             the quantity 5000 m
    "3 March 2021"  "2021年3月3日"  "2021/3/3"  the date 2021-03-03

Only what can be read in one way is read. Not read: 03/04/2021 and 1,5, which differ between countries; digits that
nothing marks as a number, such as "5", "007" and "1.10", which may be a code or a version (who means a number has JSON
to say so); 1e5, 5M and other marks of codes; whatever has digits in two places. A unit
is converted where the factor is exact by definition; one currency never into another; after any other word ("8 million
people") the word must be the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from typing import Final

SCALES: Final = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "百": 10**2,
    "千": 10**3,
    "万": 10**4,
    "百万": 10**6,
    "千万": 10**7,
    "亿": 10**8,
    "万亿": 10**12,
}
MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june"),
    *("july", "august", "september", "october", "november", "december"),
)

_UNITS: Final[tuple[tuple[str, str, str], ...]] = (
    ("length", "0.001", "mm millimetre millimetres millimeter millimeters 毫米"),
    ("length", "0.01", "cm centimetre centimetres centimeter centimeters 厘米 公分"),
    ("length", "1", "m metre metres meter meters 米 公尺"),
    ("length", "1000", "km KM Km kilometre kilometres kilometer kilometers 公里 千米"),
    ("length", "0.0254", "inch inches 英寸"),
    ("length", "0.3048", "ft foot feet 英尺"),
    ("length", "0.9144", "yd yard yards 码"),
    ("length", "1609.344", "mi mile miles 英里"),
    ("mass", "0.001", "mg milligram milligrams 毫克"),
    ("mass", "1", "g gram grams 克"),
    ("mass", "1000", "kg KG Kg kilogram kilograms kilo kilos 公斤 千克"),
    ("mass", "1000000", "t tonne tonnes 吨"),
    ("mass", "453.59237", "lb lbs 磅"),
    ("mass", "500", "斤"),
    ("time", "0.001", "ms millisecond milliseconds 毫秒"),
    ("time", "1", "s sec secs second seconds 秒 秒钟"),
    ("time", "60", "min mins minute minutes 分钟"),
    ("time", "3600", "h hr hrs hour hours 小时 个小时"),
    ("time", "86400", "day days 天"),
    ("time", "604800", "week weeks 周 星期 个星期"),
    ("months", "1", "month months 个月"),
    ("months", "12", "year years yr yrs"),
    ("volume", "0.001", "ml mL millilitre millilitres milliliter milliliters 毫升"),
    ("volume", "1", "l L litre litres liter liters 升"),
    ("area", "1", "m2 m² sqm 平方米 ㎡"),
    ("area", "10000", "ha hectare hectares 公顷"),
    ("area", "1000000", "km2 km² 平方公里 平方千米"),
    ("speed", "1", "km/h kmh kph 公里/小时"),
    ("energy", "1", "Wh"),
    ("energy", "1000", "kWh 千瓦时 度电"),
    ("energy", "1000000", "MWh 兆瓦时"),
    ("share", "1", "% percent 个百分点"),
    ("degrees Celsius", "1", "°C ℃ 摄氏度"),
    ("degrees Fahrenheit", "1", "°F ℉ 华氏度"),
    ("US dollars", "1", "USD US$"),
    ("dollars", "1", "$ dollar dollars"),
    ("euros", "1", "EUR € euro euros 欧元"),
    ("pounds", "1", "GBP £ 英镑"),
    ("yuan", "1", "CNY RMB 元 人民币 yuan 元人民币"),
    ("yen", "1", "JPY 日元 yen"),
    ("yen or yuan", "1", "¥ ￥"),
)
_UNIT_BY_NAME: Final = {
    unicodedata.normalize("NFKC", name): (kind.upper(), Decimal(factor))
    for kind, factor, names in _UNITS
    for written in names.split()
    # Of two letters the case matters: 5 mg are no 5 Mg.
    for name in ([written] if written.isascii() and len(written) < 3 else [written, written.casefold()])
}
"""Kinds in capitals, which no counted word is in: 5 "length" are no 5 m."""
_BEFORE: Final = "|".join(map(re.escape, ("US$", "$", "€", "£", "¥", "USD", "EUR", "GBP", "CNY", "RMB", "JPY")))
_SCALE: Final = "|".join(sorted(SCALES, key=len, reverse=True))

# Repeats are bounded: a text may be ten thousand digits.
DIGITS: Final = r"(?:0|[1-9][0-9]{0,2}(?:,[0-9]{3}){1,10}|[1-9][0-9]{0,40})(?:\.[0-9]{1,20})?"
_QUANTITY: Final = re.compile(
    rf"(?P<before>(?i:{_BEFORE}))? ?(?P<sign>-?)(?P<digits>{DIGITS})(?: ?(?P<scale>{_SCALE}))?"
    r"(?P<space> ?)(?P<after>[^0-9]{0,40})",
)
_SCALE_WORD: Final = re.compile(r"\b(?:hundred|thousand|million|billion|trillion)\b", re.IGNORECASE)
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

    number: int | float
    what: str = ""
    """The kind of unit in capitals, or what was counted in lower case; empty for a number alone."""


@lru_cache(maxsize=8192)  # one gold answer is compared with every tool response of its episodes
def value_of(text: str) -> Quantity | date | None:
    """Return what a text says as a whole; None where it says no number, quantity or date in a way that is certain.

    >>> value_of("8 million"), value_of("800万"), value_of("5 km")
    (Quantity(number=8000000, what=''), Quantity(number=8000000, what=''), Quantity(number=5000, what='LENGTH'))
    >>> value_of("March 3, 2021"), value_of("03/04/2021"), value_of("7"), value_of("Room 12")
    (datetime.date(2021, 3, 3), None, None, None)
    """
    plain = " ".join(unicodedata.normalize("NFKC", text).replace("−", "-").split())
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
    # Scales are words, whatever their case; units are not: 5 m are metres, and 5 M are not.
    found = _QUANTITY.fullmatch(_SCALE_WORD.sub(lambda word: word[0].lower(), plain))
    if found is None:
        return None
    before, after, digits = found["before"] or "", found["after"].strip(), found["digits"]
    if not (before or after or found["scale"] or "," in digits):  # a text may be digits, and no number
        return None
    if (before and after) or not (found["space"] or not after or after in _UNIT_BY_NAME):
        return None  # "5th" and "12B" are no 5 and no 12 of something
    number = Decimal(digits.replace(",", "")) * SCALES.get(found["scale"] or "", 1) * (-1 if found["sign"] else 1)
    unit = before or after
    spellings = (unit,) if unit.isascii() and len(unit) < 3 else (unit, unit.casefold())
    known = next((_UNIT_BY_NAME[name] for name in spellings if name in _UNIT_BY_NAME), None)
    what, factor = known or (unit.casefold(), Decimal(1))
    return Quantity(_plain_number(number * factor), what)


def _plain_number(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def spellings_of(day: date) -> Iterator[str]:
    """Yield patterns of the ways in which a date is written, in lower case."""
    name = rf"(?:{MONTHS[day.month - 1]}|{MONTHS[day.month - 1][:3]})"
    ordinal = rf"0?{day.day}(?:st|nd|rd|th)?"
    yield f"{day.year:04}-{day.month:02}-{day.day:02}"
    yield rf"{day.year:04}[/.]0?{day.month}[/.]0?{day.day}"
    yield rf"{day.year:04}\s*年\s*0?{day.month}\s*月\s*0?{day.day}\s*[日号]"
    yield rf"{name}\s+{ordinal},?\s+{day.year:04}"
    yield rf"{ordinal}(?:\s+of)?\s+{name},?\s+{day.year:04}"
