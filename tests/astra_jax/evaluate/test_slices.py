"""Slices: every environment is in one slice of each kind, and a slice's figures are those of its environments alone."""

from __future__ import annotations

import pytest

from astra_jax.evaluate.conduct import figures_of
from astra_jax.evaluate.slices import SLICED, evaluated, kinds_of, slices_of
from tests.astra_jax.evaluate.test_conduct import ASK_BACK, ASKED, REFUSE, ended, find, outcome, rent


def of(number: int, episodes, **changes):
    environment = ASKED.model_copy(update={"id": f"e{number}", **changes})
    return evaluated([ended(environment, *calls) for calls in episodes])


SOLVED, HALF = [find(turn=1), rent(turn=2)], [find(turn=1)]
STRAYED = [find(turn=1), outcome("high_0", 1, turn=1, irrelevant=True)]


def test_a_slice_has_the_figures_of_its_environments_and_how_many_they_are():
    environments = [
        of(0, [SOLVED, HALF], hops=10),
        of(1, [SOLVED, SOLVED], hops=2),
        of(2, [STRAYED, HALF], hops=2, language="zh"),
    ]
    found = slices_of(environments, seed=0)
    assert list(found["hops"]) == ["2", "10"]
    two = found["hops"]["2"]
    assert (two["environments"], two["episodes"]) == (2, 4)
    # HALF is 2·1/(2+1), STRAYED 2·1/(2+2); of the 7 calls of the two environments one went to a distractor.
    assert two["f1"] == pytest.approx((1 + 1 + 2 / 3 + 1 / 2) / 4, abs=1e-6)
    assert two["irrelevant_call_share"] == 1 / 7
    assert found["hops"]["10"]["f1"] == pytest.approx((1 + 2 / 3) / 2, abs=1e-6)
    assert found["hops"]["10"]["irrelevant_call_share_interval"] == [0.0, 0.0]
    for kind, by_value in found.items():
        assert sum(figures["environments"] for figures in by_value.values()) == 3, kind
        assert all(set(SLICED) <= figures.keys() for figures in by_value.values())
    whole = figures_of([environment.terms for environment in environments], seed=0)
    assert found["scenario"] == {
        "multi_hop": {
            "environments": 3,
            "episodes": 6,
            **{name: value for name, value in whole.items() if name.removesuffix("_interval") in SLICED},
        }
    }


def test_the_slices_of_an_environment_are_read_from_its_record():
    assert kinds_of(ASKED.model_copy(update={"difficulty": "hard"}))["difficulty"] == "hard"
    stateful = ASKED.model_copy(update={"state": {"a": 1}, "final_state": {"a": 2}})
    without_a_value = ASK_BACK.model_copy(update={"left_out": None, "sub_questions": ()})
    endings = [kinds_of(each)["ending"] for each in (ASKED, REFUSE, ASK_BACK, without_a_value, stateful)]
    assert endings == ["answer", "refuse", "ask_back_then_answer", "ask_back", "leave_state"]
    with pytest.raises(ValueError, match=r"^the environment has no episodes; pass at least one$"):
        evaluated([])
