"""What the tests of rollout, RL and SFT share: a tokenizer, and a tiny policy that has learnt one gold episode."""

from __future__ import annotations

import pytest

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.policy import Policy
from astra_jax.model.qwen3 import init_params
from astra_jax.sft.data import make_batch, render_sample
from astra_jax.sft.train import sft_step
from astra_jax.testing import tiny_environment, tiny_model_config, tiny_tokenizer
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

GOLD_STEPS = 50
"""Enough to solve the tiny environment nearly always at temperature 0.3, and only sometimes at 1."""


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def untrained(tokenizer) -> Policy:
    model = tiny_model_config(tokenizer.vocab_size)
    return Policy(model, init_params(model, seed=0), tokenizer)


@pytest.fixture(scope="session")
def taught(tokenizer) -> Policy:
    """A policy that was shown the gold episode of `tiny_environment` until it could say it."""
    model, environment = tiny_model_config(tokenizer.vocab_size), tiny_environment()
    messages, documents = environment.gold_messages(), [tool.document for tool in environment.tools]
    assert len(tokenizer.encode(render(messages, documents))) <= 320
    sample = render_sample(messages, documents, tokenizer)
    batch = make_batch([[sample]], num_rows=1, row_tokens=320, pad_id=tokenizer.pad_id)
    params, optimizer = init_params(model, seed=0), OptimizerConfig(learning_rate=1e-2)
    state = make_optimizer(optimizer, GOLD_STEPS).init(params)
    for _ in range(GOLD_STEPS):
        params, state, _ = sft_step(
            params,
            state,
            batch,
            model_config=model,
            optimizer_config=optimizer,
            steps=GOLD_STEPS,
            chunk_tokens=128,
        )
    return Policy(model, params, tokenizer)
