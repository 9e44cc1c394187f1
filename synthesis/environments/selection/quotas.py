"""Quotas: the scenario, language, domain and size of each environment, so that shares are exact."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from synthesis.environments.config import EnvironmentsConfig, Variety
from synthesis.errors import SynthesisError
from synthesis.records import Language, Scenario

Choice = TypeVar("Choice")

PARALLEL_SCENARIOS: tuple[Scenario, ...] = ("parallel_single_hop", "parallel_multi_hop")


class PlanImpossible(SynthesisError, ValueError):
    """The shares of a config contradict one another; the message names them and says how to change them."""

    is_usage = True


@dataclass(frozen=True)
class EnvironmentPlan:
    """The planned properties of one environment."""

    index: int
    scenario: Scenario
    language: Language
    domain: str
    num_lookups: int
    with_computation: bool
    variety: Variety


def apportion(shares: Mapping[Choice, float], count: int) -> list[Choice]:
    """Share `count` places out in proportion, by largest remainder; the list is grouped by choice.

    >>> apportion({"en": 0.712, "zh": 0.288}, 5)
    ['en', 'en', 'en', 'en', 'zh']
    """
    total = sum(shares.values())
    exact = {choice: share / total * count for choice, share in shares.items()}
    places = {choice: int(wanted) for choice, wanted in exact.items()}
    by_remainder = sorted(exact, key=lambda choice: places[choice] - exact[choice])  # largest first
    for choice in by_remainder[: count - sum(places.values())]:
        places[choice] += 1
    return [choice for choice, number in places.items() for _ in range(number)]


def plan_environments(config: EnvironmentsConfig) -> list[EnvironmentPlan]:
    """Plan the environments of a run in its shares.

    Stateful environments need several hops: they take the places of multi-hop ones.

    Raises:
        PlanImpossible: there are fewer multi-hop places than stateful environments.
    """
    rng, count, lookups = random.Random(f"quotas/{config.seed}"), config.count, config.lookups

    def shuffled(shares: Mapping[Choice, float], number: int) -> list[Choice]:
        places = apportion(shares, number)
        rng.shuffle(places)
        return places

    by_scenario = shuffled(config.scenarios, count)
    sizes = {each: iter(shuffled(lookups[each], by_scenario.count(each))) for each in config.scenarios}
    num_parallel = sum(scenario in PARALLEL_SCENARIOS for scenario in by_scenario)
    computed = iter(shuffled({True: config.computations, False: 1 - config.computations}, num_parallel))
    by_variety = _place_varieties(rng, apportion(config.varieties, count), by_scenario)
    languages, domains = shuffled(config.languages, count), shuffled(config.domains, count)
    chosen = zip(by_variety, by_scenario, languages, domains, strict=True)
    return [
        EnvironmentPlan(
            index=index,
            scenario=scenario,
            language=language,
            domain=domain,
            num_lookups=next(sizes[scenario]),
            # Drawn before the variety is asked: a stateful environment uses up its place.
            with_computation=scenario in PARALLEL_SCENARIOS and next(computed) and not variety.startswith("stateful"),
            variety=variety,
        )
        for index, (variety, scenario, language, domain) in enumerate(chosen)
    ]


def _place_varieties(rng: random.Random, places: list[Variety], by_scenario: list[Scenario]) -> list[Variety]:
    multi_hop = [index for index, scenario in enumerate(by_scenario) if scenario.endswith("multi_hop")]
    stateful = [variety for variety in places if variety.startswith("stateful")]
    if len(stateful) > len(multi_hop):
        raise PlanImpossible(
            f"expected at most {len(multi_hop)} stateful environments, as many as multi-hop ones, "
            f"found {len(stateful)}; lower `stateful…` in `varieties`, or raise the multi-hop share"
        )
    placed = dict(zip(rng.sample(multi_hop, len(stateful)), stateful, strict=True))
    others: list[Variety] = [variety for variety in places if not variety.startswith("stateful")]
    rng.shuffle(others)
    rest = iter(others)
    return [placed[index] if index in placed else next(rest) for index in range(len(by_scenario))]
