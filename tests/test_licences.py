"""Every package that astra-jax and its extras bring has a known licence that Apache-2.0 software may depend on.

`make licences` prints the list: package, version, licence, and the megabytes of all. `EXTRAS=mcp` names other extras.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_lock import wanted

EXTRAS = ("mcp", "openai", "tables", "embeddings", "gguf", "gcs", "parity", "docs", "dev")
FREE = re.compile(
    r"\b(apache|bsd|mit|isc|psf|python software foundation|cnri-python|unlicense|zlib|cc0|0bsd|hpnd|bsl-1.0)\b", re.I
)
WEAK = re.compile(r"\b(mpl|mozilla|lgpl|lesser general public)\b", re.I)
"""Copyleft of the package's own files alone: it may be imported unchanged."""
STRONG = re.compile(r"\b(agpl|affero|gpl|sspl|general public license)\b", re.I)
READ_BY_HAND = {"httpx-aiohttp": "BSD-3-Clause"}
"""Licences of packages whose metadata name none, as their sources state them."""


def brought(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[Distribution]:
    """Yield an installed package and all that it requires; an extra that is not installed brings nothing."""
    key = (canonicalize_name(name), extras)
    if key in seen:
        return
    seen.add(key)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    for requirement in map(Requirement, found.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            yield from brought(requirement.name, frozenset(requirement.extras), seen)


def licence_of(name: str) -> str:
    """Return the licence that a package's metadata state, at most the first line; empty if they state none."""
    stated = metadata(name)
    classifiers = [each.rsplit(" :: ", 1)[1] for each in stated.get_all("Classifier", []) if each.startswith("License")]
    field = (stated.get("License") or "").strip().partition("\n")[0]
    listed = [str(stated.get("License-Expression") or ""), *classifiers, field]
    return READ_BY_HAND.get(canonicalize_name(name), "") or next(filter(_is_told, listed), "")


def _is_told(licence: str | None) -> bool:
    return licence not in (None, "", "UNKNOWN")


def fault(licence: str) -> str:
    """Return the reason why a dependency may not have a licence; empty if it may.

    >>> [fault(each) for each in ("Apache-2.0", "LGPL-2.1", "GPL-3.0-only", "MIT OR GPL-2.0", "MIT AND GPL-2.0", "")]
    ['', '', 'copyleft', '', 'copyleft', 'unknown']
    """
    parts = [re.split(r" OR ", part) for part in re.split(r" AND ", licence)]
    if all(any(FREE.search(each) or WEAK.search(each) for each in part) for part in parts):
        return ""
    return "copyleft" if STRONG.search(licence) else "unknown"


def packages(extras: Sequence[str] = EXTRAS) -> dict[str, Distribution]:
    """Return every package that this project and its extras bring here, by name."""
    seen: set[tuple[str, frozenset[str]]] = set()
    asked = wanted(*extras)
    found = (each for line in asked for each in brought(line.name, frozenset(line.extras), seen))
    return {canonicalize_name(each.name): each for each in found}


def test_no_dependency_has_an_unknown_licence_or_one_that_spreads():
    found = packages()
    assert {"jax", "pydantic", "mcp"} <= found.keys()
    assert {name: licence_of(name) for name in found if fault(licence_of(name))} == {}


if __name__ == "__main__":
    listed = packages(sys.argv[1:] or EXTRAS)
    for name, package in sorted(listed.items()):
        print(f"{name:<36}{package.version:<16}{licence_of(name)}")
    files = (Path(str(file.locate())) for package in listed.values() for file in package.files or ())
    total = sum(file.stat().st_size for file in files if file.is_file())
    print(f"{len(listed)} packages, {total / 1e6:,.0f} MB")
