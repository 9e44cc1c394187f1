"""The question how a tool is called to answer a sub-question."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from synthesis.prompts.rendering import plain_question
from synthesis.questions.decomposition import DecompositionNode
from synthesis.questions.knowledge import Knowledge
from synthesis.records import JsonObject, ToolDocument
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Give the arguments of the one call of the tool that answers the sub-question, as a JSON object that satisfies the
tool's parameters. Use names and values exactly as the sub-question writes them."""


class CallArguments(BaseModel):
    """The arguments of a call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arguments: JsonObject


class WriteToolCall(Request[CallArguments]):
    """Ask for the arguments with which a tool answers a sub-question."""

    role: ClassVar[Role] = "environment_writer"
    prompt_version: ClassVar[str] = "tool-call-1"
    reply_type: ClassVar[type[CallArguments]] = CallArguments

    knowledge: Knowledge
    node: DecompositionNode
    document: ToolDocument

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = {"sub_question": self.node.question, "tool": self.document.to_openai()}
        return plain_question(INSTRUCTIONS, wanted)
