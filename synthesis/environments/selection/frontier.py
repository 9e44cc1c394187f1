"""Frontier: a plan of more environments of the kinds that a training run solves sometimes.

    RUN/solved_rates.jsonl ─┐
                            ├► kinds, each with its solved rate ─► those from 0.2 to 0.8 ─► plans like their members
    records it learnt from ─┘

A line of the file has an environment's `environment_id`, its number of `episodes`, and the number of them in which
everything was `solved`; further keys are not read. A kind is a domain, a scenario, a number of hops and a variety.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from synthesis.environments.selection.quotas import EnvironmentPlan, PlanImpossible, Variety, apportion
from synthesis.record_io import RecordDirectoryError, RecordSource
from synthesis.records import Environment, Expectation, JsonObject, Scenario

SOLVED_RATES_FILE: Final = "solved_rates.jsonl"
LOW: Final = 0.2
HIGH: Final = 0.8
_VARIETIES: Final[dict[Expectation, Variety]] = {
    "answer": "plain",
    "refuse": "withheld_tool",
    "ask_back": "missing_parameter",
}
_HANDED_ON: Final = ("same", "list")


class SolvedRate(BaseModel):
    """One line of the file: an environment's id, its episodes and the solved ones among them."""

    model_config = ConfigDict(frozen=True)  # further keys, such as a mean reward, are ignored

    environment_id: str
    episodes: int = Field(ge=1)
    solved: int = Field(ge=0)

    @model_validator(mode="after")
    def _solved_are_episodes(self) -> SolvedRate:
        if self.solved > self.episodes:
            raise ValueError(f"expected at most {self.episodes} solved episodes, found {self.solved}")
        return self


@dataclass(frozen=True, order=True)
class Kind:
    """A group of environments that a policy probably solves alike."""

    domain: str
    scenario: Scenario
    hops: int
    variety: Variety

    def __str__(self) -> str:
        """Return the kind in words.

        >>> str(Kind("travel", "multi_hop", 3, "plain"))
        'travel, multi_hop, 3 hops, plain'
        """
        return f"{self.domain}, {self.scenario}, {self.hops} hops, {self.variety}"


@dataclass(frozen=True)
class KindRate:
    """The environments of one kind that a run had episodes of."""

    kind: Kind
    episodes: int
    solved: int
    plans: tuple[EnvironmentPlan, ...]
    """A plan for another environment like each one of the kind, sorted."""

    @property
    def solved_rate(self) -> float:
        """Share of all episodes of the kind in which everything was solved."""
        return self.solved / self.episodes

    @property
    def weight(self) -> float:
        """Variance of solving, p(1 - p), summed over the environments of the kind; 0 for a kind off the frontier.

        Off the frontier are kinds that the policy nearly always or nearly never solves.
        """
        rate = self.solved_rate
        return rate * (1 - rate) * len(self.plans) if LOW <= rate <= HIGH else 0.0


@dataclass(frozen=True)
class Frontier:
    """All kinds that a run had episodes of, in order."""

    kinds: tuple[KindRate, ...]

    def planned(self, count: int) -> dict[Kind, int]:
        """Share `count` environments out over the kinds of the frontier, in proportion to their weights.

        Raises:
            PlanImpossible: no kind is solved sometimes.
        """
        weights = {each.kind: each.weight for each in self.kinds if each.weight}
        if not weights:
            rates = sorted(each.solved_rate for each in self.kinds)
            raise PlanImpossible(
                f"expected kinds of environments with solved rates from {LOW} to {HIGH}, found {len(rates)} kinds from "
                f"{rates[0]:.2f} to {rates[-1]:.2f}; there is no frontier to make more of"
            )
        places = apportion(weights, count)
        return {kind: number for kind in weights if (number := places.count(kind))}

    def plans(self, count: int, seed: int) -> list[EnvironmentPlan]:
        """Plan `count` environments, each like one of its kind that the run had episodes of.

        Raises:
            PlanImpossible: no kind is solved sometimes.
        """
        known = {each.kind: each.plans for each in self.kinds}
        places: list[EnvironmentPlan] = []
        for kind, number in self.planned(count).items():
            of_kind = list(known[kind])
            random.Random(f"frontier/{seed}/{kind}").shuffle(of_kind)  # each seed repeats other environments
            places += [of_kind[place % len(of_kind)] for place in range(number)]
        random.Random(f"frontier/{seed}").shuffle(places)
        return [replace(plan, index=index) for index, plan in enumerate(places)]

    def contents(self) -> list[JsonObject]:
        """Return all that decides the plans, as JSON."""
        return [asdict(each) for each in self.kinds]

    def report(self, count: int) -> JsonObject:
        """Return the report beside the records: each kind, its solved rate, and the number of planned environments."""
        planned = self.planned(count)
        kinds = [
            {
                **asdict(each.kind),
                "environments": len(each.plans),
                "episodes": each.episodes,
                "solved_rate": round(each.solved_rate, 6),
                "planned": planned.get(each.kind, 0),
            }
            for each in self.kinds
        ]
        return {"frontier": {"low": LOW, "high": HIGH, "kinds": kinds}}


def read_frontier(run: Path, records: Sequence[Path]) -> Frontier:
    """Read the solved rates of a training run by kind; `records` are directories that it learnt from.

    Raises:
        RecordDirectoryError: the run has no solved rates, or they cannot be read; a directory is missing or damaged; or
            the environments of the run are not in them.
    """
    rates = _read_rates(run / SOLVED_RATES_FILE)
    members: defaultdict[Kind, dict[str, EnvironmentPlan]] = defaultdict(dict)
    kinds: dict[str, Kind] = {}
    for directory in records:
        for environment in RecordSource(directory, Environment):
            if environment.id in rates and environment.id not in kinds:
                kind = kinds[environment.id] = kind_of(environment)
                members[kind][environment.id] = plan_like(environment)
    if missing := rates.keys() - kinds.keys():
        raise RecordDirectoryError(
            f"expected the {len(rates)} environments of {run} in disjoint_from, found {len(kinds)} there "
            f"({min(missing)} is not); name the directory that the run learnt from, from which the new ones stay apart"
        )
    return Frontier(
        tuple(
            KindRate(
                kind,
                sum(rates[name].episodes for name in of_kind),
                sum(rates[name].solved for name in of_kind),
                tuple(
                    sorted(of_kind.values(), key=lambda plan: (plan.language, plan.num_lookups, plan.with_computation))
                ),
            )
            for kind, of_kind in sorted(members.items(), key=lambda item: item[0])
        )
    )


def _read_rates(path: Path) -> dict[str, SolvedRate]:
    if not path.is_file():
        raise RecordDirectoryError(f"expected the solved rates of a training run at {path}, found none; name its `out`")
    rates: dict[str, SolvedRate] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), 1):
        if line.strip():
            try:
                rate = SolvedRate.model_validate(json.loads(line))
            except (ValidationError, ValueError, RecursionError) as error:
                fault = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
                raise RecordDirectoryError(
                    f"{path}:{number}: expected an environment's solved rate: {fault}"
                ) from error
            if rate.environment_id in rates:
                raise RecordDirectoryError(f"{path}:{number}: expected each environment once, found it twice")
            rates[rate.environment_id] = rate
    if not rates:
        raise RecordDirectoryError(f"expected at least one environment's solved rate in {path}, found none")
    return rates


def kind_of(environment: Environment) -> Kind:
    """Return which kind an environment is of."""
    variety = "stateful" if environment.is_stateful else _VARIETIES[environment.expectation]
    return Kind(environment.domain, environment.scenario, environment.hops, variety)


def plan_like(environment: Environment) -> EnvironmentPlan:
    """Return the plan for another environment like this one; a withheld call counts as a lookup."""
    composition, kind = environment.composition, kind_of(environment)
    with_computation = (
        composition is not None
        and composition.operation not in _HANDED_ON
        and kind.scenario.startswith("parallel")
        and not environment.is_stateful
    )
    return EnvironmentPlan(
        index=0,
        scenario=kind.scenario,
        language=environment.language,
        domain=kind.domain,
        num_lookups=len(environment.sub_questions) - with_computation,
        with_computation=with_computation,
        variety=kind.variety,
    )
