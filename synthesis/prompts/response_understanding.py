"""The question whether the agent understood the tool responses it has just seen."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the last message of the conversation: does it take from the tool responses before it what they say, failures
included, without misreading or inventing anything?
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请评判对话的最后一条消息：它是否正确采用了之前工具返回的内容（包括失败），没有误读或编造？
"""
    + HOW_TO_SCORE["zh"],
}


class JudgeResponseUnderstanding(Request[Judgement]):
    """Ask how well one assistant message shows that the tool responses before it were understood."""

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
