"""The question how a task reads when it leaves out what it is about."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from synthesis.prompts.rendering import plain_question
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolCall
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Rewrite the question so that it leaves out one value that the call needs, as a hurried user would, and stays natural.
Give the new question, the name of the call's argument that can no longer be told from it, and the value left out."""


class OmittedParameter(BaseModel):
    """A question that leaves one argument of a call open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str
    argument: str
    value: str


class OmitParameter(Request[OmittedParameter]):
    """Ask for a question that cannot be answered without asking back."""

    role: ClassVar[Role] = "environment_writer"
    prompt_version: ClassVar[str] = "parameter-omission-1"
    reply_type: ClassVar[type[OmittedParameter]] = OmittedParameter

    knowledge: Knowledge
    question: str
    call: ToolCall

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = {"question": self.question, "call": self.call.arguments}
        return plain_question(INSTRUCTIONS, wanted)
