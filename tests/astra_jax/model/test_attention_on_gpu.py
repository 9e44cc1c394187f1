"""Lowered for a GPU on a machine without one. `scripts/bench_accelerator.py` measures how right a GPU computes it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo

from astra_jax.model import attention, chunked_attention
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import abstract_params, bind
from astra_jax.model.sharding import MeshConfig, make_mesh

MODEL = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    intermediate_size=32,
    dtype="bfloat16",
)


@pytest.fixture(autouse=True)
def a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    for module in (attention, chunked_attention):
        monkeypatch.setattr(module, "platform", lambda: "gpu")


def kernels_of_a_step(model):
    ids = jax.ShapeDtypeStruct((2, 256), jnp.int32)

    def total(params, tokens_BT, positions_BT, segment_ids_BT):
        return bind(model, params)(tokens_BT, positions_BT, segment_ids_BT).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(total)).trace(abstract_params(model), ids, ids, ids)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    forward_and_backward, backward = (program.count(f"@__cudnn$fmhaSoftmax{suffix}(") for suffix in ("", "Backward"))
    return forward_and_backward, backward


@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("attention", 1), ("offload", 1), ("full", 2)])
def test_a_training_step_holds_the_kernel_and_recomputes_it_only_when_remat_says_so(remat, forwards):
    assert kernels_of_a_step(MODEL.model_copy(update={"remat": remat})) == (forwards, 1)


def test_the_backward_pass_keeps_the_kernels_tensors_alone():
    """It keeps each layer's input, the kernel's output and log-sum-exp; nothing of the chunked attention."""
    model = MODEL.model_copy(update={"remat": "attention"})
    ids = jax.ShapeDtypeStruct((2, 256), jnp.int32)

    def total(params, ids_BT):
        return bind(model, params)(ids_BT, ids_BT, ids_BT).astype(jnp.float32).sum()

    program = jax.make_jaxpr(jax.grad(total))(abstract_params(model), ids)
    forward = next(eqn for eqn in program.eqns if eqn.primitive.name == "scan")
    kept = sorted(v.aval.size for v in forward.outvars[1:])
    assert kept == sorted([2 * 2 * 256 * 32, 2 * 2 * 256 * 4 * 16, 2 * 2 * 4 * 256])


@pytest.mark.parametrize("packed", [False, True])
def test_both_ways_equal_the_chunked_attention(monkeypatch, packed):
    """With XLA's version of the kernel, which a CPU can run."""
    xla = functools.partial(_without_kernel, jax.nn.dot_product_attention)
    monkeypatch.setattr(jax.nn, "dot_product_attention", xla)
    rng = np.random.default_rng(0)
    q, weights = rng.normal(size=(2, 2, 256, 4, 16)).astype(jnp.bfloat16)
    k, v = rng.normal(size=(2, 2, 256, 2, 16)).astype(jnp.bfloat16)
    segment_ids_BT = np.ones((2, 256), np.int32)
    segment_ids_BT[0, 200:] = 0
    if packed:
        segment_ids_BT[1, 100:] = 2
    weights = np.where(segment_ids_BT[:, :, None, None] > 0, weights, 0)

    def out_and_gradients(attend):
        def total(q, k, v):
            out = attend(q, k, v) * weights
            return out.astype(jnp.float32).sum(), out

        gradients, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(q, k, v)
        return out, *gradients

    found = out_and_gradients(lambda *qkv: attention.attention(*qkv, segment_ids_BT))
    monkeypatch.setattr(attention, "platform", lambda: "cpu")
    expected = out_and_gradients(lambda *qkv: attention.attention(*qkv, segment_ids_BT))
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours, np.float32), np.asarray(theirs, np.float32), atol=0.06, rtol=0.03)


def _without_kernel(attend, *arrays, implementation, **options):
    assert implementation == "cudnn"
    return attend(*arrays, implementation="xla", **options)


def test_under_a_mesh_each_device_runs_the_kernel_on_its_heads():
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])):
        assert kernels_of_a_step(MODEL) == (1, 1)


@pytest.mark.parametrize("update", [{"dtype": "float32"}, {"head_dim": 12}])
def test_the_kernel_is_not_given_sizes_that_it_cannot_compute(update):
    assert kernels_of_a_step(MODEL.model_copy(update=update)) == (0, 0)


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=2))
def test_the_kernel_only_sees_rows_in_which_causal_means_the_same_for_real_tokens(rows):
    def attended(row, query):
        return [key for key in range(query + 1) if row[key] == row[query]]

    causal_is_right = all(
        attended(row, query) == list(range(query + 1)) for row in rows for query in range(5) if row[query] != 0
    )
    if attention.is_one_segment_each(np.array(rows)):
        assert causal_is_right
    elif all(row[0] != 0 for row in rows):  # a row that begins with padding goes the slow way
        assert not causal_is_right
