"""Values of a hard world that hang together: many-to-one relations, inverses that agree, values within their range.

A relation leads to a type of fewer entities, and each of these is led to: several students have one school. A relation
that closes a circle (a school's student) leads to an entity from which the others lead back.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final, TypeAlias

from synthesis.procedural.hard_options import ValueRange
from synthesis.procedural.written_words import written_words
from synthesis.records import JsonValue

Property = tuple[str, str]
Types: TypeAlias = Mapping[str, Any]
"""Entity types of a domain by name, each with its `relations` and `attributes` (`worlds.EntityType`)."""
SIZES: Final = (16, 12, 10, 8)
"""Entities of a type, by the greatest number of relations that lead there."""
_LARGEST_DRIFT: Final = 0.15
"""Greatest change of a yearly value from one year to the next."""
_YEAR_LIKE: Final = range(1900, 2100)


@cache
def ranges(domain: str) -> Mapping[str, Mapping[str, ValueRange]]:
    """Return the ranges of a domain's numbers and dates, by type and attribute."""
    return {
        entity_type: {name: ValueRange(*given) for name, given in of_type.items()}
        for entity_type, of_type in written_words("hard_ranges")[domain].items()
    }


def sizes_of(types: Types) -> Mapping[str, int]:
    """Return the number of entities of each type."""
    onward, level = _directed(types)[0], dict.fromkeys(types, 0)
    for source, target in onward * len(types):  # as many rounds as a path has types at most
        level[target] = max(level[target], level[source] + 1)
    return {name: SIZES[min(level[name], len(SIZES) - 1)] for name in types}


def draw_hard_values(
    rng: random.Random,
    domain: str,
    types: Types,
    entities: Mapping[str, Sequence[str]],
    years: Sequence[str],
    parity: Callable[[Property], int],
) -> dict[Property, Mapping[str, JsonValue]]:
    """Draw the value of every property of every entity; no number, date or code stands twice in the world.

    The dates of a property lie in odd years, or in even ones, as `parity` says.
    """
    onward, back = _directed(types)
    values: dict[Property, Mapping[str, JsonValue]] = {}
    for source, target in onward:
        few, count = list(entities[target]), len(entities[source])
        led_to = [*few, *rng.choices(few, k=max(0, count - len(few)))]
        values[source, target] = dict(zip(entities[source], rng.sample(led_to, count), strict=True))
    for (source, target), path in back.items():
        homes: dict[str, list[str]] = {}
        for entity in entities[target]:
            home = entity
            for here, there in pairwise(path):
                home = values[here, there][home]
            homes.setdefault(home, []).append(entity)
        values[source, target] = {entity: rng.choice(homes[entity]) for entity in entities[source]}
    taken: set[JsonValue] = set()

    def fresh(drawn: Callable[[], JsonValue]) -> JsonValue:
        while (value := drawn()) in taken:  # 5 and 5.0 are one key
            pass
        taken.add(value)
        return value

    for source, entity_type in types.items():
        for attribute, (_, kind) in entity_type.attributes.items():
            given = ranges(domain)[source].get(attribute)
            values[source, attribute] = {
                entity: drawn_series(rng, given, years, fresh)
                if given is not None and kind == "yearly"
                else fresh(partial(draw_value, rng, kind, given, parity((source, attribute))))
                for entity in entities[source]
            }
    # In the order of the types, as elsewhere.
    return {
        (name, asked): values[name, asked]
        for name, entity_type in types.items()
        for asked in (*entity_type.relations, *entity_type.attributes)
    }


def draw_value(rng: random.Random, kind: str, given: ValueRange | None = None, parity: int | None = None) -> JsonValue:
    """Draw a value of an attribute's kind, within a range if there is one; no whole number looks like a year.

    `parity` says that the year of a date is even (0) or odd (1).
    """
    match kind:
        case "date":  # every month has a 28th
            first, last, *_ = given or ValueRange(1990, 2026)
            years = [year for year in range(int(first), int(last) + 1) if parity in (None, year % 2)]
            return f"{rng.choice(years)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
        case "phone":
            return f"{rng.randrange(10**6, 10**7)}"
        case "code":
            letters = "".join(rng.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=2))
            return f"{letters}{rng.randrange(1000, 10_000)}"
        case "decimal":
            least, greatest, _, step = given or ValueRange(10.01, 999.99)
            step = step or 0.01
            return round(least + step * rng.randrange(round((greatest - least) / step) + 1), 2)
    least, greatest, *_ = given or ValueRange(3000, 99_999)
    while (number := rng.randrange(int(least), int(greatest) + 1)) in _YEAR_LIKE:
        pass
    return number


def drawn_series(
    rng: random.Random, given: ValueRange, years: Sequence[str], fresh: Callable[[Callable[[], JsonValue]], JsonValue]
) -> JsonValue:
    """Draw a value for each year, each near the one before."""
    least, greatest, *_ = given
    series: dict[str, JsonValue] = {}
    last = draw_value(rng, "amount", ValueRange(least * 1.3, greatest / 1.3))
    for year in years:
        near = ValueRange(max(least, last * (1 - _LARGEST_DRIFT)), min(greatest, last * (1 + _LARGEST_DRIFT)))
        last = series[year] = fresh(partial(draw_value, rng, "amount", near))
    return series


def _directed(types: Types) -> tuple[list[Property], dict[Property, tuple[str, ...]]]:
    """Return the relations that lead onward, and for each that closes a circle the way back to its source."""
    onward: list[Property] = []
    back: dict[Property, tuple[str, ...]] = {}
    for source, entity_type in types.items():
        for target in entity_type.relations:
            way = _way(onward, target, source)
            if way is None:
                onward.append((source, target))
            else:
                back[source, target] = way
    return onward, back


def _way(onward: Sequence[Property], start: str, end: str) -> tuple[str, ...] | None:
    ways: list[tuple[str, ...]] = [(start,)]
    for way in ways:  # grows while it is read: shorter ways come first
        if way[-1] == end:
            return way
        ways += [(*way, target) for source, target in onward if source == way[-1]]
    return None
