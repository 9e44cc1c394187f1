"""The cached forward pass computes what the full forward pass computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import bind, init_params
from tests.astra_jax.engine.lockstep_cache import extend, last_hidden, prefill

CONFIG = ModelConfig(
    vocab_size=97, hidden_size=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=64
)
EPISODES_PER_PROMPT = 3
NUM_TOKENS_P = np.array([7, 4])


@pytest.fixture(scope="module")
def params():
    return init_params(CONFIG, seed=0)


@pytest.fixture(scope="module")
def prompts_PS():
    return np.random.default_rng(0).integers(0, 97, (2, 9))


@jax.jit
def jit_prefill(params, tokens_PS, num_tokens_P):
    return prefill(
        bind(CONFIG, params),
        tokens_PS,
        num_tokens_P,
        episodes_per_prompt=EPISODES_PER_PROMPT,
        response_capacity=64,
    )


@jax.jit
def jit_extend(params, cache, tokens_ET, num_tokens_E):
    return extend(bind(CONFIG, params), cache, tokens_ET, num_tokens_E)


@jax.jit
def full(params, tokens_1T):
    return bind(CONFIG, params)(tokens_1T, jnp.arange(tokens_1T.shape[1])[None], jnp.ones_like(tokens_1T))[0]


def full_forward(params, tokens):
    padded = np.zeros((1, 80), np.int32)  # one compiled length; later tokens never change earlier states
    padded[0, : len(tokens)] = tokens
    return np.asarray(full(params, padded))[: len(tokens)]


def test_prefill_and_ragged_extends_equal_the_full_forward_pass(params, prompts_PS):
    rng = np.random.default_rng(1)
    cache, prompt_hidden_PD = jit_prefill(params, prompts_PS, NUM_TOKENS_P)
    sequences = [list(prompts_PS[e // 3][: NUM_TOKENS_P[e // 3]]) for e in range(6)]
    states = [[] for _ in range(6)]
    for num_new in (1, 34, 1, 1, 34):  # 34 is more than one chunk of queries
        tokens_ET = rng.integers(0, 97, (6, num_new))
        num_tokens_E = rng.integers(0, min(num_new, 12) + 1, 6)
        if num_new == 34 and len(states[0]) < 5:
            num_tokens_E[0] = 34
        cache, hidden_ETD = jit_extend(params, cache, tokens_ET, num_tokens_E)
        for e in range(6):
            sequences[e] += list(tokens_ET[e, : num_tokens_E[e]])
            states[e] += list(np.asarray(hidden_ETD[e, : num_tokens_E[e]]))
    for e in range(6):
        expected = full_forward(params, sequences[e])
        prompt_end = NUM_TOKENS_P[e // 3]
        np.testing.assert_allclose(prompt_hidden_PD[e // 3], expected[prompt_end - 1], atol=1e-5)
        np.testing.assert_allclose(np.array(states[e]), expected[prompt_end:], atol=1e-5)
        assert cache.response_counts_E[e] == len(states[e])


def test_padding_of_prompts_and_of_new_tokens_changes_nothing(params, prompts_PS):
    garbled_PS = prompts_PS.copy()
    garbled_PS[0, 7:] = 5
    garbled_PS[1, 4:] = 11
    num_tokens_E = np.array([2, 0, 1, 34, 1, 0])
    tokens_ET = np.arange(6 * 34).reshape(6, 34) % 97
    garbled_ET = np.where(np.arange(34) < num_tokens_E[:, None], tokens_ET, 77)
    ends = []
    for prompts, tokens in ((prompts_PS, tokens_ET), (garbled_PS, garbled_ET)):
        cache, _ = jit_prefill(params, prompts, NUM_TOKENS_P)
        cache, _ = jit_extend(params, cache, tokens, num_tokens_E)
        _, hidden_E1D = jit_extend(params, cache, np.full((6, 1), 3), np.ones(6, np.int32))
        ends.append(np.asarray(hidden_E1D))
    np.testing.assert_array_equal(*ends)


def test_last_hidden_picks_the_last_valid_token_of_each_row():
    hidden_ETD = jnp.arange(6.0).reshape(2, 3, 1)
    np.testing.assert_array_equal(last_hidden(hidden_ETD, jnp.array([1, 3])), [[0.0], [5.0]])
