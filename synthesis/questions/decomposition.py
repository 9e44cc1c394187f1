"""Decompositions: a main question's sub-questions, their dependency graph, and Φ that joins answers.

q0  What is the wage of the manager of project Amber Fox?      a0 = Φ({a_i}, G)
q1  Who is the manager of project Amber Fox?   a1 ─┐
q2  What is the wage of manager Calm Otter?    a2 <┘           Φ = same(q2)
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from graphlib import TopologicalSorter
from typing import Literal, Protocol

from pydantic import Field

from synthesis.errors import SynthesisError
from synthesis.records import Composition, Environment, JsonValue, Operation, Record, Scenario, SubQuestion


class DecompositionNode(Record):
    """One sub-question with its answer and the sub-questions that it depends on."""

    id: str
    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write the answer, if that is a text."""
    depends_on: tuple[str, ...] = ()
    kind: Literal["lookup", "computation"] = "lookup"
    """A lookup finds a fact, or changes the state; a computation only works on its parents' answers."""


class QAInstance(Record):
    """A main question with its answer, the decomposition τ, and its claimed shape."""

    question: str
    answer: JsonValue
    aliases: tuple[str, ...] = Field(default=(), exclude_if=lambda aliases: not aliases)
    """Further ways to write the answer, if that is a text."""
    scenario: Scenario
    hops: int
    """Length of the longest dependency path, in lookups."""
    nodes: tuple[DecompositionNode, ...]
    composition: Composition | None
    """The operation Φ; None only if the source is prose and the answer cannot be computed."""
    entities: tuple[str, ...]
    """Every entity name that the questions and answers mention."""


class _Node(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def depends_on(self) -> tuple[str, ...]: ...


def depths(nodes: Iterable[_Node]) -> dict[str, int]:
    """Return for each node the length in nodes of the longest path of the dependency graph G that ends in it.

    >>> q1 = DecompositionNode(id="q1", question="", answer=1)
    >>> q2 = DecompositionNode(id="q2", question="", answer=2, depends_on=("q1",))
    >>> depths([q1, q2])
    {'q1': 1, 'q2': 2}
    """
    parents = {node.id: node.depends_on for node in nodes}
    found: dict[str, int] = {}
    for name in TopologicalSorter(parents).static_order():
        found[name] = 1 + max((found[parent] for parent in parents.get(name, ())), default=0)
    return found


def scenario_of(lookups: Sequence[_Node]) -> Scenario:
    """Return the scenario that the dependencies of the lookups make.

    >>> def node(id, *parents): return DecompositionNode(id=id, question="", answer=1, depends_on=parents)
    >>> scenario_of([node("a")]), scenario_of([node("a"), node("b")])
    ('single_hop', 'parallel_single_hop')
    >>> scenario_of([node("a"), node("b", "a")]), scenario_of([node("a"), node("b", "a"), node("c", "a")])
    ('multi_hop', 'parallel_multi_hop')
    """
    hops = max(depths(lookups).values())
    if hops == 1:
        return "single_hop" if len(lookups) == 1 else "parallel_single_hop"
    return "multi_hop" if hops == len(lookups) else "parallel_multi_hop"


class CompositionError(SynthesisError, ValueError):
    """Φ cannot be executed on the answers it is given; the message says why."""


def compose(composition: Composition, answers: Mapping[str, JsonValue]) -> JsonValue:
    """Execute Φ: compute the main answer from the sub-answers.

    >>> compose(Composition(operation="sum", inputs=("q1", "q2")), {"q1": 3, "q2": 4})
    7
    >>> which = Composition(operation="which_largest", inputs=("q1", "q2"), choices=("Oak", "Elm"))
    >>> compose(which, {"q1": "2024-05-01", "q2": "2023-12-31"})
    'Oak'
    >>> compose(Composition(operation="days_after", inputs=("q1",), operand=30), {"q1": "2024-12-15"})
    '2025-01-14'

    Raises:
        CompositionError: an input is missing, or the answers are not of a kind that the operation works on, or the
            result is larger than a double holds.
    """
    if missing := [name for name in composition.inputs if name not in answers]:
        raise CompositionError(f"expected answers to all inputs, found none for {missing}")
    values = [answers[name] for name in composition.inputs]
    try:
        return _composed(composition, values)
    except CompositionError:
        raise
    except (OverflowError, ValueError) as error:  # too large for a float, or to be written in a message
        raise CompositionError(f"expected numbers that {composition.operation!r} works on, found: {error}") from error


def _composed(composition: Composition, values: list[JsonValue]) -> JsonValue:
    operation = composition.operation
    if operation in ("same", "times", "days_after"):
        if len(values) != 1:
            raise CompositionError(f"expected one input for {operation!r}, found {len(values)}")
        return values[0] if operation == "same" else _with_operand(operation, values[0], composition.operand)
    if operation == "list":
        return values
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    if not numeric and not (operation.startswith("which_") and all(isinstance(value, str) for value in values)):
        raise CompositionError(f"expected numbers for {operation!r}, found {values}")
    if operation == "sum":
        return _rounded(sum(values))
    if operation == "difference":
        if len(values) != 2:
            raise CompositionError(f"expected two inputs for 'difference', found {len(values)}")
        return _rounded(abs(values[0] - values[1]))
    # Texts compare letter by letter, which puts dates in order if they are written year first.
    best = max(values) if operation in ("largest", "which_largest") else min(values)
    if operation in ("largest", "smallest"):
        return best
    if len(composition.choices) != len(values) or values.count(best) != 1:
        raise CompositionError(
            f"expected one choice per input and one winner, found {composition.choices} for {values}"
        )
    return composition.choices[values.index(best)]


def _with_operand(operation: Operation, value: JsonValue, operand: int | float | None) -> JsonValue:
    if operand is None or (operation == "days_after" and not isinstance(operand, int)):
        raise CompositionError(f"expected a number for {operation!r}, whole where it counts days, found {operand}")
    if operation == "days_after":
        try:
            return (date.fromisoformat(str(value)) + timedelta(days=operand)).isoformat()
        except (ValueError, OverflowError) as error:
            raise CompositionError(f"expected a date like 2024-12-31 for {operation!r}, found {value!r}") from error
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise CompositionError(f"expected a number for {operation!r}, found {value!r}")
    return _rounded(value * operand)


def _rounded(number: int | float) -> int | float:
    """Return a computed number so that 0.1 + 0.2 is 0.3."""
    if not abs(number) <= sys.float_info.max:  # nor does one that is no number
        raise CompositionError("expected numbers with a result that a double holds")
    return round(number, 6)


def ways_to_answer(*asked: QAInstance | DecompositionNode | SubQuestion | Environment) -> list[JsonValue]:
    """Return the answers to some questions, each in all the ways in which it may be written."""
    return [way for each in asked for way in (each.answer, *each.aliases)]
