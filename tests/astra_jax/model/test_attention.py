"""Attention in plain XLA against a naive float64 reference, alone and over meshes."""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model import chunked_attention
from astra_jax.model.attention import attention
from astra_jax.model.context_parallel import balanced_order
from astra_jax.model.sharding import MeshConfig, make_mesh
from tests.astra_jax.model.naive_attention import assert_equal, expected_of, inputs, out_and_gradients, segments_of

ROWS = [[70, 40, 33, 90]], [[5, 1, 2], [120, 60, 61], [9]]
"""One group and padding; three groups, whose segments begin anywhere, the last one a prompt without responses."""
SHARED = segments_of(*ROWS, tokens=304)


def found_by(attend, ids, arrays):
    return jax.jit(functools.partial(out_and_gradients, attend, ids))(*arrays)


@pytest.mark.parametrize("tokens", [1, 7, 304, 700])
def test_a_token_attends_its_own_segment(tokens):
    rng = np.random.default_rng(tokens)
    batch = 1 if tokens > 304 else 2
    ids_BT = np.sort(rng.integers(1, 4, (batch, tokens)), axis=1)
    ids_BT[0, tokens - tokens // 5 :] = 0  # padding
    arrays = inputs(batch, tokens)
    found = found_by(lambda *qkv: attention(*qkv, ids_BT), ids_BT, arrays)
    assert_equal(found, expected_of(ids_BT, ids_BT, *arrays))


@pytest.mark.parametrize(
    "constants",
    [{"_MAX_SCORES_ON_CPU": 1}, {"_BLOCK_TOKENS": (100,)}],
    ids=["a head at a time", "all heads at once, many blocks of queries and of keys"],
)
def test_a_response_attends_its_prompt_and_itself(constants, monkeypatch):
    for name, value in constants.items():
        monkeypatch.setattr(chunked_attention, name, value)
    assert_equal(found_by(lambda *qkv: attention(*qkv, *SHARED), SHARED[0], inputs()), expected_of(*SHARED, *inputs()))


def test_blocks_that_fill_a_row_of_another_length_do_so_as_well():
    ids, arrays = segments_of(*ROWS, tokens=384), inputs(tokens=384)
    assert_equal(found_by(lambda *qkv: attention(*qkv, *ids), ids[0], arrays), expected_of(*ids, *arrays))


@pytest.mark.parametrize(
    ("mesh", "has_prefixes"), [(MeshConfig(context=2, tensor=2), True), (MeshConfig(data=2, context=4), False)], ids=str
)
def test_it_does_so_where_sequences_and_heads_are_split_over_devices(mesh, has_prefixes):
    ids, arrays = SHARED, inputs()
    order = balanced_order(304, mesh.context)
    balanced_ids = [x[:, order] for x in ids]
    with jax.set_mesh(make_mesh(mesh, jax.devices()[: int(np.prod(mesh.shape))])):
        found = found_by(
            lambda *qkv: attention(*qkv, *balanced_ids[: 1 + has_prefixes]),
            balanced_ids[0],
            [x[:, order] for x in arrays],
        )
    found = [np.asarray(x)[:, np.argsort(order)] for x in found]
    assert_equal(found, expected_of(ids[0], ids[has_prefixes], *arrays))


@pytest.mark.parametrize("has_prefixes", [False, True])
def test_no_array_is_as_large_as_the_scores_of_a_long_row(has_prefixes):
    q = jax.ShapeDtypeStruct((1, 8192, 4, 8), jnp.float32)
    ids = [jax.ShapeDtypeStruct((1, 8192), jnp.int32)] * (1 + has_prefixes)

    def largest(jaxpr):
        sizes = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars if hasattr(v.aval, "size")]
        return max(sizes + [largest(sub) for eqn in jaxpr.eqns for sub in jax.extend.core.jaxprs_in_params(eqn.params)])

    jaxpr = jax.make_jaxpr(jax.grad(lambda q, *ids: attention(q, q, q, *ids).sum()))(q, *ids)
    assert largest(jaxpr.jaxpr) < 8192 * 8192 / 8
