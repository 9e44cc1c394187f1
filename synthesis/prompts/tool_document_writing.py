"""The question what tool would answer a sub-question: its document."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.hard_wording import NAME_BY_THE_TRADE, harder
from synthesis.prompts.rendering import plain_question
from synthesis.prompts.unseen_tools import SELDOM_NAMED, seldom
from synthesis.questions.decomposition import DecompositionNode
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Language, ToolDocument
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Write the document of one tool that would answer the sub-question, and others of its kind.
- name: snake_case English; description: at most ten words, in the given language; it never mentions the answer.
- parameters: a small JSON Schema object; what varies between questions of this kind is a parameter; no defaults."""


class WriteToolDocument(Request[ToolDocument]):
    """Ask for the document of the tool that answers a sub-question."""

    role: ClassVar[Role] = "environment_writer"
    prompt_version: ClassVar[str] = "tool-document-1"
    reply_type: ClassVar[type[ToolDocument]] = ToolDocument

    knowledge: Knowledge
    node: DecompositionNode
    language: Language

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = {"sub_question": self.node.question, "answer": self.node.answer, "language": self.language}
        instructions = seldom(INSTRUCTIONS, SELDOM_NAMED, self.knowledge)
        return plain_question(harder(instructions, NAME_BY_THE_TRADE, self.knowledge), wanted)
