"""The kernel that attends to pages on a GPU: computed on this CPU, and lowered for a GPU that is not there.

`scripts/bench_accelerator.py decode` measures its error and speed on one.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from astra_jax.engine import triton_pages
from astra_jax.engine.triton_pages import has_kernel, softmax_over_pages


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("queries", "parts"), [(1, 32), (6, 2), (20, 1)])
def test_maximum_sum_and_values_are_those_of_float64(monkeypatch, queries, parts):
    monkeypatch.setattr(triton_pages, "_MOST_PARTS", parts)
    q, keys, values = normal(7, 5, 2, queries, 32), normal(8, 40, 2, 32, 16), normal(9, 40, 2, 16, 32)
    tables = np.random.default_rng(3).permutation(40)[:35].reshape(5, 7).astype(np.int32)
    counts = np.array([0, 1, 16, 7 * 16, 50], np.int32)
    largest, total, out = softmax_over_pages(*map(jnp.asarray, (q, keys, values)), tables, counts)
    assert not np.asarray(total)[0].any()
    assert not np.asarray(out)[0].any(), "a row without tokens attends to nothing"
    for row in range(1, 5):
        of_row = keys[tables[row]].transpose(1, 2, 0, 3).reshape(2, 32, -1)[..., : counts[row]].astype(np.float64)
        seen = values[tables[row]].swapaxes(0, 1).reshape(2, -1, 32)[:, : counts[row]].astype(np.float64)
        scores = q[row].astype(np.float64) @ of_row
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(largest[row], scores.max(-1), atol=1e-5)
        np.testing.assert_allclose(total[row], weights.sum(-1), rtol=1e-5)
        np.testing.assert_allclose(out[row], weights @ seen, atol=1e-4)


def test_a_gpu_has_it_for_numbers_of_16_bits(monkeypatch):
    assert not has_kernel("bfloat16", 128, 32), "on a CPU"
    monkeypatch.setattr(triton_pages, "platform", lambda: "gpu")
    assert has_kernel("bfloat16", 128, 32)
    assert has_kernel("float16", 64, 16)
    assert not has_kernel("float32", 128, 32)
    assert not has_kernel("bfloat16", 96, 32)
    assert not has_kernel("bfloat16", 128, 8)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_it_is_lowered_for_a_gpu(monkeypatch):
    monkeypatch.setattr(triton_pages, "platform", lambda: "gpu")
    q = jnp.zeros((3, 2, 8, 128), jnp.bfloat16)
    keys, values = jnp.zeros((9, 2, 128, 32), jnp.bfloat16), jnp.zeros((9, 2, 32, 128), jnp.bfloat16)
    h100 = AbstractDevice("NVIDIA H100", num_cores=132, platform="cuda")
    with use_abstract_mesh(AbstractMesh((1,), ("gpu",), abstract_device=h100)):
        traced = jax.jit(softmax_over_pages).trace(q, keys, values, np.zeros((3, 4), np.int32), np.ones(3, np.int32))
        assert "xla.gpu.triton" in traced.lower(lowering_platforms=("cuda",)).as_text()
