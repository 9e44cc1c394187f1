"""The TPU kernel, interpreted on the CPU, and the blocks that it visits."""

import functools

import jax
import numpy as np
import pytest

from astra_jax.model import splash_attention
from astra_jax.model.context_parallel import balanced_order
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.model.splash_attention import BalancedCausalMask, block_tokens, visited_blocks
from tests.astra_jax.model.naive_attention import assert_equal, expected_of, inputs, out_and_gradients, segments_of


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 2])
@pytest.mark.parametrize("has_prefixes", [False, True])
def test_the_kernel_computes_the_naive_formula_forward_and_backward(context, has_prefixes, monkeypatch):
    """In blocks of 128: a prompt of 100 tokens, responses of 128, 40 and 200, between them padding."""
    monkeypatch.setattr(splash_attention, "TPU_PREFIX_BLOCK", 128)
    tokens = 1024
    ids = np.zeros((2, 1, tokens), np.int32)
    for segment, (start, length) in enumerate([(0, 100), (128, 128), (256, 40), (384, 200)], start=1):
        ids[0, :, start : start + length], ids[1, :, start : start + length] = segment, 1 if has_prefixes else segment
    arrays = inputs(1, tokens, 4, 2, 128)
    order = np.arange(tokens) if context == 1 else balanced_order(tokens, context)
    with jax.set_mesh(make_mesh(MeshConfig(context=context), jax.devices()[:context])):

        def attend(q, k, v):
            prefix_ids = ids[1][:, order] if has_prefixes else None
            mesh = jax.sharding.get_abstract_mesh()
            return splash_attention.splash_attention(q, k, v, ids[0][:, order], prefix_ids, mesh)

        of_shards = functools.partial(out_and_gradients, attend, ids[0][:, order])
        found = jax.jit(of_shards)(*(x[:, order] for x in arrays))
    is_real = ids[0, 0] > 0
    found = [np.asarray(x)[:, np.argsort(order)][:, is_real] for x in found]
    assert_equal(found, [np.asarray(x)[:, is_real] for x in expected_of(*ids, *arrays)])


def test_blocks_of_other_responses_are_not_visited():
    """25,600 + 8 × 10,240 tokens in blocks of 512: the prompt's triangle, and of each response prompt and triangle."""
    lengths = [25_600, *[10_240] * 8]
    tokens = 2**17 - 2**14
    ids_T, prefix_ids_T = (x[0] for x in segments_of([lengths], tokens=tokens))
    visited = visited_blocks(tokens, 1, (ids_T, prefix_ids_T)).sum()
    padding = (tokens - sum(lengths)) // 512
    expected = 50 * 51 / 2 + 8 * (20 * 50 + 20 * 21 / 2) + padding * (padding + 1) / 2
    assert visited == expected
    over_shards = visited_blocks(tokens, 16, (ids_T, prefix_ids_T))
    assert over_shards.sum() >= expected


def test_every_context_shard_visits_about_the_same_number_of_blocks():
    visits = visited_blocks(81_920, 16)
    assert np.abs(visits / visits.mean() - 1).max() < 0.02


def test_a_length_the_kernel_cannot_cut_in_blocks_is_refused():
    with pytest.raises(ValueError, match="multiple of 4096 tokens, found 74752"):
        block_tokens(74_752, 16)


def test_blocks_of_the_mask_equal_the_formula():
    mask = BalancedCausalMask(64, 2)
    order = balanced_order(64, 2)
    whole = order[:, None] >= np.arange(64)
    for row in range(0, 64, 8):
        for column in range(0, 64, 16):
            block = mask[row : row + 8, column : column + 16]
            np.testing.assert_array_equal(block, whole[row : row + 8, column : column + 16])
