"""The question whether the agent called the right tools in a good order."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the assistant's plan over the whole conversation: the tools that the request needs, in an order in which each has
what it needs, none forgotten. Retries after a failed call are right.
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请评判助手在整个对话中的计划：请求需要的工具都用到，顺序使每个调用都有所需信息，没有遗漏。失败后的重试是正确的。
"""
    + HOW_TO_SCORE["zh"],
}


class JudgePlanning(Request[Judgement]):
    """Ask how good the agent's choice and order of tools was."""

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
