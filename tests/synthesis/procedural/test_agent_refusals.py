"""What the embedded agent says where no tool fits is a refusal by the rule that episodes are judged by."""

from __future__ import annotations

import pytest

from synthesis.answers.expectation import meets_expectation
from synthesis.procedural.agent_turns import _PHRASES

REFUSALS = [text for phrases in _PHRASES.values() for text in phrases["cannot"]]


@pytest.mark.parametrize("text", REFUSALS)
def test_a_refusal_of_the_agent_is_one(text):
    assert meets_expectation("refuse", text.format("book a table"))
