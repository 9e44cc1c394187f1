"""Rows that sample attend to the pages behind them and to nothing else, whoever else is in the call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.engine.kv_pages import KV, Histories, empty_pages
from astra_jax.engine.rows import rows_of
from astra_jax.model.config import ModelConfig

PAGE_TOKENS, NUM_PAGES, MOST_OF_ROW, MOST_OF_PREFIX, FRESH = 4, 40, 5, 3, 3
PREFIXES, ROWS = 2, 4
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8
CONFIG = ModelConfig(
    vocab_size=64,
    hidden_size=32,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate_size=64,
)
KEYS_BTKH = np.random.default_rng(0).normal(size=(2, NUM_PAGES, PAGE_TOKENS, KV_HEADS, HEAD_DIM)).astype(np.float32)
FRESH_BTKH = np.random.default_rng(1).normal(size=(2, ROWS, FRESH, KV_HEADS, HEAD_DIM)).astype(np.float32)
Q_RQNH = np.random.default_rng(2).normal(size=(ROWS, 1, HEADS, HEAD_DIM)).astype(np.float32)


@pytest.fixture(scope="module")
def pages() -> KV:
    """Pages of random tokens, in the order of this layout."""
    keys_NTKH, values_NTKH = jnp.asarray(KEYS_BTKH)
    empty = empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS)[0]
    filled = KV(keys_NTKH.transpose(0, 2, 3, 1)[None], values_NTKH.transpose(0, 2, 1, 3)[None])
    assert jax.tree.map(jnp.shape, filled) == jax.tree.map(jnp.shape, empty)
    return filled


@jax.jit
def attended(of_layer: KV, histories: Histories) -> jax.Array:
    """The attention output of the last of `FRESH` new tokens in each row, [R, N, H]."""
    starts = histories.starts_DR(PAGE_TOKENS)
    (rows,) = rows_of((of_layer,), histories.tables_DRn, starts, histories, "float32")
    kv = rows.put(rows.begin(FRESH), *map(jnp.asarray, FRESH_BTKH), jnp.int32(0), jnp.full(ROWS, FRESH))
    return rows.attend(kv, jnp.asarray(Q_RQNH), jnp.int32(FRESH - 1))[:, 0]


def by_hand(histories: Histories) -> np.ndarray:
    """The same in float64, token by token."""
    out = np.zeros((ROWS, HEADS, HEAD_DIM))
    for row in range(ROWS):
        prefix = row // (ROWS // PREFIXES)
        count = histories.prefix_pages_DP[0, prefix]
        behind = [(page, PAGE_TOKENS) for page in histories.prefix_tables_DPn[0, prefix, :count]]
        left = int(histories.own_counts_DR[0, row])
        for page in histories.own_tables_DRn[0, row]:
            behind.append((page, min(PAGE_TOKENS, left)))
            left -= behind[-1][1]
        keys, values = (
            np.concatenate([*(x[page, :count] for page, count in behind), fresh[row]]).astype(np.float64)
            for x, fresh in zip(KEYS_BTKH, FRESH_BTKH, strict=True)
        )
        for head in range(HEADS):
            kv_head = head // (HEADS // KV_HEADS)
            scores = keys[:, kv_head] @ Q_RQNH[row, 0, head].astype(np.float64) / np.sqrt(HEAD_DIM)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ values[:, kv_head] / weights.sum()
    return out


def histories_of(prefix_pages: list[int], own_counts: list[int], order: np.ndarray) -> Histories:
    return Histories(
        order[: PREFIXES * MOST_OF_PREFIX].reshape(1, PREFIXES, MOST_OF_PREFIX),
        np.array([prefix_pages], np.int32),
        order[PREFIXES * MOST_OF_PREFIX :][: ROWS * MOST_OF_ROW].reshape(1, ROWS, MOST_OF_ROW),
        np.array([own_counts], np.int32),
    )


ORDER = np.random.default_rng(3).permutation(NUM_PAGES).astype(np.int32)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, MOST_OF_PREFIX), min_size=PREFIXES, max_size=PREFIXES),
    st.lists(st.integers(0, MOST_OF_ROW * PAGE_TOKENS), min_size=ROWS, max_size=ROWS),
)
def test_rows_attend_to_all_that_is_behind_them_and_to_nothing_else(pages, prefix_pages, own_counts):
    histories = histories_of(prefix_pages, own_counts, ORDER)
    np.testing.assert_allclose(attended(pages, histories), by_hand(histories), atol=2e-6)


@pytest.mark.parametrize("others", [[0, 0, 0], [20, 1, 4], [3, 20, 8]])
def test_a_row_computes_the_same_to_the_bit_whoever_else_is_in_the_call(pages, others):
    expected = attended(pages, histories_of([2, 1], [9, 5, 6, 7], ORDER))
    for row in range(ROWS):
        counts = list(others)
        counts.insert(row, [9, 5, 6, 7][row])
        found = attended(pages, histories_of([2, 1], counts, ORDER))
        assert (np.asarray(found)[row] == np.asarray(expected)[row]).all()
