"""The question how a tool is implemented so that its call gives the sub-answer."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from synthesis.prompts.rendering import correction, plain_question
from synthesis.questions.decomposition import DecompositionNode
from synthesis.questions.knowledge import Knowledge
from synthesis.records import JsonObject, ToolCall, ToolDocument
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Implement the tool in Python so that the call returns the answer.
- source: one module-level function named as the tool, with the document's parameters and type annotations. It reads
  its data from the global dict TABLES and returns a plain JSON value. No printing, files, network, clock or randomness.
- tables: the JSON object behind TABLES. It holds the row that gives the answer and at least four other plausible rows
  with other values; no value of the data stands in the code.
- Arguments without a row raise ValueError with a clear message."""


class ToolImplementation(BaseModel):
    """A tool's module text and its data tables."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    tables: JsonObject


class WriteToolImplementation(Request[ToolImplementation]):
    """Ask for a tool's code and data; after a failed proof the last try and what was wrong with it come along."""

    role: ClassVar[Role] = "coder"
    prompt_version: ClassVar[str] = "tool-implementation-1"
    reply_type: ClassVar[type[ToolImplementation]] = ToolImplementation

    knowledge: Knowledge
    node: DecompositionNode
    document: ToolDocument
    call: ToolCall
    last_try: ToolImplementation | None = None
    failure: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = {
            "tool": self.document.to_openai(),
            "sub_question": self.node.question,
            "call": self.call.arguments,
            "answer": self.node.answer,
        }
        return plain_question(INSTRUCTIONS, wanted) + correction(self.last_try, self.failure)
