"""Values of a hard world that hang together: many-to-one relations, inverses that agree, values within their range.

A relation leads to a type of fewer entities, and each of these is led to: several students have one school. A relation
that closes a circle (a school's student) leads to an entity from which the others lead back.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from typing import Any, Final, TypeAlias

from synthesis.procedural.hard_options import ValueRange
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
    text = files(__package__).joinpath("hard_ranges.toml").read_text(encoding="utf-8")
    return {
        entity_type: {name: (*given[:2], *(*given[2:], *("", 0)[len(given) - 2 :])) for name, given in of_type.items()}
        for entity_type, of_type in tomllib.loads(text)[domain].items()
    }


def sizes_of(types: Types) -> Mapping[str, int]:
    """Return the number of entities of each type."""
    onward, _ = _directed(types)
    level = dict.fromkeys(types, 0)
    for _ in types:  # as many rounds as a path has types at most
        for source, targets in onward.items():
            for target in targets:
                level[target] = max(level[target], level[source] + 1)
    return {name: SIZES[min(level[name], len(SIZES) - 1)] for name in types}


def draw_hard_values(
    rng: random.Random,
    domain: str,
    types: Types,
    entities: Mapping[str, Sequence[str]],
    years: Sequence[str],
    draw: Callable[[random.Random, str], JsonValue],
) -> dict[Property, Mapping[str, JsonValue]]:
    """Draw the value of every property of every entity; no number, date or code stands twice in the world.

    `draw` draws phone numbers and codes.
    """
    onward, back = _directed(types)
    values: dict[Property, Mapping[str, JsonValue]] = {}
    for source, targets in onward.items():
        for target in targets:
            few = list(entities[target])
            led_to = [*few, *rng.choices(few, k=max(0, len(entities[source]) - len(few)))]
            values[source, target] = dict(zip(entities[source], rng.sample(led_to, len(entities[source])), strict=True))
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
            rows: dict[str, JsonValue] = {}
            for entity in entities[source]:
                if given is None:
                    rows[entity] = fresh(partial(draw, rng, kind))
                elif kind == "yearly":
                    rows[entity] = _series(rng, given, years, fresh)
                else:
                    rows[entity] = fresh(partial(within, rng, given, kind))
            values[source, attribute] = rows
    # In the order of the types, as elsewhere.
    return {
        (name, asked): values[name, asked]
        for name, entity_type in types.items()
        for asked in (*entity_type.relations, *entity_type.attributes)
    }


def within(rng: random.Random, given: ValueRange, kind: str) -> JsonValue:
    """Draw a value within a range; a whole number never looks like a year."""
    least, greatest, _, step = given
    if kind == "date":  # every month has a 28th
        return f"{rng.randrange(int(least), int(greatest) + 1)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"
    if kind == "decimal":
        step = step or 0.01
        return round(least + step * rng.randrange(int((greatest - least) / step) + 1), 2)
    while (number := rng.randrange(int(least), int(greatest) + 1)) in _YEAR_LIKE:
        pass
    return number


def _series(
    rng: random.Random,
    given: ValueRange,
    years: Sequence[str],
    fresh: Callable[[Callable[[], JsonValue]], JsonValue],
) -> JsonValue:
    """Draw a value for each year, each near the one before."""
    least, greatest, _, _ = given
    series: dict[str, JsonValue] = {}
    last = within(rng, (least * 1.3, greatest / 1.3, "", 0), "amount")
    for year in years:
        near = (max(least, last * (1 - _LARGEST_DRIFT)), min(greatest, last * (1 + _LARGEST_DRIFT)), "", 0.0)
        last = series[year] = fresh(partial(within, rng, near, "amount"))
    return series


def _directed(types: Types) -> tuple[dict[str, list[str]], dict[Property, tuple[str, ...]]]:
    """Return the relations that lead onward, and for each that closes a circle the shortest way back to its source."""
    onward: dict[str, list[str]] = {name: [] for name in types}
    back: dict[Property, tuple[str, ...]] = {}
    for source, entity_type in types.items():
        for target in entity_type.relations:
            way = _way(onward, target, source)
            if way is None:
                onward[source].append(target)
            else:
                back[source, target] = way
    return onward, {key: _way(onward, key[1], key[0]) or way for key, way in back.items()}


def _way(onward: Mapping[str, Sequence[str]], start: str, end: str) -> tuple[str, ...] | None:
    ways: list[tuple[str, ...]] = [(start,)]
    for way in ways:  # grows while it is read: shorter ways come first
        if way[-1] == end:
            return way
        ways += [(*way, target) for target in onward[way[-1]] if target not in way]
    return None
