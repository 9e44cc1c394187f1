"""An episode is shown its own tools and up to K distractors of each band, and their order tells nothing."""

from __future__ import annotations

from collections import Counter

import pytest

from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.testing import tiny_environment
from tests.astra_jax.distractors import with_distractors

ENVIRONMENT = with_distractors(tiny_environment(), per_band=3)
OWN = {tool.document.name for tool in ENVIRONMENT.tools}


def names(seed: int, **per_band: int) -> list[str]:
    tools = mix_tools(ENVIRONMENT, irrelevant_per_band=per_band, seed=seed)  # type: ignore[arg-type]
    return [tool.document.name for tool in tools]


def test_up_to_k_distractors_of_each_band_stand_among_all_own_tools():
    for seed in range(20):
        shown = set(names(seed, high=2, low=9))
        assert shown >= OWN
        assert Counter(name.split("_")[0] for name in shown - OWN) == {"high": 2, "low": 3}
        assert set(names(seed)) == OWN


def test_a_seed_decides_which_tools_are_shown_and_their_order():
    assert names(1, high=1, medium=1) == names(1, high=1, medium=1)
    shown = [names(seed, high=1, medium=1) for seed in range(200)]
    assert {frozenset(each) - OWN for each in shown} == {
        frozenset({f"high_{i}", f"medium_{j}"}) for i in range(3) for j in range(3)
    }
    assert len({each.index("find_flat") for each in shown}) == 4, "an own tool may stand anywhere"


def test_two_tools_of_one_name_are_never_shown_together():
    twin = ENVIRONMENT.irrelevant_tools[0].model_copy(update={"tool": ENVIRONMENT.tools[0]})
    doubled = ENVIRONMENT.model_copy(update={"irrelevant_tools": (twin,)})
    with pytest.raises(ValueError, match=r"different names, found twice: \['find_flat'\]"):
        mix_tools(doubled, irrelevant_per_band={"high": 1}, seed=0)
