"""Calls cost little beside their tokens: they write into pages where these lie, and attend for no token too many."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.engine import page_attention
from astra_jax.engine.kv_pages import KV, Histories, empty_pages
from astra_jax.engine.programs import Asked, Given, Place, no_stream, read_layer, sample_rows
from astra_jax.engine.rows import _after, rows_of
from astra_jax.engine.sizes import decode_limits, serving_limits
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import layers_apart

PAGES, PAGE_TOKENS, OWN, TOKENS = 16384, 8, 6, 64
CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=64
)


def histories(rows: int) -> Histories:
    nothing = np.zeros((1, rows, 1), np.int32)
    tables = np.arange(rows * OWN, dtype=np.int32).reshape(1, rows, OWN)
    return Histories(nothing, nothing[..., 0], tables, np.full((1, rows), 20, np.int32))


@pytest.mark.parametrize(("rows", "begins"), [(1, True), (1, False), (4, False)])
def test_a_call_that_reads_copies_no_pages(untrained, rows, begins):
    config, params = untrained.model_config, layers_apart(untrained.params)
    of_layer = empty_pages(config, 1, PAGES, PAGE_TOKENS)[0]
    behind = histories(rows)
    given = Given(
        np.tile(behind.own_tables_DRn, 3),
        behind.own_counts_DR * (not begins),
        np.ones((1, rows, TOKENS), np.int32),
        np.full((1, rows), 10, np.int32),
    )
    stream, place = no_stream(config, given), Place(*np.zeros(2, bool))
    program = read_layer.lower(
        config, params["embedding"], params["layers"][0], of_layer, stream, given, place, begins=begins
    ).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(of_layer))
    assert program.memory_analysis().alias_size_in_bytes >= size
    assert program.memory_analysis().temp_size_in_bytes < size / 4


@pytest.mark.parametrize("rows", [1, 4])
def test_a_call_that_samples_copies_no_pages(untrained, rows):
    config, params = untrained.model_config, layers_apart(untrained.params)
    pages = empty_pages(config, 1, PAGES, PAGE_TOKENS)
    asked = Asked(*(np.ones((1, rows), np.int32) for _ in Asked._fields))
    program = sample_rows.lower(
        config, params, pages, histories(rows), asked, np.int32(0), end_ids=(0,), max_tokens=4
    ).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(pages))
    assert program.memory_analysis().temp_size_in_bytes < size / 4


@pytest.mark.parametrize("counts", [[1, 0], [64, 65], [70, 3], [192, 128]])
@pytest.mark.parametrize("scores_at_once", [1, 2**15, 2**30])
def test_tokens_that_are_added_at_once_attend_to_what_they_do_laid_side_by_side(monkeypatch, counts, scores_at_once):
    """Whatever is attended at once: a page, or several."""
    monkeypatch.setattr(page_attention, "_SCORES_AT_ONCE", scores_at_once)
    rng, starts = np.random.default_rng(0), np.array([[77, 130]], np.int32)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    empty = empty_pages(CONFIG, 1, 60, PAGE_TOKENS)[0]
    filled = KV(*(x + jnp.asarray(rng.integers(-99, 99, x.shape) / 50, x.dtype) for x in empty))
    tables = rng.permutation(60)[:42].astype(np.int32).reshape(1, 2, 21)
    nothing = np.zeros((1, 2, 1), np.int32)
    behind = Histories(nothing, nothing[..., 0], tables, starts)
    q_RQNH, k_RTKH, v_RTKH = normal(2, 192, 4, 8), normal(2, 192, 2, 8), normal(2, 192, 2, 8)

    def attended(histories: Histories | None) -> np.ndarray:
        (rows,) = rows_of((filled,), tables, starts, histories, "float32")
        kv = rows.put(rows.begin(192), k_RTKH, v_RTKH, jnp.int32(0), jnp.asarray(counts))
        return np.asarray(rows.attend(kv, q_RQNH, jnp.int32(0), jnp.asarray(counts)))

    expected, found = attended(behind), attended(None)
    for row, count in enumerate(counts):
        np.testing.assert_allclose(found[row, :count], expected[row, :count], atol=2e-6)
    assert np.isfinite(found).all()


def test_a_turn_of_a_conversation_is_read_in_a_row_that_is_hardly_longer():
    limits = serving_limits(4096, 16)
    rows = [*[(1, 128)] * 2, *[(1, 256)] * 2, *[(1, 512)] * 2]
    longer = (65, 128, 129, 256, 257, 4000)
    for begins in (False, True):
        assert [limits.read_shape(count, begins=begins) for count in longer] == rows
        assert serving_limits(100, 16).read_shape(65, begins=begins) == (1, 128)
    assert limits.read_shape(64, begins=False) == (4, 32)
    assert limits.read_shape(64, begins=True) == (1, 128)


def test_a_long_answer_is_read_in_several_calls_where_these_compute_half_of_what_one_would():
    limits = decode_limits(RolloutConfig(max_prompt_tokens=384, max_response_tokens=256, max_turns=5), 20, 8)
    short, long = (4, 32), (8, 384)
    assert [limits.read_shape(count, begins=False) for count in (80, 384, 385)] == [short, short, long]
    assert [limits.read_shape(count, begins=True) for count in (80, 192, 193)] == [(8, 192), (8, 192), long]


def test_as_many_tokens_are_written_whatever_a_row_attends_to():
    counts = np.array([[0, 3], [2, 1]], np.int32)
    for first in (0, jnp.nan, jnp.inf):
        assert (_after(counts, jnp.ones((4, 3, 1, 4)).at[1].set(first), most=3) == counts).all()
