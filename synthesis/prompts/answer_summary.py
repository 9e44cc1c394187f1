"""The question whether the final answer sums up what was found."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the assistant's final message as a summary: does it report what the tool responses say, the important things, and
nothing that they do not say?
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请把助手的最后一条消息作为总结来评判：它是否报告了工具返回中的要点，且没有返回中不存在的内容？
"""
    + HOW_TO_SCORE["zh"],
}


class JudgeAnswerSummary(Request[Judgement]):
    """Ask how faithfully the final answer sums up the tool responses."""

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
