"""The best policy is whole at every moment: until a better one is, the earlier one is in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra_jax.rl import held_out
from astra_jax.rl.held_out import Best, BestPolicy


def write(folder: Path, weights: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(str(weights))


def kept(out: Path) -> str:
    return (out / "best" / "weights").read_text()


def test_the_first_of_the_highest_is_kept_also_by_another_process(tmp_path):
    policies = BestPolicy(tmp_path, write)
    assert policies.best is None
    found = [policies.keep(Best(step, f1), f"of {step}") for step, f1 in ((2, 0.0), (4, 0.5), (6, 0.4), (8, 0.5))]
    assert found == [True, True, False, False]
    assert kept(tmp_path) == "of 4"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "best_00000004"]
    resumed = BestPolicy(tmp_path, write)
    assert resumed.best == Best(4, 0.5)
    assert not resumed.keep(Best(4, 0.5), "the same step again")
    assert resumed.keep(Best(10, 0.51), "of 10")
    assert kept(tmp_path) == "of 10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "best_00000010"]


def test_a_run_folder_may_be_moved(tmp_path):
    BestPolicy(tmp_path / "run", write).keep(Best(2, 0.1), "of 2")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert kept(tmp_path / "moved") == "of 2"


class Killed(BaseException):
    """The process is gone: nothing after it runs."""


def dies(*_: object) -> None:
    raise Killed


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("while it is written", "of 2"),
        ("before the link is moved", "of 2"),
        ("before the earlier one is removed", "of 4"),
    ],
)
def test_a_kill_at_any_moment_leaves_one_that_is_whole_and_the_same_run_again_ends_with_the_better_one(
    tmp_path, monkeypatch, moment, expected
):
    BestPolicy(tmp_path, write).keep(Best(2, 0.3), "of 2")

    def save(folder: Path, weights: object) -> None:
        write(folder, weights)
        if moment == "while it is written":
            dies()

    with monkeypatch.context() as patch:
        if moment == "before the link is moved":
            patch.setattr(held_out.os, "replace", dies)
        if moment == "before the earlier one is removed":
            patch.setattr(held_out.shutil, "rmtree", dies)
        with pytest.raises(Killed):
            BestPolicy(tmp_path, save).keep(Best(4, 0.5), "of 4")
    assert kept(tmp_path) == expected
    resumed = BestPolicy(tmp_path, write)
    assert resumed.best == Best(int(expected.removeprefix("of ")), 0.3 if expected == "of 2" else 0.5)
    resumed.keep(Best(4, 0.5), "of 4")
    resumed.keep(Best(6, 0.6), "of 6")
    assert kept(tmp_path) == "of 6"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "best_00000006"]
