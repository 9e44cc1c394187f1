"""The question how a tool's document is made as complex as those of real services."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.rendering import plain_question
from synthesis.prompts.unseen_tools import SELDOM_NAMED, seldom
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolDocument
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Make the document of a tool as complex as that of a real service: add one to three optional parameters, such as a unit,
a page, a precision, a filter or a mask.
- The name, the required parameters and their schemas stay as they are.
- Each added parameter has a description in the document's language and a default that its schema allows. Leaving it
  out does the same as giving the default; another value gives another result, or an error.
- At one setting of the added parameters, which need not be the defaults, the tool returns what it returned before."""


class ScaleToolDocument(Request[ToolDocument]):
    """Ask for optional parameters; neither question nor answer is told, so that tools of one kind stay of one kind."""

    role: ClassVar[Role] = "environment_writer"
    prompt_version: ClassVar[str] = "tool-document-scaling-1"
    reply_type: ClassVar[type[ToolDocument]] = ToolDocument

    knowledge: Knowledge
    document: ToolDocument

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = {"tool": self.document.model_dump(mode="json"), "language": self.knowledge.language}
        return plain_question(seldom(INSTRUCTIONS, SELDOM_NAMED, self.knowledge), wanted)
