"""The kernel that attends to pages on a GPU: computed on this CPU, and lowered for a GPU that is not there.

`scripts/bench_accelerator.py decode` measures its error and speed on one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from astra_jax.engine import page_attention, triton_pages
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.kv_pages import KV, Histories, empty_pages
from astra_jax.engine.programs import Asked, sample_rows
from astra_jax.engine.rows import rows_of
from astra_jax.engine.sizes import decode_limits
from astra_jax.engine.triton_pages import has_kernel, softmax_over_pages
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import init_params, layers_apart
from astra_jax.model.sharding import MeshConfig, make_mesh

PAGE_TOKENS, NUM_PAGES, MOST_OF_PREFIX, MOST_OF_ROW = 16, 40, 3, 5
ROWS, PREFIXES, HEADS, KV_HEADS, HEAD_DIM, FRESH = 4, 2, 4, 2, 16, 3
CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=64,
)
ORDER = np.random.default_rng(3).permutation(NUM_PAGES).astype(np.int32)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def histories_of(prefix_pages: list[int], own_counts: list[int]) -> Histories:
    return Histories(
        ORDER[: PREFIXES * MOST_OF_PREFIX].reshape(1, PREFIXES, MOST_OF_PREFIX),
        np.array([prefix_pages], np.int32),
        ORDER[PREFIXES * MOST_OF_PREFIX :][: ROWS * MOST_OF_ROW].reshape(1, ROWS, MOST_OF_ROW),
        np.array([own_counts], np.int32),
    )


def attended(pages: KV, histories: Histories) -> jax.Array:
    """The attention output of `FRESH` new tokens in each row, [R, Q, N, H]."""
    starts = histories.starts_DR(PAGE_TOKENS)
    (rows,) = rows_of((pages,), histories.tables_DRn, starts, histories, "float32")
    k_RTKH, v_RTKH = (normal(seed, ROWS, FRESH, KV_HEADS, HEAD_DIM) for seed in (4, 5))
    kv = rows.put(rows.begin(FRESH), jnp.asarray(k_RTKH), jnp.asarray(v_RTKH), jnp.int32(0), jnp.full(ROWS, FRESH))
    return rows.attend(kv, jnp.asarray(normal(6, ROWS, FRESH, HEADS, HEAD_DIM)), jnp.int32(0))


of_windows = jax.jit(lambda *of_call: attended(*of_call))
of_kernel = jax.jit(lambda *of_call: attended(*of_call))


@contextlib.contextmanager
def a_kernel() -> Iterator[None]:
    """Pages are told that there is one: what is traced here calls it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page_attention, "has_kernel", lambda *_: True)
        yield


def pages_of() -> KV:
    keys, values = normal(0, 1, NUM_PAGES, KV_HEADS, HEAD_DIM, PAGE_TOKENS), normal(1, 1, NUM_PAGES, KV_HEADS, 16, 16)
    return KV(jnp.asarray(keys), jnp.asarray(values))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, MOST_OF_PREFIX), min_size=PREFIXES, max_size=PREFIXES),
    st.lists(st.integers(0, MOST_OF_ROW * PAGE_TOKENS), min_size=ROWS, max_size=ROWS),
)
def test_rows_attend_in_place_to_what_they_attend_to_in_copies(prefix_pages, own_counts):
    pages, histories = pages_of(), histories_of(prefix_pages, own_counts)
    with a_kernel():
        found = of_kernel(pages, histories)
    np.testing.assert_allclose(found, of_windows(pages, histories), atol=3e-6)


@pytest.mark.parametrize(("queries", "parts"), [(1, 32), (6, 2), (20, 1)])
def test_maximum_sum_and_values_are_those_of_float64(monkeypatch, queries, parts):
    monkeypatch.setattr(triton_pages, "_MOST_PARTS", parts)
    q, keys, values = normal(7, 5, 2, queries, 32), normal(8, NUM_PAGES, 2, 32, 16), normal(9, NUM_PAGES, 2, 16, 32)
    tables, counts = ORDER[:35].reshape(5, 7), np.array([0, 1, 16, 7 * 16, 50], np.int32)
    largest, total, out = softmax_over_pages(*map(jnp.asarray, (q, keys, values)), tables, counts)
    assert not np.asarray(total)[0].any()
    assert not np.asarray(out)[0].any(), "nobody attends to nothing"
    for row in range(1, 5):
        of_row = keys[tables[row]].transpose(1, 2, 0, 3).reshape(2, 32, -1)[..., : counts[row]].astype(np.float64)
        seen = values[tables[row]].swapaxes(0, 1).reshape(2, -1, 32)[:, : counts[row]].astype(np.float64)
        scores = q[row].astype(np.float64) @ of_row
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(largest[row], scores.max(-1), atol=1e-5)
        np.testing.assert_allclose(total[row], weights.sum(-1), rtol=1e-5)
        np.testing.assert_allclose(out[row], weights @ seen, atol=1e-4)


def test_every_device_of_a_mesh_attends_to_its_own_pages():
    """Two shards, whose tables name the same numbers; and the heads of each on two devices."""
    histories = histories_of([2, 1], [9, 80, 0, 33])
    both = jax.tree.map(lambda x: np.concatenate([x, x]), histories)
    pages = pages_of()
    other = jax.tree.map(lambda x: x[:, ::-1], pages)

    def of_shards(pages: KV, histories: Histories) -> jax.Array:
        starts = histories.starts_DR(PAGE_TOKENS)
        (rows,) = rows_of((pages,), histories.tables_DRn, starts, histories, "float32")
        k, v, q = (
            jnp.asarray(np.concatenate([x, x]))
            for x in (*(normal(seed, ROWS, FRESH, KV_HEADS, HEAD_DIM) for seed in (4, 5)), normal(6, 4, FRESH, 4, 16))
        )
        return rows.attend(rows.put(rows.begin(FRESH), k, v, jnp.int32(0), jnp.full(8, FRESH)), q, jnp.int32(0))

    with a_kernel(), jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
        found = jax.jit(of_shards)(jax.tree.map(lambda x, y: jnp.concatenate([x, y]), pages, other), both)
    expected = [of_windows(of_shard, histories) for of_shard in (pages, other)]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=3e-6)


def test_a_message_is_the_same_whether_pages_are_copied_or_not():
    asked = Asked(*(np.ones((1, ROWS), np.int32) for _ in Asked._fields))._replace(
        limit_DR=np.array([[4, 2, 0, 4]], np.int32),
        slot_DR=np.arange(ROWS, dtype=np.int32)[None],
        temperature_DR=np.array([[1.0, 0.7, 1.0, 0.0]], np.float32),
        top_k_DR=np.zeros((1, ROWS), np.int32),
        top_p_DR=np.ones((1, ROWS), np.float32),
        min_p_DR=np.zeros((1, ROWS), np.float32),
    )
    params = layers_apart(init_params(CONFIG, seed=0))
    said = []
    # The length of a sequence is no part of the computation: another program, that was not compiled before.
    other = CONFIG.model_copy(update={"max_position_embeddings": 999})
    for config, kernel in ((CONFIG, contextlib.nullcontext()), (other, a_kernel())):
        with kernel:
            pages = tuple(pages_of() for _ in range(CONFIG.num_layers))
            assert jax.tree.map(jnp.shape, pages) == jax.tree.map(
                jnp.shape, empty_pages(config, 1, NUM_PAGES, PAGE_TOKENS)
            )
            histories = histories_of([2, 1], [9, 70, 0, 33])
            given = config, params, pages, histories, asked, np.int32(0)
            said.append(sample_rows(*given, end_ids=(1,), max_tokens=4))
    (copied, expected), (left, found) = said
    is_said = np.arange(4) < np.asarray(expected.counts_DR)[..., None]
    np.testing.assert_array_equal(found.counts_DR, expected.counts_DR)
    np.testing.assert_array_equal(np.asarray(found.ids_DRT)[is_said], np.asarray(expected.ids_DRT)[is_said])
    np.testing.assert_allclose(
        np.asarray(found.logprobs_DRT)[is_said], np.asarray(expected.logprobs_DRT)[is_said], atol=2e-5
    )
    for ours, theirs in zip(jax.tree.leaves(left), jax.tree.leaves(copied), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


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


async def programs_of_messages(config: ModelConfig) -> int:
    """How many programs eight messages of 100 tokens take."""
    limits = decode_limits(RolloutConfig(max_prompt_tokens=32, max_response_tokens=128, max_turns=1), 8, 1)
    device = XLADevice(config, init_params(config, seed=0), limits, end_ids=())
    decoder = PagedDecoder(device, limits, end_ids=())
    messages = (decoder.generate([5, 6, 7], Sampling(100), Session(0, slot)) for slot in range(8))
    assert [len(message.ids) for message in await asyncio.gather(*messages)] == [100] * 8
    await decoder.close()
    return device.num_programs


async def test_rows_of_any_length_share_a_program_where_pages_are_not_copied(monkeypatch):
    copied = await programs_of_messages(CONFIG)
    monkeypatch.setattr(page_attention, "has_kernel", lambda *_: True)
    left = await programs_of_messages(CONFIG.model_copy(update={"max_position_embeddings": 998}))
    assert (copied, left) == (3, 2), "a read, and messages; of copied pages there are few, or many"
