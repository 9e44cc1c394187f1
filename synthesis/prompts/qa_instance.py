"""The question that makes a QA instance from knowledge."""

from __future__ import annotations

from typing import ClassVar

from synthesis.prompts.hard_wording import ASK_AROUND, harder
from synthesis.prompts.unseen_tools import SELDOM_ASKED, seldom
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Scenario, canonical_json
from synthesis.teacher.protocol import Request, Role

INSTRUCTIONS = """\
Write one question that can only be answered by looking several facts up, and take it apart.
- Every lookup asks for exactly one fact and is answered by one short value (a text, a number, a date).
- A sub-question that needs another's answer lists that one in depends_on and mentions its answer by value.
- kind "computation" is for a last step that only works on earlier answers; everything else is "lookup".
- The main question mentions no answer of a lookup. All answers of lookups differ.
- composition says how the main answer is computed from lookups: same, list, sum, difference, largest, smallest, or
  which_largest / which_smallest with one name in choices per input.
- hops is the longest chain of lookups. List sub-questions in an order in which they can be answered.
- entities lists every named thing that occurs in the questions and answers."""


class WriteQAInstance(Request[QAInstance]):
    """Ask for a main question, its answer and its decomposition, of a given shape."""

    role: ClassVar[Role] = "environment_writer"
    prompt_version: ClassVar[str] = "qa-instance-1"
    reply_type: ClassVar[type[QAInstance]] = QAInstance

    knowledge: Knowledge
    scenario: Scenario
    num_lookups: int
    with_computation: bool
    """Whether a last sub-question, of kind computation, works on the lookups' answers."""
    max_hops: int

    def messages(self) -> list[dict[str, str]]:
        """Render the question for a chat model."""
        wanted = self.model_dump(mode="json", exclude={"knowledge"})
        knowledge = self.knowledge.model_dump(mode="json", exclude={"unseen", "difficulty"})
        return [
            {"role": "system", "content": self._instructions()},
            {
                "role": "user",
                "content": f"Knowledge:\n{canonical_json(knowledge)}\n\nWanted:\n{canonical_json(wanted)}",
            },
        ]

    def _instructions(self) -> str:
        return harder(seldom(INSTRUCTIONS, SELDOM_ASKED, self.knowledge), ASK_AROUND, self.knowledge)
