"""The table of mutants is kept with the code, and mutmut's list of modules and tests as well."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
fault, killers_of, drawn = SCRIPT["fault"], SCRIPT["killers_of"], SCRIPT["drawn"]
ROWS = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))["mutant"]


def test_the_old_text_of_every_row_stands_once_in_its_file():
    assert 0 < len(ROWS) <= 100
    assert [line for row in ROWS if (line := fault(row, ROOT))] == []
    assert len({(row["file"], row["old"], row["new"]) for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"old": "one"}, "has 'one' 3 times"),
        ({"old": "three"}, "has 'three' 0 times"),
        ({"new": "= 1"}, "differ from new"),
        ({"file": "other.py"}, "other.py does not exist"),
        ({"tests": "test_code.py"}, "give it file, old, new and why"),
    ],
)
def test_a_row_that_does_not_fit_the_code_is_told_in_one_line(tmp_path, change, says):
    (tmp_path / "code.py").write_text("one = 1\ntwo = one + one\n")
    row = {"file": "code.py", "old": "= 1", "new": "= 2", "why": "One is 1."}
    assert fault(row, tmp_path) is None
    assert says in fault(row | change, tmp_path)


def test_a_files_own_tests_come_first_and_a_folder_without_tests_has_those_above_it(tmp_path):
    (tmp_path / "tests" / "engine").mkdir(parents=True)
    (tmp_path / "tests" / "engine" / "test_pages.py").touch()
    assert killers_of("engine/pages.py", tmp_path) == ["tests/engine/test_pages.py", "engine/pages.py", "tests/engine"]
    assert killers_of("engine/inner/rows.py", tmp_path) == ["engine/inner/rows.py", "tests/engine"]


def test_the_same_mutants_of_each_module_are_drawn_each_time():
    names = [f"{module}.x_f__mutmut_{i}" for module in ("rl.batch", "rl.metrics") for i in range(30)]
    chosen = drawn(names, 10)
    assert chosen == drawn(names[::-1], 10)
    assert set(chosen) < set(drawn(names, 11))
    assert len(chosen) == 20
    assert sorted(drawn(names, 0)) == sorted(names)


def test_the_modules_and_killers_of_mutmut_are_there():
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mutmut"]
    named = [*config["only_mutate"], *config["pytest_add_cli_args_test_selection"]]
    assert [name for name in named if not (ROOT / name.partition("::")[0]).is_file()] == []
