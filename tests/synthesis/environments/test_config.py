"""A config that contradicts itself is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from synthesis.environments.config import held_out_configs
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import tiny_config


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"quality_threshold": 1.1}, "less than or equal to 1"),
        ({"quality_threshold": -0.1}, "greater than or equal to 0"),
        ({"quality_threshold": {"value": 0.9}}, "valid number"),
        ({"unseen": "tools"}, "expected directories in disjoint_from, whose tools are not to occur"),
        ({"demonstrations": {"recovers": 0.6, "gives_up": 0.5}}, "sum to at most 1, found 1.1"),
        ({"difficulty": "hard", "varieties": {"stateful": 1.0}}, 'expected difficulty = "plain"'),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_config(seed=0, count=1, out="out", **fields)


def test_a_training_of_every_domain_or_of_hard_environments_has_no_held_out_splits() -> None:
    training = tiny_config(seed=0, count=1, out=Path("out"))
    with pytest.raises(ValueError, match="expected a default domain that is not among"):
        held_out_configs(training)
    with pytest.raises(ValueError, match="for which there are no unseen tools"):
        held_out_configs(altered(training, difficulty="hard"))
