"""The F1 of episodes without the calls of a speaker in doubt."""

from __future__ import annotations

import pytest

from scripts.ablate import f1_without_second_calls


def test_a_call_of_another_tool_with_the_arguments_of_the_call_before_is_left_out() -> None:
    flat, other = {"flat": "Red Gate"}, {"flat": "Ash"}
    calls = [("former_rent", flat, True), ("final_rent", flat, True), ("former_rent", other, False)]
    episode = {
        "calls": [dict(zip(("name", "arguments", "ok"), call, strict=True)) for call in calls],
        "sub_questions": [{"tool": "former_rent", "solved": True}, {"tool": None, "solved": None}],
        "num_subtasks": 1,
    }
    assert f1_without_second_calls(episode) == pytest.approx(2 / 3)  # precision 1/2, recall 1
    episode["sub_questions"] = [{"tool": "final_rent", "solved": True}]
    assert f1_without_second_calls(episode) == 0.0  # the call that solved it is the second one
