"""The question whether a last, computed sub-question needs a tool."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from synthesis.prompts.rendering import plain_question
from synthesis.questions.decomposition import DecompositionNode
from synthesis.records import JsonValue
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
The last sub-question of a task only works on answers that are already known. Say whether answering it still needs a
tool (needs_tool true), or whether a careful reader can do it unaided (false), and why in one sentence."""


class ToolNecessity(BaseModel):
    """Whether a sub-question needs a tool, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    needs_tool: bool
    reason: str


class JudgeToolNecessity(Request[ToolNecessity]):
    """Ask whether a computation at a leaf of the dependency graph needs a tool."""

    role: ClassVar[Role] = "judges"
    prompt_version: ClassVar[str] = "tool-necessity-1"
    reply_type: ClassVar[type[ToolNecessity]] = ToolNecessity

    node: DecompositionNode
    known_answers: tuple[JsonValue, ...]

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        return plain_question(INSTRUCTIONS, self.model_dump(mode="json"))
