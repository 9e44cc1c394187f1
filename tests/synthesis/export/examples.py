"""Small records for the tests of exports, with every detail that a format could lose."""

from __future__ import annotations

from astra_jax.testing import tiny_environment
from synthesis.records import (
    Environment,
    IrrelevantTool,
    Message,
    Provenance,
    RewardAxes,
    SubQuestion,
    ToolCall,
    Trajectory,
)
from tests.synthesis.trajectories.servers import HOTELS, task


def environments() -> list[Environment]:
    """Answers of digits, of a date and of a number; distractors, a state, a question back."""
    plain = tiny_environment()
    # Another owner's tables have other keys, and in another order than the alphabet's.
    digits = tiny_environment(owner="Zinc Owl", flat="0042", rent=7).model_copy(
        update={"id": "digits", "answer": "007", "aliases": ("seven",), "language": "zh", "difficulty": "hard"}
    )
    first, *others = digits.sub_questions
    digits = digits.model_copy(update={"sub_questions": (first.model_copy(update={"aliases": ("flat 42",)}), *others)})
    distractor = tiny_environment(owner="Tin Mole", flat="2026-11-23").tools[0]
    distractor = distractor.model_copy(update={"document": distractor.document.model_copy(update={"name": "a_flat"})})
    rival = IrrelevantTool(tool=distractor, band="high", similarity=1.0, cosine=0.5, arguments={"owner": "Tin Mole"})
    mixed = tiny_environment(flat="2026-11-23").model_copy(update={"id": "mixed", "irrelevant_tools": (rival,)})
    with_state = plain.model_copy(update={"id": "state", "state": {"n": "01"}, "final_state": {"n": 1}})
    asked = (SubQuestion(id="q1", question="Which owner?", answer=None),)
    asks_back = {"expectation": "ask_back", "missing": "owner", "sub_questions": asked, "composition": None}
    asks = plain.model_copy(update={"id": "asks", **asks_back})
    return [record.sealed() for record in (plain, digits, mixed, with_state, asks)]


def trajectory(*messages: Message) -> Trajectory:
    """A conversation on the hotel server."""
    return Trajectory(
        id="trajectory-1",
        server=HOTELS.name,
        domain=HOTELS.domain,
        language="en",
        task=task("find_hotel"),
        tools=HOTELS.tools,
        messages=messages,
        tool_backend="emulator",
        stop_reason="no_tool_call",
        reward=RewardAxes(**dict.fromkeys(RewardAxes.AXES, 1.0)),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    ).sealed()


def conversation() -> tuple[Message, ...]:
    """Two calls at once, answered out of order, then a second request."""
    calls = tuple(ToolCall(id=name, name="get_weather", arguments={"city": name, "zip": "0042"}) for name in "ab")
    return (
        Message(role="system", content="Be brief."),
        Message(role="user", content="Weather in a and b?"),
        Message(role="assistant", reasoning_content="Both.", tool_calls=calls),
        Message(role="tool", content="12", tool_call_id="b"),
        Message(role="tool", content="timeout", tool_call_id="a", is_error=True),
        Message(role="assistant", content="b has 12."),
        Message(role="user", content="Thanks, and a?"),
        Message(role="assistant", content="It did not answer."),
    )
