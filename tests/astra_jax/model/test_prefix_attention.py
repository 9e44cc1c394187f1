"""Attention of responses that share a prompt, against a naive float64 reference and against itself over meshes."""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model import prefix_attention, splash_prefix_attention
from astra_jax.model.attention import attention
from astra_jax.model.context_parallel import balanced_order
from astra_jax.model.sharding import MeshConfig, make_mesh


def segments_of(*rows, tokens):
    """Ids of segments and of their prefixes; a row is a list of groups, a group the lengths of prompt and responses."""
    ids_BT, prefix_ids_BT = np.zeros((2, len(rows), tokens), np.int32)
    for row, groups in enumerate(rows):
        start, segment = 0, 0
        for prompt, *responses in groups:
            prefix = segment + 1
            for length in (prompt, *responses):
                segment += 1
                ids_BT[row, start : start + length], prefix_ids_BT[row, start : start + length] = segment, prefix
                start += length
    return ids_BT, prefix_ids_BT


ROWS = segments_of([[70, 40, 33, 90]], [[5, 1, 2], [120, 60, 61], [9]], tokens=300)
"""One group and padding; three groups, whose segments begin anywhere, the last one a prompt without responses."""


@functools.cache
def inputs(batch=2, tokens=300, heads=4, kv_heads=2, head_dim=8):
    rng = np.random.default_rng(tokens)
    q, weights = rng.normal(size=(2, batch, tokens, heads, head_dim)).astype(np.float32)
    k, v = rng.normal(size=(2, batch, tokens, kv_heads, head_dim)).astype(np.float32)
    return q, k, v, weights


def out_and_gradients(attend, q, k, v, weights):
    out, pull = jax.vjp(attend, q, k, v)
    return out, *pull(weights)


def naive_out_and_gradients(segment_ids_BT, prefix_ids_BT, *arrays):
    """In float64, differentiated by JAX."""

    def attend(q, k, v):
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
        reaches = (segment_ids_BT[:, :, None] == segment_ids_BT[:, None]) | (
            prefix_ids_BT[:, :, None] == segment_ids_BT[:, None]
        )
        mask = np.tril(reaches)[:, None]
        scores = jnp.einsum("btnh,bsnh->bnts", q, k) / np.sqrt(q.shape[-1])
        return jnp.einsum("bnts,bsnh->btnh", jax.nn.softmax(jnp.where(mask, scores, -1e30)), v)

    with jax.enable_x64(True):
        return out_and_gradients(attend, *(jnp.asarray(x, jnp.float64) for x in arrays))


def assert_equal(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


@pytest.mark.parametrize(
    "constants",
    [{"_MAX_SCORES_ON_CPU": 1}, {"_MAX_SCORES_ON_CPU": 2**30}, {"_BLOCK_TOKENS": (100,)}],
    ids=["a head at a time", "all heads at once", "many blocks of queries and of keys"],
)
def test_a_response_attends_its_prompt_and_itself(constants, monkeypatch):
    for name, value in constants.items():
        monkeypatch.setattr(prefix_attention, name, value)
    found = jax.jit(functools.partial(out_and_gradients, lambda *qkv: attention(*qkv, *ROWS)))(*inputs())
    assert_equal(found, naive_out_and_gradients(*ROWS, *inputs()))


@pytest.mark.parametrize("mesh", [MeshConfig(context=2, tensor=2), MeshConfig(data=2, context=4)], ids=str)
def test_it_does_so_where_sequences_and_heads_are_split_over_devices(mesh):
    tokens = 304
    ids = segments_of([[70, 40, 33, 90]], [[5, 1, 2], [120, 60, 61], [9]], tokens=tokens)
    arrays = inputs(tokens=tokens)
    order = balanced_order(tokens, mesh.context)
    balanced_ids = [x[:, order] for x in ids]
    with jax.set_mesh(make_mesh(mesh, jax.devices()[: int(np.prod(mesh.shape))])):
        found = jax.jit(functools.partial(out_and_gradients, lambda *qkv: attention(*qkv, *balanced_ids)))(
            *(x[:, order] for x in arrays)
        )
    found = [np.asarray(x)[:, np.argsort(order)] for x in found]
    assert_equal(found, naive_out_and_gradients(*ids, *arrays))


@pytest.mark.slow
@pytest.mark.parametrize("context", [1, 2])
def test_the_tpu_kernel_does_so_where_segments_begin_with_a_block(context, monkeypatch):
    """Interpreted, in blocks of 128: a prompt of 100 tokens, responses of 128, 40 and 200, between them padding."""
    monkeypatch.setattr(splash_prefix_attention, "TPU_PREFIX_BLOCK", 128)
    tokens = 1024
    ids_BT, prefix_ids_BT = np.zeros((2, 1, tokens), np.int32)
    for segment, (start, length) in enumerate([(0, 100), (128, 128), (256, 40), (384, 200)], start=1):
        ids_BT[:, start : start + length], prefix_ids_BT[:, start : start + length] = segment, 1
    arrays = inputs(1, tokens, 4, 2, 128)
    order = np.arange(tokens) if context == 1 else balanced_order(tokens, context)
    mesh = make_mesh(MeshConfig(context=context), jax.devices()[:context])
    with jax.set_mesh(mesh):

        def attend(q, k, v):
            of_mesh = jax.sharding.get_abstract_mesh()
            ids = (ids_BT[:, order], prefix_ids_BT[:, order])
            return splash_prefix_attention.splash_prefix_attention(q, k, v, *ids, of_mesh)

        found = jax.jit(functools.partial(out_and_gradients, attend))(*(x[:, order] for x in arrays))
    is_real = ids_BT[0] > 0
    found = [np.asarray(x)[:, np.argsort(order)][:, is_real] for x in found]
    weights = arrays[3] * is_real[:, None, None]  # what padding attends is nobody's business
    expected = naive_out_and_gradients(ids_BT, prefix_ids_BT, *arrays[:3], weights)
    assert_equal(found, [np.asarray(x)[:, is_real] for x in expected])


def test_on_tpu_blocks_of_other_responses_are_not_visited(monkeypatch):
    """25,600 + 8 × 10,240 tokens in blocks of 512: the prompt's triangle, and of each response prompt and triangle."""
    lengths = [25_600, *[10_240] * 8]
    tokens = 2**17 - 2**14
    ids_T, prefix_ids_T = (x[0] for x in segments_of([lengths], tokens=tokens))
    visited = splash_prefix_attention.visited_prefix_blocks(ids_T, prefix_ids_T, shards=1).sum()
    padding = (tokens - sum(lengths)) // 512
    expected = 50 * 51 / 2 + 8 * (20 * 50 + 20 * 21 / 2) + padding * (padding + 1) / 2
    assert visited == expected
    over_shards = splash_prefix_attention.visited_prefix_blocks(ids_T, prefix_ids_T, shards=16)
    assert over_shards.sum() >= expected


def test_no_array_is_as_large_as_the_scores_of_a_long_row():
    q = jax.ShapeDtypeStruct((1, 8192, 4, 8), jnp.float32)
    ids = jax.ShapeDtypeStruct((1, 8192), jnp.int32)

    def largest(jaxpr):
        sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size")]
        return max(sizes + [largest(sub) for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)])

    jaxpr = jax.make_jaxpr(jax.grad(lambda q, *ids: attention(q, q, q, *ids).sum()))(q, ids, ids)
    assert largest(jaxpr.jaxpr) < 8192 * 8192 / 8


@pytest.mark.parametrize("tokens", [384, 640])
def test_blocks_that_fill_a_row_of_another_length_do_so_as_well(tokens):
    rows = segments_of([[70, 40, 33, 90]], [[5, 1, 2], [120, 60, 61], [9]], tokens=tokens)
    found = jax.jit(functools.partial(out_and_gradients, lambda *qkv: attention(*qkv, *rows)))(*inputs(tokens=tokens))
    expected = naive_out_and_gradients(*rows, *inputs(tokens=tokens))
    is_real = rows[0] > 0
    for ours, theirs in zip(found, expected, strict=True):  # padding attends its own block alone
        ours, theirs = (np.asarray(x)[is_real] for x in (ours, theirs))
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
