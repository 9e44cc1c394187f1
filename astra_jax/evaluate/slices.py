"""Slices: the same figures on the environments of one kind, for every kind that a record tells of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra_jax.config import Frozen
from astra_jax.episodes.episode import Episode
from astra_jax.evaluate.conduct import figures_of, summed
from synthesis.records import Environment, JsonObject

SLICED: Final = ("f1", "answer_accuracy", "irrelevant_call_share")
"""Figures of every slice."""


class EvaluatedEnvironment(Frozen):
    """One environment of an evaluation, a line of its `environments.jsonl`: all that runs are compared by."""

    id: str
    kinds: dict[str, str]
    """Kinds of slices (scenario, hops, language, …) to the environment's own value."""
    episodes: int
    terms: dict[str, tuple[float, float]]
    """Name of a figure to its numerator and denominator, summed over the episodes."""


def evaluated(group: Sequence[Episode]) -> EvaluatedEnvironment:
    """Sum up the finished episodes of one environment.

    Raises:
        ValueError: there is none, or nothing to solve in it.
    """
    if not group:
        raise ValueError("the environment has no episodes; pass at least one")
    environment = group[0].environment
    return EvaluatedEnvironment(
        id=environment.id, kinds=kinds_of(environment), episodes=len(group), terms=summed(group)
    )


def kinds_of(environment: Environment) -> dict[str, str]:
    """Return the kinds of slices and the environment's value of each, in the order in which slices are shown.

    >>> from astra_jax.testing import tiny_environment
    >>> kinds_of(tiny_environment())  # doctest: +NORMALIZE_WHITESPACE
    {'scenario': 'multi_hop', 'hops': '2', 'language': 'en', 'domain': 'real estate', 'difficulty': 'plain',
     'ending': 'answer'}
    """
    return {
        "scenario": environment.scenario,
        "hops": str(environment.hops),
        "language": environment.language,
        "domain": environment.domain,
        "difficulty": environment.difficulty,
        "ending": _ending(environment),
    }


def slices_of(environments: Sequence[EvaluatedEnvironment], *, seed: int) -> dict[str, dict[str, JsonObject]]:
    """Return the figures of `SLICED` with their intervals, and how many they were taken from, by kind and value.

    Values stand in the order of their names; numbers in their own.
    """
    found: dict[str, dict[str, JsonObject]] = {}
    for kind in dict.fromkeys(kind for environment in environments for kind in environment.kinds):
        values = {environment.kinds[kind] for environment in environments}
        found[kind] = {}
        for value in sorted(values, key=lambda value: (int(value) if value.isdecimal() else 0, value)):
            inside = [environment for environment in environments if environment.kinds[kind] == value]
            terms = [{name: environment.terms[name] for name in SLICED} for environment in inside]
            found[kind][value] = {
                "environments": len(inside),
                "episodes": sum(environment.episodes for environment in inside),
                **figures_of(terms, seed=seed),
            }
    return found


def _ending(environment: Environment) -> str:
    if environment.is_stateful and environment.expectation == "answer":
        return "leave_state"
    return "ask_back_then_answer" if environment.left_out is not None else environment.expectation
