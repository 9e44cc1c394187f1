"""The lock file has each package that pyproject.toml asks for, in an allowed version, with hashes and no host."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_import_rules import ROOT

LOCK = (ROOT / ".ci" / "lock-py311.txt").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = {"python_version": "3.11", "sys_platform": "linux", "platform_system": "Linux", "extra": ""}


def locked(text: str) -> dict[str, str]:
    """The version of each package; every line that begins none is a hash of the one before it."""
    versions = {}
    for entry in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        pinned, *hashes = entry.split(" --hash=")
        assert hashes, f"expected a hash, found {entry!r}"
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each) for each in hashes), entry
        name, _, version = pinned.partition("==")
        versions[canonicalize_name(name.partition("[")[0])] = version
    return versions


def wanted(*extras: str) -> Iterator[Requirement]:
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, lines):
        if requirement.name == PROJECT["name"]:
            yield from wanted(*requirement.extras)
        elif requirement.marker is None or requirement.marker.evaluate(ENVIRONMENT):
            yield requirement


def unsatisfied(versions: dict[str, str]) -> list[str]:
    found = ((str(each), versions.get(canonicalize_name(each.name)), each.specifier) for each in wanted("mcp", "dev"))
    return sorted(
        {f"{text}: {version}" for text, version, allowed in found if version is None or version not in allowed}
    )


def test_the_lock_file_satisfies_pyproject():
    versions = locked(LOCK)
    assert unsatisfied(versions) == []
    for name, version in (("jax", "0.9.0"), ("pytest", None)):
        assert [line.partition(":")[0].startswith(name) for line in unsatisfied({**versions, name: version})] == [True]


def test_the_lock_file_names_no_host():
    assert "://" not in LOCK
    assert not re.search(r"^\s*(-i|--(extra-)?index|--find-links)", LOCK, re.MULTILINE)
