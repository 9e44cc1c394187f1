"""Rows attend to the pages behind them and to nothing else: copied, read by a GPU's kernel, and block by block."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine import page_attention
from astra_jax.engine.kv_pages import KV, empty_pages
from astra_jax.engine.page_attention import _after, rows_of
from astra_jax.model.config import ModelConfig
from astra_jax.model.sharding import MeshConfig, make_mesh

PAGE_TOKENS, NUM_PAGES, PAGES_OF_ROW, ROWS = 16, 40, 8, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
FRESH = {"copied": 3, "kernel": 3, "blocks": 128}
"""New tokens of each row: the last of them are put and attend at once."""
CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=64,
)
ORDER = np.random.default_rng(3).permutation(NUM_PAGES).astype(np.int32)
TABLES = ORDER[: ROWS * PAGES_OF_ROW].reshape(1, ROWS, PAGES_OF_ROW)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


KEYS_NTKH, VALUES_NTKH = (normal(seed, NUM_PAGES, PAGE_TOKENS, KV_HEADS, HEAD_DIM) for seed in (0, 1))


def fresh_of(way: str) -> list[np.ndarray]:
    """New queries, keys and values of each row."""
    return [
        normal(seed, ROWS, FRESH[way], heads, HEAD_DIM) for seed, heads in ((2, HEADS), (3, KV_HEADS), (4, KV_HEADS))
    ]


@pytest.fixture(scope="module")
def pages() -> KV:
    """Pages of random tokens, in the order of this layout."""
    empty = empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS)[0]
    filled = KV(jnp.asarray(KEYS_NTKH.transpose(0, 2, 3, 1)[None]), jnp.asarray(VALUES_NTKH.swapaxes(1, 2)[None]))
    assert jax.tree.map(jnp.shape, filled) == jax.tree.map(jnp.shape, empty)
    return filled


@functools.cache
def attention(way: str):
    """The attention output of the new tokens in each row, [R, Q, N, H], as a compiled function of pages and starts."""

    def attended(pages: KV, starts: jax.Array) -> jax.Array:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(page_attention, "has_kernel", lambda *_: way == "kernel")
            patch.setattr(page_attention, "_SCORES_AT_ONCE", 2**15)
            (rows,) = rows_of((pages,), jnp.asarray(TABLES), starts, "float32", one_by_one=way != "blocks")
            q, k, v = map(jnp.asarray, fresh_of(way))
            kv = rows.put(rows.begin(FRESH[way]), k, v, jnp.int32(0), jnp.full(ROWS, FRESH[way]))
            return rows.attend(kv, q, jnp.int32(0))

    return jax.jit(attended)


def by_hand(way: str, starts: list[int]) -> np.ndarray:
    """The same in float64, token by token."""
    q, k, v = (x.astype(np.float64) for x in fresh_of(way))
    out = np.zeros(q.shape)
    for row, start in enumerate(starts):
        keys, values = (
            np.concatenate([x[TABLES[0, row]].reshape(-1, KV_HEADS, HEAD_DIM)[:start], new[row]]).astype(np.float64)
            for x, new in ((KEYS_NTKH, k), (VALUES_NTKH, v))
        )
        for query in range(FRESH[way]):
            for head in range(HEADS):
                seen = slice(0, start + query + 1), head // (HEADS // KV_HEADS)
                scores = keys[seen] @ q[row, query, head] / np.sqrt(HEAD_DIM)
                weights = np.exp(scores - scores.max())
                out[row, query, head] = weights @ values[seen] / weights.sum()
    return out


@pytest.mark.parametrize("way", FRESH)
@settings(deadline=None, max_examples=20)
@given(starts=st.lists(st.integers(0, PAGES_OF_ROW * PAGE_TOKENS), min_size=ROWS, max_size=ROWS))
def test_rows_attend_to_all_that_is_behind_them_and_to_nothing_else(pages, way, starts):
    found = attention(way)(pages, np.array([starts], np.int32))
    np.testing.assert_allclose(found, by_hand(way, starts), atol=3e-6)


@pytest.mark.parametrize("others", [[0, 0, 0], [128, 1, 4], [3, 20, 8]])
def test_a_row_computes_the_same_to_the_bit_beside_any_other_rows(pages, others):
    starts = [9, 33, 64, 7]
    expected = np.asarray(attention("copied")(pages, np.array([starts], np.int32)))
    for row in range(ROWS):
        counts = [*others[:row], starts[row], *others[row:]]
        found = attention("copied")(pages, np.array([counts], np.int32))
        assert (np.asarray(found)[row] == expected[row]).all()


def test_every_device_of_a_mesh_attends_to_its_own_pages(pages, monkeypatch):
    """The kernel reads two shards, whose tables name the same numbers, with the heads of each on two devices."""
    monkeypatch.setattr(page_attention, "has_kernel", lambda *_: True)
    starts, other = np.array([[9, 80, 0, 33]], np.int32), jax.tree.map(lambda x: x[:, ::-1], pages)

    def of_shards(pages: KV) -> jax.Array:
        tables, both = np.concatenate([TABLES] * 2), np.concatenate([starts] * 2)
        (rows,) = rows_of((pages,), tables, both, "float32", one_by_one=True)
        q, k, v = (jnp.asarray(np.concatenate([x] * 2)) for x in fresh_of("kernel"))
        return rows.attend(rows.put(rows.begin(3), k, v, jnp.int32(0), jnp.full(8, 3)), q, jnp.int32(0))

    with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
        found = jax.jit(of_shards)(jax.tree.map(lambda x, y: jnp.concatenate([x, y]), pages, other))
    expected = [attention("copied")(of_shard, starts) for of_shard in (pages, other)]
    np.testing.assert_allclose(found, np.concatenate(expected), atol=3e-6)


def test_a_rows_output_does_not_change_the_number_of_written_tokens():
    counts = np.array([[0, 3], [2, 1]], np.int32)
    for first in (0, jnp.nan, jnp.inf):
        assert (_after(counts, jnp.ones((4, 3, 1, 4)).at[1].set(first), most=3) == counts).all()
