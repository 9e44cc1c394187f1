"""The question for a task whose tools change the episode's state, with tools and state."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.rendering import correction, plain_question
from synthesis.prompts.unseen_tools import SELDOM_NAMED, seldom
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import EnvironmentTool, JsonObject, Record, Scenario, ToolCall
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Write a task that first changes something and then asks for something that depends on the change.
- state: a JSON object with the records that the tools read and change, other plausible records included.
- tools: each one module-level Python function named as its document, with the document's parameters and one further
  parameter `state`, which it may change in place. It returns a plain JSON value. Unknown arguments raise ValueError and
  leave the state as it was. No printing, files, network, clock or randomness; no value of the state in the code.
- instance: the main question and its sub-questions, one per call, in an order in which they can be done. Every answer
  is a value that the question does not tell, all differ, and a sub-question that depends on an earlier one gets another
  answer when that one was not done.
- calls: the call of each sub-question, in the same order."""


class StatefulTask(Record):
    """A task on a state: the instance, the call of each sub-question, the tools, and the state it starts from."""

    instance: QAInstance
    calls: tuple[ToolCall, ...]
    tools: tuple[EnvironmentTool, ...]
    state: JsonObject


class WriteStatefulTask(Request[StatefulTask]):
    """Ask for a stateful task; after a failed proof the last try and what was wrong with it come along."""

    role: ClassVar[Role] = "coder"
    prompt_version: ClassVar[str] = "stateful-task-1"
    reply_type: ClassVar[type[StatefulTask]] = StatefulTask

    knowledge: Knowledge
    scenario: Scenario
    num_lookups: int
    last_try: StatefulTask | None = None
    failure: str = ""

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = self.model_dump(mode="json", exclude={"last_try": True, "failure": True, "knowledge": {"unseen"}})
        instructions = seldom(INSTRUCTIONS, SELDOM_NAMED, self.knowledge)
        return plain_question(instructions, wanted) + correction(self.last_try, self.failure)
