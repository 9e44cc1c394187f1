"""Additions to instructions for hard questions, whose words must not lead to the tool."""

from __future__ import annotations

from typing import Final

from synthesis.questions.knowledge import Knowledge

PROMPT_VERSION: Final = "hard-wording-1"
ASK_AROUND: Final = (
    "\n- Circumscribe in the main question what is asked for, as people do who do not know the words of the trade: a "
    "reader knows what is meant, but no technical term stands there. Prefer answers that are computed; composition may "
    "also be times or days_after, with an operand."
)
NAME_BY_THE_TRADE: Final = (
    "\n- Name and describe the tool in terms of the trade. None of the content words of the sub-question, and none of "
    "those by which a lay person would ask for it, stands in the name or the description."
)


def harder(instructions: str, sentence: str, knowledge: Knowledge) -> str:
    """Add the sentence to the instructions where words are not to lead to the tool.

    >>> harder("Write.", ASK_AROUND, Knowledge(domain="library", language="en"))
    'Write.'
    """
    return instructions if knowledge.difficulty == "plain" else instructions + sentence
