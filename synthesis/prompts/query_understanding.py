"""The question whether the agent understood what the user wants."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the last message of the conversation, the assistant's first reaction to the request: did it understand what is
wanted, with which values, and, if a fact is missing or no tool fits, did it notice?
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请评判对话的最后一条消息，即助手对请求的第一反应：它是否理解了想要什么、用哪些值；若缺少事实或没有合适的工具，它是否察觉？
"""
    + HOW_TO_SCORE["zh"],
}


class JudgeQueryUnderstanding(Request[Judgement]):
    """Ask how well the agent's first message shows that it understood the request."""

    prompt_version: ClassVar[str] = version_of(*INSTRUCTIONS.values())
    reply_type: ClassVar[type[Judgement]] = Judgement

    task: Task
    tools: tuple[ToolDocument, ...]
    conversation: tuple[Message, ...]
    """Everything up to the judged assistant message, which is the last one; nothing that came after it."""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        return question(
            INSTRUCTIONS,
            self.task.language,
            tools=tools_shown(self.tools),
            conversation=messages_shown(self.conversation),
        )
