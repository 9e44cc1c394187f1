"""The question whether the final answer answers the request."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the assistant's final message: does it answer what the user asked, all of it, in the user's language? Where no
tool fits or something could not be done, saying so plainly is the right answer.
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请评判助手的最后一条消息：它是否用用户的语言完整回答了所问？若没有合适的工具或某事未能完成，坦率说明就是正确的回答。
"""
    + HOW_TO_SCORE["zh"],
}


class JudgeAnswerRelevance(Request[Judgement]):
    """Ask how well the final answer answers what was asked."""

    prompt_version: ClassVar[str] = version_of(*INSTRUCTIONS.values())
    reply_type: ClassVar[type[Judgement]] = Judgement

    task: Task
    tools: tuple[ToolDocument, ...]
    conversation: tuple[Message, ...]
    """The whole trajectory."""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        return question(
            INSTRUCTIONS,
            self.task.language,
            tools=tools_shown(self.tools),
            conversation=messages_shown(self.conversation),
        )
