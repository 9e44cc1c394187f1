"""Additions to instructions about the packages that a tool's code may import."""

from __future__ import annotations

from collections.abc import Sequence

from synthesis.prompts.rendering import version_of
from synthesis.records import NeededPackage

_SENTENCE = (
    "\n- Where they make the code simpler it may import, beside the standard library, these packages and no others: "
    "{}. Values that are returned are plain JSON all the same (`float(x)`, `x.tolist()`)."
)
PROMPT_VERSION = f"packages-{version_of(_SENTENCE)}"


def with_packages(instructions: str, packages: Sequence[NeededPackage]) -> str:
    """Add to the instructions which packages there are; where there are none, nothing.

    >>> with_packages("Write.", ())
    'Write.'
    >>> with_packages("Write.", [NeededPackage(name="pyyaml", version="6.0", modules=("yaml",))]).splitlines()[1][:102]
    '- Where they make the code simpler it may import, beside the standard library, these packages and no o'
    """
    if not packages:
        return instructions
    listed = "; ".join(f"{each.name} {each.version} (import {', '.join(each.modules)})" for each in packages)
    return instructions + _SENTENCE.format(listed)
