"""SFT samples have loss on the assistant's words in the last user turn, alone in a row or one after the other."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.sft.data import SFTSample, gold_sample, make_batch, render_sample, user_turn_ends
from astra_jax.testing import tiny_environment
from synthesis.records import Message, ToolCall
from tests.astra_jax.distractors import with_distractors

TOOLS = tuple(tool.document for tool in tiny_environment().tools)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def says(text: str, *calls: str) -> Message:
    tool_calls = tuple(ToolCall(id=name, name=name, arguments={}) for name in calls)
    return Message(role="assistant", reasoning_content="so", content=text, tool_calls=tool_calls)


def answers(text: str) -> Message:
    return Message(role="tool", content=text)


CONVERSATION = (
    Message(role="system", content="Be brief."),
    user("Which flat?"),
    says("", "find_flat"),
    answers("A"),
    says("Flat A."),
    user("And its rent?"),
    says("", "get_rent", "get_rent"),
    answers("1"),
    answers("2"),
    says("It is 1."),
    user("Thanks"),
)


def samples_of(messages, tokenizer) -> list[SFTSample]:
    return [render_sample(messages[:end], TOOLS, tokenizer) for end in user_turn_ends(messages)]


def text_with_loss(sample: SFTSample, tokenizer) -> str:
    return tokenizer.decode(sample.ids[sample.loss_mask > 0])


def test_loss_is_on_the_assistants_words_in_the_last_user_turn_and_nowhere_else(tokenizer):
    first, second = samples_of(CONVERSATION, tokenizer)
    thought = "<think>\nso\n</think>\n\n"

    def call(name: str) -> str:
        return '<tool_call>\n{"name": "' + name + '", "arguments": {}}\n</tool_call>'

    assert text_with_loss(first, tokenizer) == (
        thought + call("find_flat") + "<|im_end|>" + thought + "Flat A.<|im_end|>"
    )
    assert text_with_loss(second, tokenizer) == (
        thought + call("get_rent") + "\n" + call("get_rent") + "<|im_end|>" + thought + "It is 1.<|im_end|>"
    )


roles = st.sampled_from([user("Which flat?"), says("Flat A."), says("", "find_flat"), answers("A")])


def test_over_all_samples_every_answer_to_a_user_has_loss_exactly_once(tokenizer):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.lists(roles, max_size=8))
    def check(messages):
        samples = samples_of(messages, tokenizer)
        ends = sum(int(sample.loss_mask[sample.ids == tokenizer.end_id].sum()) for sample in samples)
        for sample in samples:  # a sample ends with the assistant's words, not with an unanswered message
            assert sample.loss_mask[sample.ids == tokenizer.end_id][-1] == 1
        questions = [index for index, message in enumerate(messages) if message.role == "user"]
        first = questions[0] if questions else len(messages)
        assert ends == sum(message.role == "assistant" for message in messages[first:])

    check()


def test_a_gold_episode_mixes_distractors_in_and_teaches_only_the_assistant(tokenizer):
    environment = with_distractors(tiny_environment(), per_band=2)
    sample = gold_sample(environment, tokenizer, irrelevant_per_band={"high": 2, "medium": 2, "low": 2}, seed=0)
    text = tokenizer.decode(sample.ids)
    assert all(f'"{tool.document.name}"' in text for tool in environment.all_tools)
    spoken = [message for message in environment.gold_messages() if message.role == "assistant"]
    assert text_with_loss(sample, tokenizer).count("<|im_end|>") == len(spoken)
    again = gold_sample(environment, tokenizer, irrelevant_per_band={"high": 2, "medium": 2, "low": 2}, seed=0)
    np.testing.assert_array_equal(sample.ids, again.ids)


def of_length(length: int) -> SFTSample:
    return SFTSample(np.full(length, 5, np.int32), np.ones(length, np.float32))


def test_samples_of_one_row_are_apart_in_segments_positions_and_targets():
    first = SFTSample(np.array([7, 8, 9], np.int32), np.array([0, 1, 1], np.float32), kind=3)
    batch = make_batch([[first, of_length(2)]], num_rows=1, row_tokens=7, pad_id=0)
    assert batch.tokens_BT.tolist() == [[7, 8, 9, 5, 5, 0, 0]]
    assert batch.targets_BT.tolist() == [[8, 9, 0, 5, 0, 0, 0]]
    assert batch.loss_mask_BT.tolist() == [[1, 1, 0, 1, 0, 0, 0]]  # none where one sample would predict the next
    assert batch.segment_ids_BT.tolist() == [[1, 1, 1, 2, 2, 0, 0]]
    assert batch.positions_BT.tolist() == [[0, 1, 2, 0, 1, 5, 6]]
    assert batch.kinds_BT.tolist() == [[3, 3, 3, 0, 0, 0, 0]]
