"""What a GPU is given to run, lowered on a machine without one; how right it is `scripts/bench_accelerator.py` says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax._src.cudnn import fused_attention_stablehlo

from astra_jax.model import attention, chunked_attention
from astra_jax.model.config import ModelConfig
from astra_jax.model.cudnn_attention import _one_segment_each
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


@pytest.mark.parametrize(("remat", "forwards"), [("none", 1), ("attention", 1), ("full", 2)])
def test_a_training_step_holds_the_kernel_and_recomputes_it_only_when_remat_says_so(remat, forwards):
    assert kernels_of_a_step(MODEL.model_copy(update={"remat": remat})) == (forwards, 1)


def test_under_a_mesh_each_device_runs_the_kernel_on_its_heads():
    with jax.set_mesh(make_mesh(MeshConfig(fsdp=2, tensor=2), jax.devices()[:4])):
        assert kernels_of_a_step(MODEL) == (1, 1)


@pytest.mark.parametrize("update", [{"dtype": "float32"}, {"head_dim": 12}])
def test_what_the_kernel_cannot_compute_it_is_not_given(update):
    assert kernels_of_a_step(MODEL.model_copy(update=update)) == (0, 0)


@given(st.lists(st.lists(st.integers(0, 2), min_size=5, max_size=5), min_size=1, max_size=2))
def test_the_kernel_only_sees_rows_in_which_causal_means_the_same_for_real_tokens(rows):
    def attended(row, query):
        return [key for key in range(query + 1) if row[key] == row[query]]

    causal_is_right = all(
        attended(row, query) == list(range(query + 1)) for row in rows for query in range(5) if row[query] != 0
    )
    if _one_segment_each(np.array(rows)):
        assert causal_is_right
    elif all(row[0] != 0 for row in rows):  # rows that begin with padding go the slow way, whatever they hold
        assert not causal_is_right
