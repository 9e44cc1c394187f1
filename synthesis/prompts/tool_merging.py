"""The question how one more sub-question is made answerable by a tool that answers others of its kind."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.rendering import plain_question
from synthesis.prompts.tool_implementation_writing import ToolImplementation
from synthesis.records import EnvironmentTool, JsonValue, SubQuestion
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Two tools have the same document and answer different sub-questions. Join them: return one implementation whose data
covers both, so that every call listed returns its own answer and no other. The signature stays as it is."""


class MergeTools(Request[ToolImplementation]):
    """Ask for one implementation in place of two homogeneous ones."""

    role: ClassVar[Role] = "coder"
    prompt_version: ClassVar[str] = "tool-merging-1"
    reply_type: ClassVar[type[ToolImplementation]] = ToolImplementation

    merged: EnvironmentTool
    inserted: EnvironmentTool
    sub_questions: tuple[SubQuestion, ...]

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        calls: list[JsonValue] = [
            {"arguments": sub_question.call.arguments, "answer": sub_question.answer}
            for sub_question in self.sub_questions
            if sub_question.call is not None
        ]
        wanted = {
            "tools": [self.merged.model_dump(mode="json"), self.inserted.model_dump(mode="json")],
            "calls": calls,
        }
        return plain_question(INSTRUCTIONS, wanted)
