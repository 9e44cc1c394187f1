"""Slots decode together and know nothing of one another: neither what others sample nor what they are given."""

from __future__ import annotations

import numpy as np

from astra_jax.engine.decoder import DecodeConfig, LockstepDecoder

PROMPTS = [[11, 12, 13], [14, 15]]
LIMIT = 16


def a_decoder(policy, *, temperature=1.0, prompts=PROMPTS) -> LockstepDecoder:
    config = DecodeConfig(
        end_id=policy.tokenizer.end_id,
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
        assert untrained.tokenizer.end_id not in message.ids[:-1]
        room = LIMIT - (6 if slot < 2 else 0)
        assert len(message.ids) == len(message.logprobs) <= room
        assert message.ids[-1] == untrained.tokenizer.end_id or len(message.ids) == room
