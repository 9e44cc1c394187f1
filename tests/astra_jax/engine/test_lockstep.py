"""The oracle itself: slots know nothing of one another, neither what others sample nor what they are given."""

from __future__ import annotations

import numpy as np

from tests.astra_jax.engine.lockstep import DecodeConfig, LockstepDecoder

PROMPTS = [[11, 12, 13], [14, 15]]
LIMIT = 16


def a_decoder(policy, *, temperature=1.0, prompts=PROMPTS) -> LockstepDecoder:
    config = DecodeConfig(
        end_ids=(policy.tokenizer.end_id, policy.tokenizer.end_of_text_id),
        pad_id=policy.tokenizer.pad_id,
        temperature=temperature,
        max_response_tokens=LIMIT,
        bucket_tokens=8,
    )
    return LockstepDecoder(policy.model_config, policy.params, prompts, slots_per_prompt=2, seed=0, config=config)


def assert_same(found, expected):
    assert [message.ids for message in found] == [message.ids for message in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)


def test_a_slot_that_is_neither_asked_nor_given_anything_stays_as_it_is(untrained):
    alone = a_decoder(untrained).sample_messages([1, 2])
    among_others = a_decoder(untrained)
    among_others.append([[21, 22, 23], [], [], []])
    among_others.sample_messages([0, 3])
    assert_same(among_others.sample_messages([1, 2]), alone)


def test_the_one_slot_that_is_not_asked_stays_as_it_is(untrained):
    """Three of four decode in the program of all four."""
    alone = a_decoder(untrained).sample_messages([3])
    after_others = a_decoder(untrained)
    after_others.sample_messages([0, 1, 2])
    assert_same(after_others.sample_messages([3]), alone)


def test_slots_stand_prompt_by_prompt(untrained):
    first, twin, second, other_twin = a_decoder(untrained, temperature=0.0).sample_messages([0, 1, 2, 3])
    assert (first.ids, second.ids) == (twin.ids, other_twin.ids)
    assert first.ids != second.ids
    swapped = a_decoder(untrained, temperature=0.0, prompts=PROMPTS[::-1]).sample_messages([0, 2])
    assert_same(swapped, [second, first])


def test_a_message_ends_with_the_end_token_or_where_its_slot_is_full(untrained):
    decoder = a_decoder(untrained)
    decoder.append([[21] * 6, [21] * 6, [], []])
    for slot, message in enumerate(decoder.sample_messages([0, 1, 2, 3])):
        ends = {untrained.tokenizer.end_id, untrained.tokenizer.end_of_text_id}
        assert ends.isdisjoint(message.ids[:-1])
        room = LIMIT - (6 if slot < 2 else 0)
        assert len(message.ids) == len(message.logprobs) <= room
        assert message.ids[-1] in ends or len(message.ids) == room


def test_each_of_its_end_tokens_ends_a_message(untrained):
    """Whatever a policy says first is told to be an end: then it says no more."""
    first = a_decoder(untrained, temperature=0.0).sample_messages([0])[0].ids[0]
    for end_ids in ((first, 1), (1, first)):
        config = DecodeConfig(end_ids=end_ids, pad_id=0, temperature=0.0, max_response_tokens=LIMIT, bucket_tokens=8)
        decoder = LockstepDecoder(
            untrained.model_config, untrained.params, PROMPTS, slots_per_prompt=2, seed=0, config=config
        )
        assert decoder.sample_messages([0])[0].ids == [first]


def test_a_lot_draws_what_its_slots_draw_among_all(untrained):
    among_all = a_decoder(untrained).sample_messages(range(4))
    second_half = LockstepDecoder(
        untrained.model_config,
        untrained.params,
        PROMPTS[1:],
        slots_per_prompt=2,
        seed=0,
        config=a_decoder(untrained)._config,
        first_slot=2,
    )
    assert_same(second_half.sample_messages(range(2)), among_all[2:])
