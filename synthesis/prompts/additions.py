"""Additions to instructions: for hard questions, for tools that no other split has, for packages."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from synthesis.prompts.rendering import version_of
from synthesis.questions.knowledge import Knowledge
from synthesis.records import NeededPackage

HARD_WORDING_VERSION: Final = "hard-wording-3"
ASK_EXACTLY: Final = (
    "\n- Each fact has neighbours, such as the former landlord beside the current one, or the audited cost beside the "
    "estimated one: the main question says which is meant. It is put as a person would say it: at most 30 words or 50 "
    "characters, 50 or 85 where many facts are asked for; a long way from fact to fact is told in two or three short "
    "sentences, not in clauses inside clauses. Prefer answers that are computed; composition may also be times or "
    "days_after, with an operand."
)
REGISTERS: Final = (
    "in everyday words",
    "in the words of the trade",
    "in the words of an official form",
    "tersely, as an engineer writes",
)
"""Ways of wording a tool's document; drawn for each tool, whether a question needs it or not."""
IN_REGISTER: Final = (
    "\n- Word name and description as <register> says. They say which of a fact's neighbours is meant, such as the "
    "former one, and have none of the sub-question's content words, but synonyms of them."
)

UNSEEN_TOOLS_VERSION: Final = "unseen-tools-1"
SELDOM_ASKED: Final = "\n- Ask for facts of this domain that questions seldom ask for."
SELDOM_NAMED: Final = (
    "\n- Name and describe the tools and their parameters in words that are seldom used for such tools: no name, no "
    "description and no parameter may be one that another system has."
)

_MAY_IMPORT: Final = (
    "\n- Where they make the code simpler it may import, beside the standard library, these packages and no others: "
    "{}. Values that are returned are plain JSON all the same (`float(x)`, `x.tolist()`)."
)
PACKAGES_VERSION: Final = f"packages-{version_of(_MAY_IMPORT)}"


def registers(key: str, count: int) -> list[str]:
    """Draw the registers of tools; the same key gives the same.

    >>> set(registers("a", 40)) == set(REGISTERS)
    True
    """
    rng = Random(f"registers/{key}")
    return [rng.choice(REGISTERS) for _ in range(count)]


def additions(knowledge: Knowledge, *, unseen: str, hard: str = "") -> str:
    """Return `unseen` if more than the worlds of a split must be unseen, and `hard` if words must not lead to the tool.

    >>> additions(Knowledge(domain="library", language="en", unseen="tools"), unseen=" Seldom.", hard="!")
    ' Seldom.'
    """
    return (unseen if knowledge.unseen != "worlds" else "") + (hard if knowledge.difficulty == "hard" else "")


def packages_listed(packages: Sequence[NeededPackage]) -> str:
    """Return the sentence that lists the packages that code may import; empty if there are none.

    >>> packages_listed([NeededPackage(name="pyyaml", version="6.0", modules=("yaml",))])[1:103]
    '- Where they make the code simpler it may import, beside the standard library, these packages and no o'
    """
    listed = "; ".join(f"{each.name} {each.version} (import {', '.join(each.modules)})" for each in packages)
    return _MAY_IMPORT.format(listed) if packages else ""
