"""SFT samples have loss on what the assistant says in the last user turn, and every sample is seen once an epoch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat_format import render
from astra_jax.sft.data import (
    SFTSample,
    batch_schedule,
    gold_sample,
    make_batch,
    render_sample,
    split_by_length,
    trajectory_samples,
)
from astra_jax.testing import tiny_environment
from synthesis.records import (
    Message,
    Provenance,
    RewardAxes,
    Task,
    TaskScores,
    ToolCall,
    Trajectory,
)

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


def a_trajectory(messages=CONVERSATION) -> Trajectory:
    return Trajectory(
        id="t",
        server="s",
        domain="d",
        language="en",
        task=Task(
            id="k", text="?", language="en", mode="server", scores=TaskScores(clarity=1, realism=1, tool_necessity=1)
        ),
        tools=TOOLS,
        messages=tuple(messages),
        tool_backend="emulator",
        stop_reason="no_tool_call",
        reward=RewardAxes(**dict.fromkeys(RewardAxes.AXES, 1.0)),
        provenance=Provenance(teacher="hand-written", prompt_version="none", seed=0),
    )


def text_with_loss(sample: SFTSample, tokenizer) -> str:
    return tokenizer.decode(sample.ids[sample.loss_mask > 0])


def test_a_conversation_gives_one_sample_for_each_user_turn_that_was_answered(tokenizer):
    first, second = trajectory_samples(a_trajectory(), tokenizer)
    assert tokenizer.decode(first.ids) == render(CONVERSATION[:5], TOOLS)
    assert tokenizer.decode(second.ids) == render(CONVERSATION[:10], TOOLS)


def test_loss_is_on_what_the_assistant_says_in_the_last_user_turn_and_nowhere_else(tokenizer):
    first, second = trajectory_samples(a_trajectory(), tokenizer)
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
        samples = list(trajectory_samples(a_trajectory(messages), tokenizer))
        ends = sum(int(sample.loss_mask[sample.ids == tokenizer.end_id].sum()) for sample in samples)
        for sample in samples:  # a sample ends with the assistant's words, not with what nobody answered
            assert sample.loss_mask[sample.ids == tokenizer.end_id][-1] == 1
        questions = [index for index, message in enumerate(messages) if message.role == "user"]
        first = questions[0] if questions else len(messages)
        assert ends == sum(message.role == "assistant" for message in messages[first:])

    check()


def test_a_gold_episode_mixes_distractors_in_and_teaches_only_the_assistant(tokenizer):
    environment = tiny_environment()
    sample = gold_sample(environment, tokenizer, irrelevant_per_band=2, seed=0)
    spoken = [message for message in environment.gold_messages() if message.role == "assistant"]
    assert text_with_loss(sample, tokenizer).count("<|im_end|>") == len(spoken)
    again = gold_sample(environment, tokenizer, irrelevant_per_band=2, seed=0)
    np.testing.assert_array_equal(sample.ids, again.ids)


def of_length(length: int) -> SFTSample:
    return SFTSample(np.full(length, 5, np.int32), np.ones(length, np.float32))


def test_a_sample_over_the_length_limit_is_dropped_and_counted_never_cut():
    kept, dropped = split_by_length(map(of_length, [3, 9, 8, 10, 8]), max_tokens=8)
    assert ([len(sample.ids) for sample in kept], dropped) == ([3, 8, 8], 2)


BUCKETS = [4, 9, 20]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=25),
    batch_tokens=st.integers(1, 60),
    seed=st.integers(0, 3),
    short_first_epochs=st.integers(0, 2),
    extra_steps=st.integers(0, 10),
)
def test_every_epoch_sees_every_sample_once(lengths, batch_tokens, seed, short_first_epochs, extra_steps):
    def schedule(steps: int) -> list[list[int]]:
        return batch_schedule(
            lengths,
            length_buckets=BUCKETS,
            batch_tokens=batch_tokens,
            steps=steps,
            seed=seed,
            short_first_epochs=short_first_epochs,
        )

    def bucket(batch: list[int]) -> int:
        (only,) = {next(b for b in BUCKETS if lengths[i] <= b) for i in batch}
        return only

    enough = schedule(3 * len(lengths))
    steps_per_epoch = next(n for n in range(1, len(enough) + 1) if sum(map(len, enough[:n])) == len(lengths))
    for epoch in range(3):
        batches = enough[epoch * steps_per_epoch : (epoch + 1) * steps_per_epoch]
        if len(batches) == steps_per_epoch:
            assert Counter(i for batch in batches for i in batch) == Counter(range(len(lengths)))
        if epoch < short_first_epochs:
            assert list(map(bucket, batches)) == sorted(map(bucket, batches))
    for batch in enough:
        assert len(batch) <= max(1, batch_tokens // bucket(batch))
    # A step number is the whole data position: a longer run begins as a shorter one did.
    assert schedule(3 * len(lengths) + extra_steps)[: 3 * len(lengths)] == enough


def test_epochs_and_seeds_differ_in_their_order():
    options = {"length_buckets": [4], "batch_tokens": 4, "short_first_epochs": 0}
    one = batch_schedule([4] * 12, steps=24, seed=0, **options)
    assert one[:12] != one[12:]
    assert one[:12] != batch_schedule([4] * 12, steps=12, seed=1, **options)


def test_a_schedule_without_a_sample_that_fits_says_so():
    with pytest.raises(ValueError, match="no sample fits the length buckets"):
        batch_schedule([9], length_buckets=[4], batch_tokens=4, steps=1, seed=0, short_first_epochs=0)


def test_a_batch_is_shifted_by_one_and_padded_without_loss():
    samples = [SFTSample(np.array([7, 8, 9], np.int32), np.array([0, 1, 1], np.float32))]
    batch = make_batch(samples, length_buckets=[2, 4], batch_tokens=8, pad_id=0)
    assert batch.tokens_BT.tolist() == [[7, 8, 9, 0], [0, 0, 0, 0]]
    assert batch.targets_BT.tolist() == [[8, 9, 0, 0], [0, 0, 0, 0]]
    assert batch.loss_mask_BT.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert batch.segment_ids_BT.tolist() == [[1, 1, 1, 0], [0, 0, 0, 0]]


def test_a_sample_that_fills_its_bucket_keeps_its_last_target():
    batch = make_batch([of_length(4)], length_buckets=[4], batch_tokens=4, pad_id=0)
    assert batch.loss_mask_BT.tolist() == [[1, 1, 1, 0]]
    assert batch.segment_ids_BT.tolist() == [[1, 1, 1, 1]]


def test_a_rendered_sample_and_its_mask_have_one_length(tokenizer):
    sample = render_sample(tiny_environment().gold_messages(), TOOLS, tokenizer)
    assert sample.ids.shape == sample.loss_mask.shape
    assert 0 < sample.loss_mask.sum() < len(sample.ids)
