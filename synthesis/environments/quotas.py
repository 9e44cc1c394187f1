"""Quotas: which scenario, language, domain and size each environment is to have, so that the shares come out exact."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from synthesis.records import Language, Scenario

Choice = TypeVar("Choice")

PARALLEL_SCENARIOS: tuple[Scenario, ...] = ("parallel_single_hop", "parallel_multi_hop")


@dataclass(frozen=True)
class EnvironmentPlan:
    """What one environment is to be."""

    index: int
    scenario: Scenario
    language: Language
    domain: str
    num_lookups: int
    with_computation: bool


def apportion(shares: Mapping[Choice, float], count: int) -> list[Choice]:
    """Share `count` places out in proportion, by largest remainder; the list is grouped by choice.

    >>> apportion({"en": 0.712, "zh": 0.288}, 5)
    ['en', 'en', 'en', 'en', 'zh']
    """
    total = sum(shares.values())
    exact = {choice: share / total * count for choice, share in shares.items()}
    places = {choice: int(wanted) for choice, wanted in exact.items()}
    by_remainder = sorted(exact, key=lambda choice: places[choice] - exact[choice])
    for choice in by_remainder[: count - sum(places.values())]:
        places[choice] += 1
    return [choice for choice, number in places.items() for _ in range(number)]


def plan_environments(
    count: int,
    seed: int,
    *,
    scenarios: Mapping[Scenario, float],
    languages: Mapping[Language, float],
    domains: Mapping[str, float],
    lookups: Mapping[Scenario, Mapping[int, float]],
    computations: float,
) -> list[EnvironmentPlan]:
    """Plan `count` environments; `computations` is the share of the parallel ones that end in a computation."""
    rng = random.Random(f"quotas/{seed}")

    def shuffled(shares: Mapping[Choice, float], number: int) -> list[Choice]:
        places = apportion(shares, number)
        rng.shuffle(places)
        return places

    by_scenario = shuffled(scenarios, count)
    sizes = {scenario: iter(shuffled(lookups[scenario], by_scenario.count(scenario))) for scenario in scenarios}
    num_parallel = sum(scenario in PARALLEL_SCENARIOS for scenario in by_scenario)
    computed = iter(shuffled({True: computations, False: 1 - computations}, num_parallel))
    chosen = zip(by_scenario, shuffled(languages, count), shuffled(domains, count), strict=True)
    return [
        EnvironmentPlan(
            index=index,
            scenario=scenario,
            language=language,
            domain=domain,
            num_lookups=next(sizes[scenario]),
            with_computation=scenario in PARALLEL_SCENARIOS and next(computed),
        )
        for index, (scenario, language, domain) in enumerate(chosen)
    ]
