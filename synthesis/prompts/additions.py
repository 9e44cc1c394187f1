"""Additions to instructions: for hard questions, and for tools that no other split has."""

from __future__ import annotations

from typing import Final

from synthesis.questions.knowledge import Knowledge

HARD_WORDING_VERSION: Final = "hard-wording-1"
ASK_AROUND: Final = (
    "\n- Circumscribe in the main question what is asked for, as people do who do not know the words of the trade: a "
    "reader knows what is meant, but no technical term stands there. Prefer answers that are computed; composition may "
    "also be times or days_after, with an operand."
)
NAME_BY_THE_TRADE: Final = (
    "\n- Name and describe the tool in terms of the trade. None of the content words of the sub-question, and none of "
    "those by which a lay person would ask for it, stands in the name or the description."
)

UNSEEN_TOOLS_VERSION: Final = "unseen-tools-1"
SELDOM_ASKED: Final = "\n- Ask for facts of this domain that questions seldom ask for."
SELDOM_NAMED: Final = (
    "\n- Name and describe the tools and their parameters in words that are seldom used for such tools: no name, no "
    "description and no parameter may be one that another system has."
)


def harder(instructions: str, sentence: str, knowledge: Knowledge) -> str:
    """Add the sentence to the instructions if the words of a question must not lead to its tool.

    >>> harder("Write.", ASK_AROUND, Knowledge(domain="library", language="en"))
    'Write.'
    """
    return instructions if knowledge.difficulty == "plain" else instructions + sentence


def seldom(instructions: str, sentence: str, knowledge: Knowledge) -> str:
    """Add the sentence to the instructions if more than the worlds of a split must be unseen.

    >>> seldom("Write.", SELDOM_ASKED, Knowledge(domain="library", language="en"))
    'Write.'
    >>> seldom("Write.", SELDOM_ASKED, Knowledge(domain="library", language="en", unseen="tools"))
    'Write.\\n- Ask for facts of this domain that questions seldom ask for.'
    """
    return instructions if knowledge.unseen == "worlds" else instructions + sentence
