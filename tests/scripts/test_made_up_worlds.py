"""Made-up dialogues are gold, offer more than they call, and never have the wording of unseen tools."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scripts.tiny_base import made_up_worlds
from scripts.tiny_base.made_up_worlds import LOOKUPS, Dialogue, draw_dialogue, draw_wording
from synthesis.procedural.tool_wording import UNSEEN

MOST_OF_ONE_QUESTION = 5
"""Three lookups in two turns, and a doubtful call in each."""


def a_dialogue(seed: int, language: str = "en") -> Dialogue:
    scenarios = dict.fromkeys(LOOKUPS, 1.0)
    return draw_dialogue(
        random.Random(seed), language, scenarios=scenarios, num_questions=3, most_called=6, num_tools=5
    )


@given(seed=st.integers(0, 10**6), language=st.sampled_from(["en", "zh"]))
def test_every_call_fits_an_offered_tool_and_has_read_its_arguments(seed, language):
    dialogue = a_dialogue(seed, language)
    offered = {tool.name: tool for tool in dialogue.tools}
    assert len(offered) == len(dialogue.tools)
    called = set()
    for question, *rest in dialogue.episodes:
        read = question.content
        for message in rest:
            if message.role == "tool":
                read += str(json.loads(message.content))
                continue
            for call in message.tool_calls:
                called.add(call.name)
                assert set(call.arguments) == set(offered[call.name].required)
                assert all(value in read for value in call.arguments.values())
    assert called < offered.keys()


def test_the_wording_of_unseen_tools_is_never_drawn(monkeypatch):
    drawn = draw_wording(random.Random(5))
    for wording in (draw_wording(random.Random(seed)) for seed in range(2000)):
        assert wording.lookup_name != UNSEEN.lookup_name
        assert wording.year != UNSEEN.year
        assert not set(wording.lookup.values()) & set(UNSEEN.lookup.values())
    monkeypatch.setattr(made_up_worlds, "UNSEEN", drawn)
    assert draw_wording(random.Random(5)).lookup_name != drawn.lookup_name


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_question_that_would_call_too_many_tools_is_left_out(language):
    for seed in range(30):
        dialogue = draw_dialogue(
            random.Random(seed),
            language,
            scenarios=dict.fromkeys(LOOKUPS, 1.0),
            num_questions=6,
            most_called=MOST_OF_ONE_QUESTION,
            num_tools=6,
        )
        called = {call.name for messages in dialogue.episodes for message in messages for call in message.tool_calls}
        assert len(called) <= MOST_OF_ONE_QUESTION
        assert len(dialogue.tools) == 6


def test_two_of_three_speakers_in_reworded_worlds_call_a_sibling_in_every_turn():
    num_doubtful = 0
    for seed in range(200):
        dialogue = a_dialogue(seed)
        turns = [message.tool_calls for messages in dialogue.episodes for message in messages if message.tool_calls]
        doubtful = [any(call.id.endswith("_or") for call in calls) for calls in turns]
        assert len({*doubtful}) == 1, "a speaker is in doubt always or never"
        num_doubtful += doubtful[0]
        for right, sibling in (calls[:2] for calls, doubts in zip(turns, doubtful, strict=True) if doubts):
            assert sibling.name != right.name
            assert sibling.arguments == right.arguments
    # 2 of 3 dialogues in the 0.8 of worlds that are reworded: 107 of 200 are expected.
    assert 85 <= num_doubtful <= 128
