"""The table of mutants is kept with the code: each of them applies, and its tests are there."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "mutants.py"))
MUTANTS, Mutant, fault = SCRIPT["MUTANTS"], SCRIPT["Mutant"], SCRIPT["fault"]


def test_there_are_at_least_eighty_mutants_and_no_two_are_alike():
    assert len(MUTANTS) >= 80
    assert len({(mutant.file, mutant.before, mutant.after) for mutant in MUTANTS}) == len(MUTANTS)


def test_every_mutant_applies_once_and_its_tests_exist():
    assert [line for mutant in MUTANTS if (line := fault(mutant, ROOT))] == []


def test_a_mutant_that_no_longer_applies_is_found(tmp_path):
    (tmp_path / "code.py").write_text("one = 1\ntwo = one + one\n")
    (tmp_path / "test_code.py").touch()
    assert fault(Mutant("code.py", "= 1", "= 2", ("test_code.py::test_one",)), tmp_path) is None
    for mutant in (
        Mutant("code.py", "one", "two", ("test_code.py",)),
        Mutant("code.py", "three", "two", ("test_code.py",)),
        Mutant("code.py", "= 1", "= 1", ("test_code.py",)),
        Mutant("code.py", "= 1", "= 2", ("test_other.py",)),
        Mutant("code.py", "= 1", "= 2", ()),
        Mutant("other.py", "= 1", "= 2", ("test_code.py",)),
    ):
        assert fault(mutant, tmp_path) is not None
