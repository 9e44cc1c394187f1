"""Conditions on the last state of an episode, as data: no code runs to check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from synthesis.answers.same_answer import ABSENT, same_answer, value_at
from synthesis.records import Environment, JsonObject, JsonValue, StateCondition

_IS_LIST: Final = None
"""The mark of a list in `_by_place`: a key that no object and no path has."""


def ends_as_asked(environment: Environment, last: JsonObject | None) -> bool:
    """Say whether an episode has left the state that its task asks for; of a database its queries decide."""
    conditions, first = environment.state_conditions, environment.state
    if not environment.has_database:
        return same_answer(environment.final_state, last) and meets_conditions(conditions, first, last)
    before, after = ((state or {}).get("queries") for state in (first, last))
    return bool(conditions) and meets_conditions(conditions, before, after)


def meets_conditions(conditions: Sequence[StateCondition], before: JsonObject | None, after: JsonObject | None) -> bool:
    """Say whether a state meets all conditions and is unchanged elsewhere; without conditions, any state does.

    >>> cancelled = StateCondition(path=("orders", "17", "status"), relation="equals", value="cancelled")
    >>> before = {"orders": {"17": {"status": "open"}, "18": {"status": "open"}}}
    >>> after = {"orders": {"17": {"status": "cancelled"}, "18": {"status": "open"}}}
    >>> meets_conditions([cancelled], before, after), meets_conditions([cancelled], before, before)
    (True, False)
    >>> both = {"orders": {"17": {"status": "cancelled"}, "18": {"status": "cancelled"}}}
    >>> meets_conditions([cancelled], before, both)
    False
    """
    if not conditions:
        return True
    if before is None or after is None or not all(_holds(condition, before, after) for condition in conditions):
        return False
    paths = [condition.path for condition in conditions]
    return same_answer(_without(before, paths, before), _without(after, paths, before))


def _holds(condition: StateCondition, before: JsonObject, after: JsonObject) -> bool:
    first, last = value_at(before, condition.path), value_at(after, condition.path)
    match condition.relation:
        case "absent":
            return last is ABSENT
        case "equals":
            return last is not ABSENT and same_answer(condition.value, last)
        case "changed_by":
            numbers = (first, last, condition.value)
            if not all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers):
                return False
            try:
                return same_answer(first + condition.value, last)
            except OverflowError:  # an integer beyond any float cannot have changed by exactly a float
                return False


def _without(state: JsonObject, paths: Sequence[tuple[str | int, ...]], before: JsonObject) -> JsonObject:
    """Return a state without the values at the paths, and without new objects that held nothing but these.

    A list becomes an object from place to value, so that its other values keep their places.
    """
    left = _by_place(state)
    for path in paths:
        holders = [left]
        for key in path[:-1]:
            holders.append(inner if isinstance(inner := holders[-1].get(key), dict) else {})
        if holders[-1].pop(path[-1], ABSENT) is ABSENT:
            continue
        for depth in range(len(path) - 1, 0, -1):
            if holders[depth].keys() - {_IS_LIST} or value_at(before, path[:depth]) is not ABSENT:
                break
            del holders[depth - 1][path[depth - 1]]
    return left


def _by_place(node: JsonValue) -> JsonValue:
    if isinstance(node, list):
        return {_IS_LIST: True} | {place: _by_place(inner) for place, inner in enumerate(node)}
    return {key: _by_place(inner) for key, inner in node.items()} if isinstance(node, dict) else node
