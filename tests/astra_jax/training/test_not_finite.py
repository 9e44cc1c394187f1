"""Steps that are not finite are counted while they follow one another, and each leaves its batch."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from astra_jax.training.not_finite import NotFiniteSteps


class Batch(NamedTuple):
    tokens_BT: np.ndarray


def test_only_so_many_in_a_row_are_too_many_and_each_leaves_its_batch(tmp_path, capsys):
    steps = NotFiniteSteps("sft", tmp_path, most_in_a_row=2)
    too_many = []
    for step, applied in enumerate([0, 1, 0, 0]):
        metrics = {"applied": applied, "loss": math.nan, "grad_norm": math.inf}
        steps.note(step, metrics, Batch(np.full((1, 2), step)))
        too_many.append(steps.are_too_many)
    assert too_many == [False, False, False, True]
    assert sorted(path.name for path in (tmp_path / "not_finite").iterdir()) == [
        "step-000000.npz", "step-000002.npz", "step-000003.npz",
    ]  # fmt: skip
    with np.load(tmp_path / "not_finite" / "step-000003.npz") as kept:
        assert kept["tokens_BT"].tolist() == [[3, 3]]
    assert capsys.readouterr().err.count("is not applied") == 3
    assert "found 2 steps in a row without" in str(steps.error())


def test_who_resumes_counts_on_and_who_goes_on_after_too_many_counts_anew(tmp_path):
    def counted(*applied: int) -> bool:
        steps = NotFiniteSteps("sft", tmp_path, most_in_a_row=2)
        steps.go_on_after([{"applied": each} for each in applied])
        steps.note(7, {"applied": 0, "loss": math.nan, "grad_norm": math.inf}, Batch(np.zeros((1, 2))))
        return steps.are_too_many

    assert [counted(*applied) for applied in [(), (0, 1), (1, 0), (0, 0), (0, 0, 0)]] == [
        False, False, True, False, True,
    ]  # fmt: skip
