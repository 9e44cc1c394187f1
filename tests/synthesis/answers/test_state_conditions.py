"""Conditions on the last state: each relation, nothing else changed, and no tampered state passes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesis.answers.state_conditions import meets_conditions
from synthesis.environments.state import check_conditions, tampered_states
from synthesis.records import StateCondition
from synthesis.stage import Rejected

BEFORE = {"orders": {"17": {"status": "open", "items": [3, 4]}, "18": {"status": "open", "items": []}}, "funds": 90}
AFTER = {"orders": {"17": {"status": "cancelled", "items": [3]}, "18": {"status": "open", "items": []}}, "funds": 130}


def condition(path: str, relation: str, value: Any = None) -> StateCondition:
    keys = [int(key) if key.isdigit() and len(key) == 1 else key for key in path.split("/")]
    return StateCondition.model_validate({"path": keys, "relation": relation, "value": value})


CONDITIONS = (
    condition("orders/17/status", "equals", "cancelled"),
    condition("orders/17/items", "equals", [3]),
    condition("funds", "changed_by", 40),
)


def test_order_17_is_cancelled_and_no_other_order_changed():
    assert meets_conditions(CONDITIONS, BEFORE, AFTER)
    check_conditions(CONDITIONS, BEFORE, AFTER)
    other = {**AFTER, "orders": {**AFTER["orders"], "18": {"status": "cancelled", "items": []}}}
    assert not meets_conditions(CONDITIONS, BEFORE, other)
    for missing in range(3):  # a change that no condition names is one too many
        assert not meets_conditions(CONDITIONS[:missing] + CONDITIONS[missing + 1 :], BEFORE, AFTER)


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        (condition("funds", "changed_by", 41), False), (condition("funds", "changed_by", "40"), False),
        (condition("funds", "equals", True), False), (condition("funds/deep", "equals", None), False),
        (condition("nowhere", "equals", None), False), (condition("orders/17/items/1", "absent"), True),
        (condition("funds", "absent"), False),
    ],
)  # fmt: skip
def test_a_condition_holds_of_its_own_path_alone(asked, holds):
    # The others cover all differences, so that this one decides.
    assert meets_conditions((*CONDITIONS, asked), BEFORE, AFTER) is holds


@pytest.mark.parametrize(
    ("conditions", "before", "after"),
    [
        ([condition("l/1", "equals", "x")], {"l": ["a"]}, {"l": ["a", "x"]}),
        ([condition("l/0", "absent")], {"l": [1]}, {"l": []}),
        ([condition("l/1", "equals", 3), condition("l/2", "absent")], {"l": [1, 2, 3]}, {"l": [1, 3]}),
        ([condition("log/0/a", "equals", "x")], {"log": []}, {"log": [{"a": "x"}]}),
        ([condition("x/a", "equals", 1)], {}, {"x": {"a": 1}}),
        ([condition("x/0", "equals", 1)], {}, {"x": [1]}),
        ([condition("x/a/b", "equals", 1), condition("x/a/c", "equals", 2)], {}, {"x": {"a": {"b": 1, "c": 2}}}),
    ],
)
def test_a_list_that_grows_or_shrinks_and_a_new_object_around_a_value_can_be_named(conditions, before, after):
    check_conditions(conditions, before, after)
    assert not meets_conditions(conditions, before, {**after, "beside": {}})


@pytest.mark.parametrize(
    ("conditions", "before", "after"),
    [
        ([condition("l/2", "equals", "x")], {"l": ["a"]}, {"l": ["a", None, "x"]}),  # one more between them
        ([condition("l/0", "absent")], {"l": [1]}, {}),
        ([condition("l/0", "absent")], {"l": [1]}, {"l": {}}),
        ([condition("x/a", "equals", 1)], {}, {"x": {"a": 1, "b": {}}}),
        ([condition("x/a", "absent")], {"x": {"a": 1}}, {}),
        ([condition("x/a", "absent")], {}, {"x": {}}),
    ],
)
def test_another_change_of_a_list_or_of_an_object_is_one_too_many(conditions, before, after):
    assert not meets_conditions(conditions, before, after)


def test_without_a_state_no_condition_is_met():
    assert meets_conditions((), BEFORE, None)
    assert not meets_conditions(CONDITIONS, BEFORE, None)
    assert not meets_conditions(CONDITIONS, None, AFTER)


def test_conditions_that_contradict_the_last_state_or_miss_something_are_rejected():
    for conditions, reason in (
        ((), "no condition on the state"),
        (CONDITIONS[:2], "state is not as the task asks"),
        ((condition("gone", "absent"),), "conditions hold from the start"),
    ):
        with pytest.raises(Rejected) as rejected:
            check_conditions(conditions, BEFORE, BEFORE if conditions and len(conditions) == 1 else AFTER)
        assert rejected.value.reason == reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | st.text("abcß房", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=3),
    max_leaves=8,
)
states = st.dictionaries(st.text("abc", min_size=1, max_size=2), json_values, min_size=1, max_size=3)


@given(states, st.integers(1, 5))
def test_no_tampered_state_passes(state, number):
    before, after = {**state, "number": 1}, {**state, "number": 1 + number}
    conditions = [condition("number", "changed_by", number)]
    assert meets_conditions(conditions, before, after)
    assert not meets_conditions(conditions, before, before)
    assert not any(meets_conditions(conditions, before, tampered) for tampered in tampered_states(after))


def test_a_change_that_cannot_be_computed_is_none():
    changed = (condition("funds", "changed_by", 0.5),)
    assert not meets_conditions(changed, {"funds": 10**400}, {"funds": 10**400})
