"""The question whether the agent did the right thing after the tool responses it has just seen."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.judgement import HOW_TO_SCORE, Judgement
from synthesis.prompts.rendering import messages_shown, question, tools_shown, version_of
from synthesis.records import Language, Message, Task, ToolDocument
from synthesis.teacher.protocol import Request

INSTRUCTIONS: dict[Language, str] = {
    "en": """\
Judge the last message of the conversation as a decision: given the tool responses so far, is this the right next step
(the next call, another try after a passing failure, or the answer when all is there)?
"""
    + HOW_TO_SCORE["en"],
    "zh": """\
请把对话的最后一条消息作为一个决定来评判：根据目前的工具返回，这是否是正确的下一步（下一个调用、暂时失败后的重试，或在信息齐全时作答）？
"""
    + HOW_TO_SCORE["zh"],
}


class JudgeResponsePlanning(Request[Judgement]):
    """Ask how right one assistant message is as the step after the tool responses before it."""

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
