"""The TPU kernel, interpreted on the CPU, and the mask blocks that it visits."""

import jax
import numpy as np
import pytest

from astra_jax.model.attention import attention
from astra_jax.model.context_parallel import balanced_order
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.model.splash_attention import BalancedCausalMask, block_tokens, splash_attention, visited_blocks


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 2])
def test_the_kernel_equals_chunked_attention_forward_and_backward(context):
    rng = np.random.default_rng(0)
    tokens = 512
    arrays = {
        "q": rng.normal(size=(1, tokens, 4, 128)).astype(np.float32),
        "k": rng.normal(size=(1, tokens, 2, 128)).astype(np.float32),
        "v": rng.normal(size=(1, tokens, 2, 128)).astype(np.float32),
        "weights": rng.normal(size=(1, tokens, 4, 128)).astype(np.float32),
        "segments": np.sort(rng.integers(1, 4, (1, tokens)), axis=1).astype(np.int32),
    }

    def gradients(attend, arrays):
        def loss(q, k, v):
            out = attend(q, k, v, arrays["segments"])
            return (out * arrays["weights"]).sum(), out

        return jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*(arrays[name] for name in "qkv"))

    expected, expected_out = gradients(attention, arrays)
    mesh = make_mesh(MeshConfig(context=context), jax.devices()[:context])
    balanced = {name: x if context == 1 else x[:, balanced_order(tokens, context)] for name, x in arrays.items()}
    with jax.set_mesh(mesh):
        found, found_out = gradients(lambda *x: splash_attention(*x, jax.sharding.get_abstract_mesh()), balanced)
    order = np.arange(tokens) if context == 1 else np.argsort(balanced_order(tokens, context))
    np.testing.assert_allclose(np.asarray(found_out)[:, order], expected_out, atol=1e-4)
    for theirs, ours in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(theirs)[:, order], ours, atol=1e-3)


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
