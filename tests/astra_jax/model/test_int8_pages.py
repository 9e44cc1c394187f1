"""Cached keys and values that are rounded to int8: by how much, and the same to whoever attends them whenever."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.config import ConfigError
from astra_jax.model import kv_pages
from astra_jax.model.config import ModelConfig
from astra_jax.model.kv_pages import Histories, copy_pages, empty_pages, in_int8, require_kv_dtype, rows_of

CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=1, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=64
)
PAGE_TOKENS, NUM_PAGES, NUM_TOKENS = 4, 12, 7
TABLES = np.array([[[3, 7, 1], [5, 2, 9]]], np.int32)
STEP = jnp.int32(0)


def random_tokens(seed: int, heads: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, NUM_TOKENS, heads, 16)).astype(np.float32)


def int8_pages():
    return empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS, "int8")


@jax.jit
def added(pages, first, q_RQNH, k_RTKH, v_RTKH):
    """Add tokens from place `first` on; return the pages with them, and what their queries attend to."""
    starts, counts = jnp.full((1, 2), first), jnp.full((1, 2), k_RTKH.shape[1])
    nothing = np.zeros((1, 2, 1), np.int32)
    behind = Histories(nothing, nothing[..., 0], TABLES, starts)
    (rows,) = rows_of(pages, TABLES, starts, behind, "float32")
    kv = rows.put(rows.begin(k_RTKH.shape[1]), k_RTKH, v_RTKH, STEP, counts[0])
    return (rows.end(kv, counts),), rows.attend(kv, q_RQNH, STEP)


def test_a_number_is_rounded_by_half_of_its_tokens_scale_at_most():
    x = random_tokens(0) * np.float32([1e-3, 1.0, 40.0, 0.0, 1.0, 1.0, 1.0])[:, None, None]
    whole, scales = in_int8(x)
    assert whole.dtype == jnp.int8
    assert scales.shape == (2, NUM_TOKENS, 2)
    np.testing.assert_allclose(scales * 127, np.abs(x).max(-1), rtol=1e-6)
    apart = np.abs(np.asarray(whole * scales[..., None] - x))
    assert (apart <= np.asarray(scales)[..., None] * 0.5001).all()
    assert (apart[:, 3] == 0).all(), "what is all zeros stays so"


def test_in_which_calls_tokens_are_added_changes_nothing_of_what_they_attend_to():
    """What a token finds of the one before it must not depend on whether both came in one call."""
    tokens = random_tokens(1, heads=4), random_tokens(2), random_tokens(3)
    at_once, expected = added(int8_pages(), 0, *tokens)
    pages, found = int8_pages(), []
    for place in range(NUM_TOKENS):
        pages, attended = added(pages, place, *(x[:, place : place + 1] for x in tokens))
        found.append(attended)
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, atol=2e-6)
    for one, other in zip(jax.tree.leaves(pages), jax.tree.leaves(at_once), strict=True):
        np.testing.assert_array_equal(one, other)
    # And those who begin attend what a later call would find.
    (rows,) = rows_of(at_once, TABLES, np.zeros((1, 2), np.int32), None, "float32")
    exact = empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS)
    np.testing.assert_allclose(added(exact, 0, tokens[0], *map(rows.as_cached, tokens[1:]))[1], expected, atol=2e-6)
    assert 1e-4 < np.abs(added(exact, 0, *tokens)[1] - expected).max() < 0.05


def test_a_page_is_copied_with_its_scales():
    pages, _ = added(int8_pages(), 0, random_tokens(1, heads=4), random_tokens(2), random_tokens(3))
    copied = copy_pages(pages, np.array([[7, 0]], np.int32), np.array([[10, NUM_PAGES]], np.int32))
    for old, new in zip(jax.tree.leaves(pages), jax.tree.leaves(copied), strict=True):
        np.testing.assert_array_equal(new[0, 10], old[0, 7])
        assert np.abs(new[0, 10]).max() > 0


def test_int8_takes_a_quarter_of_float32_and_a_scale_a_token_and_head():
    int8, float32 = (
        jax.tree.leaves(empty_pages(CONFIG, 1, NUM_PAGES, PAGE_TOKENS, kv_dtype)) for kv_dtype in ("int8", None)
    )
    per_token_and_head = [sum(x.nbytes for x in of) / (NUM_PAGES * PAGE_TOKENS * 2) for of in (int8, float32)]
    assert per_token_and_head == [2 * (16 + 4), 2 * 16 * 4]


def test_tpus_kernel_knows_no_scale_a_token_so_it_is_refused(monkeypatch):
    monkeypatch.setattr(kv_pages, "platform", lambda: "tpu")
    wide = CONFIG.model_copy(update={"head_dim": 128})
    with pytest.raises(ConfigError, match=r"^expected no kv_dtype on a TPU, found int8[^\n]*$"):
        require_kv_dtype(wide, "int8")
    with pytest.raises(ConfigError, match="found int8"):
        empty_pages(wide, 1, NUM_PAGES, PAGE_TOKENS, "int8")
    require_kv_dtype(wide, None)
    require_kv_dtype(CONFIG, "int8")  # heads that the kernel does not know are attended without it
