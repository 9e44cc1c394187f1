"""Chunked log-probabilities against a naive float64 softmax."""

import contextlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model import logprobs
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.sharding import MeshConfig, make_mesh

CHUNK_TOKENS = 8
"""For 300 tokens and a vocabulary of 257: three slices of 128 rows, the last of which overlaps the second."""


def naive_log_softmax(hidden_BTD, unembedding_VD):
    logits = np.asarray(hidden_BTD, np.float64) @ np.asarray(unembedding_VD, np.float64).T
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


@pytest.mark.parametrize("num_active", [0, 1, 128, 150, 300])
def test_only_active_tokens_are_computed_and_no_number_of_them_compiles_anew(num_active, masked):
    """300 tokens are three chunks of 128; an inactive token is not read."""
    hidden_BTD, unembedding_VD, targets_BT, logprobs_and_gradients = masked
    rng = np.random.default_rng(num_active)
    active_BT = (rng.permutation(300) < num_active).reshape(2, 150)
    weights_BT = rng.normal(size=(2, 150)).astype(np.float32)
    ours = logprobs_and_gradients(np.where(active_BT[..., None], hidden_BTD, np.nan), active_BT, weights_BT)
    log_softmax_BTV = naive_log_softmax(hidden_BTD, unembedding_VD)
    dlogits_BTV = (np.eye(257)[targets_BT] - np.exp(log_softmax_BTV)) * (weights_BT * active_BT)[..., None]
    expected = (
        np.take_along_axis(log_softmax_BTV, targets_BT[..., None], -1)[..., 0] * active_BT,
        dlogits_BTV @ unembedding_VD,
        np.einsum("btv,btd->vd", dlogits_BTV, hidden_BTD),
    )
    for found, wanted in zip(ours, expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6 * max(1, np.abs(wanted).max()))
    assert logprobs_and_gradients._cache_size() == 1


@pytest.fixture(scope="module")
def masked():
    rng = np.random.default_rng(3)
    hidden_BTD = rng.normal(size=(2, 150, 16)).astype(np.float32)
    unembedding_VD = rng.normal(size=(257, 16)).astype(np.float32)
    targets_BT = rng.integers(0, 257, (2, 150))

    @jax.jit
    def logprobs_and_gradients(hidden_BTD, active_BT, weights_BT):
        logprobs_BT, pull = jax.vjp(
            lambda *x: token_logprobs(*x, targets_BT, active_BT, chunk_tokens=CHUNK_TOKENS), hidden_BTD, unembedding_VD
        )
        return logprobs_BT, *pull(weights_BT)

    return hidden_BTD, unembedding_VD, targets_BT, logprobs_and_gradients


def test_no_array_holds_the_logits_of_all_tokens():
    hidden_BTD = jax.ShapeDtypeStruct((4, 512, 8), jnp.float32)
    unembedding_VD = jax.ShapeDtypeStruct((8192, 8), jnp.float32)
    targets_BT = jax.ShapeDtypeStruct((4, 512), jnp.int32)

    def loss(hidden_BTD, unembedding_VD, targets_BT):
        return token_logprobs(hidden_BTD, unembedding_VD, targets_BT, chunk_tokens=128).sum()

    compiled = jax.jit(jax.grad(loss, argnums=(0, 1))).lower(hidden_BTD, unembedding_VD, targets_BT).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2048 * 8192 * 4 / 4


@pytest.mark.parametrize(
    ("platform", "mesh", "inner", "outer"),
    [
        ("gpu", None, "4", None),
        ("gpu", MeshConfig(), "4", None),
        ("cpu", None, "64", None),
        ("gpu", MeshConfig(fsdp=2), None, "32"),
    ],
    ids=str,
)
def test_xla_knows_how_often_the_inner_loop_runs_if_no_slice_is_gathered(monkeypatch, platform, mesh, inner, outer):
    """Forward and backward of 4,096 tokens; on a GPU a loop without that number waits for the host each time."""
    monkeypatch.setattr(logprobs, "platform", lambda: platform)
    arrays = jax.ShapeDtypeStruct((4, 1024, 16), jnp.bfloat16), jax.ShapeDtypeStruct((16_384, 16), jnp.float32)

    def total(*arrays):
        return token_logprobs(*arrays, chunk_tokens=64).sum()

    with contextlib.nullcontext() if mesh is None else jax.set_mesh(make_mesh(mesh, jax.devices()[: mesh.fsdp])):
        gradients = jax.jit(jax.grad(total, argnums=(0, 1)))
        program = gradients.lower(*arrays, jax.ShapeDtypeStruct((4, 1024), jnp.int32)).compile().as_text()
    for part, trips in zip(program.split("ENTRY "), (inner, outer), strict=True):
        loops = [line for line in part.splitlines() if " while(" in line]
        found = [re.search(r'known_trip_count":{"n":"(\d+)"', loop) for loop in loops]
        assert [count and count[1] for count in found] == [trips] * 2
