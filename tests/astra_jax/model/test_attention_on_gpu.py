"""Lowered for a GPU on a machine without one. `scripts/bench_accelerator.py` measures how right a GPU computes it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo

from astra_jax.model import attention, chunked_attention, packed_attention
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import abstract_params, bind
from astra_jax.model.sharding import MeshConfig, make_mesh
from tests.astra_jax.model.naive_attention import assert_equal, expected_of, inputs, out_and_gradients, segments_of

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

IS_RIGHT_HERE = packed_attention.is_right_here
FITS = jax.jit(packed_attention.fits_packed_layout)


@pytest.fixture(autouse=True)
def a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91_000)
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: True)
    monkeypatch.setattr(packed_attention, "is_right_here", lambda: True)
    for module in (attention, chunked_attention):
        monkeypatch.setattr(module, "platform", lambda: "gpu")


def kernels_of_a_step(model):
    ids = jax.ShapeDtypeStruct((2, 256), jnp.int32)

    def total(params, tokens_BT, positions_BT, segment_ids_BT):
        return bind(model, params)(tokens_BT, positions_BT, segment_ids_BT).astype(jnp.float32).sum()

    traced = jax.jit(jax.grad(total)).trace(abstract_params(model), ids, ids, ids)
    program = traced.lower(lowering_platforms=("cuda",)).as_text()
    calls = [line for line in program.splitlines() if "@__cudnn$fmhaSoftmax" in line]
    return tuple(
        sum(f"fmhaSoftmax{suffix}(" in call and f"max_seg_per_batch\\22: {most}" in call for call in calls)
        for most in (1, 32)
        for suffix in ("", "Backward")
    )


@pytest.mark.parametrize("remat", ["none", "attention", "offload", "full"])
def test_a_training_step_recomputes_the_kernel_only_when_remat_says_so_and_for_packed_rows(remat):
    """The backward pass of packed rows begins with their forward pass; with remat the layer recomputes it as well."""
    forwards = 2 if remat == "full" else 1, 2 if remat == "none" else 3
    assert kernels_of_a_step(MODEL.model_copy(update={"remat": remat})) == (forwards[0], 1, forwards[1], 1)


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


@pytest.fixture
def kernels_that_a_cpu_can_run(monkeypatch):
    xla = functools.partial(_without_kernel, jax.nn.dot_product_attention)
    monkeypatch.setattr(jax.nn, "dot_product_attention", xla)
    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", _as_cudnn_packs)


def _without_kernel(attend, *arrays, implementation, **options):
    assert implementation == "cudnn"
    return attend(*arrays, implementation="xla", **options)


def _as_cudnn_packs(q, k, v, *, q_seqlen, kv_seqlen, q_offsets, kv_offsets, scale, mask_type):
    """Causal attention in the parts of memory that lengths and offsets name; anything may lie behind them."""
    assert mask_type == fused_attention_stablehlo.MaskType.PADDING_CAUSAL
    places = fused_attention_stablehlo._fix_seqlen_offsets(q_seqlen, kv_seqlen, q_offsets, kv_offsets, q, k)
    q_lengths, kv_lengths, q_starts, kv_starts = (x.reshape(-1) for x in places)

    def of_memory(x, starts, lengths):
        starts, place = starts // (x.shape[2] * x.shape[3]), jnp.arange(x.shape[0] * x.shape[1])
        segment = jnp.searchsorted(starts, place, side="right") - 1
        within = place - starts[segment]
        is_one = within < lengths[jnp.minimum(segment, len(lengths) - 1)]
        return _of_parts(is_one, x.reshape(-1, *x.shape[2:])), jnp.where(is_one, segment, -1), within

    q_flat, q_segment, q_within = of_memory(q, q_starts, q_lengths)
    (k_flat, segment, within), (v_flat, *_) = (of_memory(x, kv_starts, kv_lengths) for x in (k, v))
    sees = (q_segment[:, None] == segment) & (q_within[:, None] >= within) & (segment >= 0)
    scores = jnp.where(sees, jnp.einsum("tnh,snh->nts", q_flat, k_flat) * scale, -1e30)
    out = jnp.einsum("nts,snh->tnh", jax.nn.softmax(scores), v_flat)
    return jnp.where((q_segment >= 0)[:, None, None], out, jnp.nan).reshape(q.shape)


@jax.custom_vjp
def _of_parts(is_one, x):
    return x


def _of_parts_backward(is_one, dx):
    return None, jnp.where(is_one[:, None, None], dx, jnp.nan)


_of_parts.defvjp(lambda is_one, x: (x, is_one), _of_parts_backward)
ONE, PACKED = [[[60]], [[80]]], [[[30], [50]], [[7], [1], [40], [32]]]
SHARED = [[[14, 8, 6, 18]], [[5, 1, 2], [24, 12, 12], [9]]]
MANY = [[[1]] * 33, [[80]]]


@pytest.mark.parametrize("rows", [PACKED, SHARED])
def test_the_packed_layout_has_each_segment_with_its_prefix_and_nothing_of_padding(rows, kernels_that_a_cpu_can_run):
    ids, arrays = segments_of(*rows, tokens=80), inputs(tokens=80)
    assert FITS(*ids)
    of_ids = {"segment_ids_BT": ids[0], "prefix_ids_BT": ids[1] if rows is SHARED else None}
    attend = functools.partial(packed_attention.packed_attention, **of_ids)
    found = jax.jit(functools.partial(out_and_gradients, attend, ids[0]))(*arrays)
    assert_equal(found, expected_of(*ids, *arrays))


@pytest.mark.parametrize(
    ("rows", "does_fit"),
    [([[[1]] * 32], True), ([[[1]] * 33], False), ([[[16, *[1] * 16]]], True), ([[[17, *[1] * 17]]], False)],
)
def test_rows_of_many_segments_or_many_copies_do_not_fit(rows, does_fit):
    """17 tokens and 17 copies of them, each with a token more: 323, where 4 × 80 is 320."""
    assert FITS(*segments_of(*rows, tokens=80)) == does_fit


@pytest.mark.parametrize("batches", [(ONE, PACKED, MANY), (SHARED,)], ids=["segments", "segments with prefixes"])
@pytest.mark.parametrize("is_hopper", [True, False])
def test_every_way_equals_the_naive_attention(monkeypatch, batches, is_hopper, kernels_that_a_cpu_can_run):
    """One program has all ways: each batch chooses its own."""
    monkeypatch.setattr(fused_attention_stablehlo, "check_compute_capability", lambda _: is_hopper)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in inputs(tokens=80)]
    found = jax.jit(lambda *ids: out_and_gradients(lambda *qkv: attention.attention(*qkv, *ids), ids[0], *arrays))
    for rows in batches:
        ids = segments_of(*rows, tokens=80)
        for ours, theirs in zip(found(*ids[: 1 + (rows is SHARED)]), expected_of(*ids, *arrays), strict=True):
            np.testing.assert_allclose(np.asarray(ours, np.float32), theirs, atol=0.06, rtol=0.03)


@pytest.mark.parametrize("off", [1, 1.1])
def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch, caplog, off, kernels_that_a_cpu_can_run):
    """Asked in the middle of a step over a mesh, as `attention` asks it."""
    asked, is_right = [], functools.cache(IS_RIGHT_HERE.__wrapped__)

    def ask():
        asked.append(is_right())
        return asked[-1]

    monkeypatch.setattr(packed_attention, "is_right_here", ask)
    monkeypatch.setattr(fused_attention_stablehlo, "dot_product_attention", functools.partial(_scaled, off))
    ids = segments_of(*PACKED, tokens=80)[0]
    q, k, v, _ = (jnp.asarray(x, jnp.bfloat16) for x in inputs(tokens=80))
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])):
        jax.jit(jax.grad(lambda q: attention.attention(q, k, v, ids).astype(jnp.float32).sum())).trace(q)
    assert set(asked) == {off == 1}
    assert ("is wrong on this GPU" in caplog.text) == (off != 1)


def test_an_error_that_is_no_number_is_too_large(monkeypatch):
    monkeypatch.setattr(packed_attention, "_errors", lambda: [0.0, float("nan")])
    assert not IS_RIGHT_HERE.__wrapped__()


def _scaled(by, q, k, v, **options):
    return _as_cudnn_packs(q, k, v * by, **options)


def test_under_a_mesh_each_device_runs_the_kernel_on_its_heads():
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])):
        assert kernels_of_a_step(MODEL) == (1, 1, 2, 1)


@pytest.mark.parametrize("update", [{"dtype": "float32"}, {"head_dim": 12}])
def test_the_kernel_is_not_given_sizes_that_it_cannot_compute(update):
    assert kernels_of_a_step(MODEL.model_copy(update=update)) == (0, 0, 0, 0)


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
