"""Calls cost little beside their tokens: they write into pages where these lie, in few programs of few rows."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from astra_jax.engine.kv_pages import empty_pages
from astra_jax.engine.programs import Asked, Given, Place, no_stream, read_layer, sample_rows
from astra_jax.engine.sizes import decode_limits, serving_limits
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.qwen3 import layers_apart

PAGES, PAGE_TOKENS, OWN, TOKENS = 16384, 8, 6, 64


def tables(rows: int, pages_of_row: int) -> np.ndarray:
    return np.arange(rows * pages_of_row, dtype=np.int32).reshape(1, rows, pages_of_row)


@pytest.mark.parametrize(("rows", "begins"), [(1, True), (1, False), (4, False)])
def test_a_call_that_reads_copies_no_pages(untrained, rows, begins):
    config, params = untrained.model_config, layers_apart(untrained.params)
    of_layer = empty_pages(config, 1, PAGES, PAGE_TOKENS)[0]
    given = Given(
        tables(rows, 3 * OWN),
        np.full((1, rows), 20 * (not begins), np.int32),
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
    asked = Asked(tables(rows, OWN), *(np.ones((1, rows), np.int32) for _ in Asked._fields[1:]))
    program = sample_rows.lower(config, params, pages, asked, np.int32(0), end_ids=(0,), max_tokens=4).compile()
    size = sum(x.nbytes for x in jax.tree.leaves(pages))
    assert program.memory_analysis().temp_size_in_bytes < size / 4


def test_a_turn_of_a_conversation_is_read_in_a_row_that_is_hardly_longer():
    limits = serving_limits(4096, 16)
    rows = [*[(1, 128)] * 2, *[(1, 256)] * 2, *[(1, 512)] * 2]
    longer = (65, 128, 129, 256, 257, 4000)
    for begins in (False, True):
        assert [limits.read_shape(count, begins=begins) for count in longer] == rows
        assert serving_limits(100, 16).read_shape(65, begins=begins) == (1, 128)
    assert limits.read_shape(64, begins=False) == (4, 32)
    assert limits.read_shape(64, begins=True) == (1, 128)


def test_a_rollout_has_few_programs():
    """A long answer is read in several calls if these compute at most half as much as one would."""
    config = RolloutConfig(max_prompt_tokens=384, max_response_tokens=256, max_turns=5)
    limits = decode_limits(config, 20, 8)
    short, long = (4, 32), (8, 384)
    assert [limits.read_shape(count, begins=False) for count in (80, 384, 385)] == [short, short, long]
    assert [limits.read_shape(count, begins=True) for count in (80, 192, 193)] == [(8, 192), (8, 192), long]
    assert limits.read_kinds() == [(True, 8, 192), (True, *long), (False, *short), (False, *long)]
    assert (limits.row_counts, limits.tables) == ((16, 8, 2), (16, 20))
    few = decode_limits(config, 20, 8, groups_with_rows=1)
    assert (few.row_counts, few.num_pages) == ((8, 4, 2), limits.num_pages)
