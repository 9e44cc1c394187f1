"""Additions to instructions for tools that no other split may have."""

from __future__ import annotations

from typing import Final

from synthesis.questions.knowledge import Knowledge

PROMPT_VERSION: Final = "unseen-tools-1"
SELDOM_ASKED: Final = "\n- Ask for facts of this domain that questions seldom ask for."
SELDOM_NAMED: Final = (
    "\n- Name and describe the tools and their parameters in words that are seldom used for such tools: no name, no "
    "description and no parameter may be one that another system has."
)


def seldom(instructions: str, sentence: str, knowledge: Knowledge) -> str:
    """Add the sentence to the instructions where more than worlds must be unseen.

    >>> seldom("Write.", SELDOM_ASKED, Knowledge(domain="library", language="en"))
    'Write.'
    >>> seldom("Write.", SELDOM_ASKED, Knowledge(domain="library", language="en", unseen="tools"))
    'Write.\\n- Ask for facts of this domain that questions seldom ask for.'
    """
    return instructions if knowledge.unseen == "worlds" else instructions + sentence
