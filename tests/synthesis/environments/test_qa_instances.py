"""The structural validator accepts the teacher's instances and names the rule that a mutated one breaks."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from synthesis.environments.questions.qa_instances import check_dependencies, check_structure
from synthesis.questions.decomposition import CompositionError, DecompositionNode, QAInstance, compose
from synthesis.records import Composition
from synthesis.stage import Rejected
from tests.synthesis.altered import altered

NAMES = [
    f"{lang} {s}" for lang in ("en", "zh") for s in ("parallel_single_hop", "multi_hop", "parallel_multi_hop computed")
]


def test_every_written_instance_is_sound(instances):
    for instance in instances.values():
        check_structure(instance)
        check_dependencies(instance)


MUTATIONS = {
    "cycle": ("cyclic dependency",),
    "loop": ("cyclic dependency",),
    "dangling id": ("dangling dependency",),
    "duplicated id": ("duplicated id",),
    "reversed order": ("dependency listed after its dependent",),
    "wrong hops": ("wrong hops",),
    "wrong scenario": ("wrong scenario",),
    "leaked answer": ("leaked answer",),
    "own answer told": ("leaked answer",),
    "no answer": ("untyped answer",),
    "shared answer": ("answer stands twice",),
    "other main answer": ("composition gives another answer",),
    "composition of nothing": ("composition fails",),
    "idle sub-question": ("idle sub-question", "wrong scenario"),
    "asked twice": ("duplicated question",),
    "empty question": ("empty question",),
    "strange entity": ("entity not mentioned",),
}
"""Mutation to the reasons under which it may be rejected."""


def mutated(instance: QAInstance, mutation: str, rng: random.Random) -> QAInstance:
    """Break one rule of an instance."""
    fields: dict[str, Any] = instance.model_dump()
    nodes = fields["nodes"] = [dict(node) for node in fields["nodes"]]
    lookups = [node for node in nodes if node["kind"] == "lookup"]
    one, other = rng.sample(lookups, 2)
    match mutation:
        case "cycle":
            first, last = nodes.index(one), nodes.index(other)
            first, last = min(first, last), max(first, last)
            nodes[first]["depends_on"] = [nodes[last]["id"]]
            nodes[last]["depends_on"] = [nodes[first]["id"]]
        case "loop":
            one["depends_on"] = [*one["depends_on"], one["id"]]
        case "dangling id":
            one["depends_on"] = [*one["depends_on"], "q99"]
        case "duplicated id":
            one["id"] = other["id"]
        case "reversed order":
            nodes.reverse()
        case "wrong hops":
            fields["hops"] += rng.choice([-1, 1, 2])
        case "wrong scenario":
            fields["scenario"] = "single_hop"
        case "leaked answer":
            fields["question"] += f" ({one['answer']})"
        case "own answer told":
            one["question"] += f" ({one['answer']})"
        case "no answer":
            one["answer"] = rng.choice([None, "", "  ", {"value": 1}, [], [None]])
        case "shared answer":
            one["answer"] = other["answer"]
        case "other main answer":
            fields["answer"] = "something else"
        case "composition of nothing":
            fields["composition"]["inputs"] = ["q99"]
        case "idle sub-question":
            nodes.insert(0, {**one, "id": "q0", "question": "What else?", "answer": "idle", "depends_on": []})
        case "asked twice":
            one["question"] = other["question"]
        case "empty question":
            one["question"] = " "
        case _:
            fields["entities"] = [*fields["entities"], "Nobody Anywhere"]
    return QAInstance.model_validate(fields)


def require_rejected(instances: dict[str, QAInstance], name: str, mutation: str, rng: random.Random) -> None:
    if mutation == "reversed order" and "single" in name:
        return
    with pytest.raises(Rejected) as rejected:
        check_structure(mutated(instances[name], mutation, rng))
    assert rejected.value.reason in MUTATIONS[mutation], (name, mutation, rejected.value)


def test_ten_thousand_mutations_are_all_rejected_under_the_rule_they_break(instances):
    rng, mutations = random.Random(0), list(MUTATIONS)
    for _ in range(10_000):
        require_rejected(instances, rng.choice(NAMES), rng.choice(mutations), rng)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


@settings(deadline=None)
@given(data=st.data())
def test_arbitrary_damage_is_refused_or_harmless_and_never_a_crash(data, instances):
    fields: dict[str, Any] = instances[data.draw(st.sampled_from(NAMES))].model_dump(mode="json")
    where: Any = fields
    while isinstance(where, dict | list) and where:
        key = data.draw(st.sampled_from(sorted(where) if isinstance(where, dict) else range(len(where))))
        if not isinstance(where[key], dict | list) or not where[key] or data.draw(st.booleans()):
            where[key] = data.draw(json_values)
            break
        where = where[key]
    with contextlib.suppress(ValidationError, Rejected):
        check_structure(QAInstance.model_validate(fields))


def test_a_dependency_whose_answer_is_not_used_is_rejected(instances):
    instance = instances["en parallel_single_hop"]
    first, second = instance.nodes
    with pytest.raises(Rejected, match="dependency not needed"):
        check_dependencies(altered(instance, nodes=(first, altered(second, depends_on=(first.id,)))))


def test_a_name_that_was_not_found_yet_cannot_be_used(instances):
    instance = instances["en multi_hop"]
    broken = altered(instance, nodes=tuple(altered(node, depends_on=()) for node in instance.nodes))
    check_dependencies(instance)
    with pytest.raises(Rejected, match="name used before it was found"):
        check_dependencies(broken)


HUGE = 10**4299


@pytest.mark.parametrize(
    ("operation", "answers", "operand"),
    [
        ("sum", [10**400, 0.5], None),
        ("sum", [9 * HUGE, 8 * HUGE], None),
        ("difference", [1.7e308, -1.7e308], None),
        ("times", [10**400], 0.5),
        ("times", [HUGE], HUGE),
        ("times", [0.0], float("inf")),
    ],
)
def test_composing_too_large_numbers_is_an_error_that_is_told(operation, answers, operand):
    nodes = tuple(
        DecompositionNode(id=f"q{place}", question=f"What is number {place}?", answer=answer)
        for place, answer in enumerate(answers)
    )
    composition = Composition(operation=operation, inputs=tuple(node.id for node in nodes), operand=operand)
    with pytest.raises(CompositionError):
        compose(composition, {node.id: node.answer for node in nodes})
    scenario: Any = "single_hop" if len(nodes) == 1 else "parallel_single_hop"
    instance = QAInstance(
        question="What?", answer=3, scenario=scenario, hops=1, nodes=nodes, composition=composition, entities=()
    )
    with pytest.raises(Rejected, match="composition fails"):
        check_structure(instance)


def test_a_number_too_long_to_be_told_is_no_crash_of_the_message():
    with pytest.raises(CompositionError):
        compose(Composition(operation="sum", inputs=("q1", "q2")), {"q1": 10 * HUGE, "q2": "a text"})
