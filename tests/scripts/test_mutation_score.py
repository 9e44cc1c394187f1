"""The mutation score counts what mutmut found, and its list of modules and tests is kept with the code."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutation_score.py"))
Score, drawn, of_all = SCRIPT["Score"], SCRIPT["drawn"], SCRIPT["of_all"]
scores, statuses = SCRIPT["scores"], SCRIPT["statuses"]
FOUND = {
    **{f"rl.advantage.x_std__mutmut_{i}": status for i, status in enumerate(["killed", "timeout", "survived"])},
    **{f"rl.batch.xǁRowsǁmake__mutmut_{i}": status for i, status in enumerate(["segfault", "no tests"])},
}


def test_the_modules_and_tests_are_there():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    named = [*config["only_mutate"], *config["pytest_add_cli_args_test_selection"]]
    assert [name for name in named if not (ROOT / name.partition("::")[0]).is_file()] == []


def test_what_mutmut_prints_is_read():
    printed = "".join(f"    {name}: {status}\n" for name, status in FOUND.items())
    assert statuses(f"Mutants:\n{printed}") == FOUND


def test_a_mutant_that_no_test_runs_survives_and_a_timeout_kills():
    assert scores(FOUND, list(FOUND)) == [Score("rl.advantage", 3, 3, 2, 1), Score("rl.batch", 2, 2, 1, 1)]
    assert scores(FOUND, ["rl.advantage.x_std__mutmut_2"]) == [Score("rl.advantage", 3, 1, 0, 0)]


@pytest.mark.parametrize("status", ["not checked", "check was interrupted by user", "suspicious"])
def test_a_mutant_that_was_not_tried_to_the_end_has_no_score(status: str):
    with pytest.raises(ValueError, match=f"x_std__mutmut_0': '{status}'"):
        scores({**FOUND, "rl.advantage.x_std__mutmut_0": status}, list(FOUND))


def test_a_seed_draws_the_same_mutants_of_each_module():
    names = [f"{module}.x_f__mutmut_{i}" for module in ("rl.batch", "rl.metrics") for i in range(100)] + list(FOUND)
    chosen = drawn(names, sample=10, seed=3)
    assert chosen == drawn(names[::-1], sample=10, seed=3) != drawn(names, sample=10, seed=4)
    assert set(chosen) < set(drawn(names, sample=11, seed=3))
    assert [score[:3] for score in scores(dict.fromkeys(names, "killed"), chosen)] == [
        ("rl.advantage", 3, 3),
        ("rl.batch", 102, 10),
        ("rl.metrics", 100, 10),
    ]
    assert sorted(drawn(names, sample=0, seed=3)) == sorted(names)


def test_only_a_sample_is_uncertain():
    assert Score("m", 30, 30, 24, 0).half_width == 0
    assert Score("m", 300, 30, 24, 0).half_width == pytest.approx(0.137, abs=0.002)
    assert Score("m", 300, 30, 30, 0).half_width > 0


def test_a_module_weighs_as_much_as_it_has_mutants():
    share, half_width = of_all([Score("large", 300, 30, 24, 0), Score("small", 30, 30, 15, 0)])
    assert share == pytest.approx((300 * 0.8 + 30 * 0.5) / 330)
    assert half_width == pytest.approx(300 / 330 * Score("large", 300, 30, 24, 0).half_width)
