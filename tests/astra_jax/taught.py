"""A tiny policy that has learnt the gold episode of one environment."""

from __future__ import annotations

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.policy import Policy
from astra_jax.model.qwen3 import init_params
from astra_jax.sft.data import make_batch, render_sample
from astra_jax.sft.train import sft_step
from astra_jax.testing import tiny_environment, tiny_model_config
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

GOLD_STEPS = 50
"""Steps after which it solves the environment nearly always at temperature 0.3, and sometimes at 1."""


def taught_policy(tokenizer: Tokenizer, steps: int = GOLD_STEPS) -> Policy:
    """Train on the gold episode of `tiny_environment` until the policy says it."""
    model, environment = tiny_model_config(tokenizer.vocab_size), tiny_environment()
    messages, documents = environment.gold_messages(), [tool.document for tool in environment.tools]
    assert len(tokenizer.encode(render(messages, documents))) <= 320
    sample = render_sample(messages, documents, tokenizer)
    batch = make_batch([[sample]], num_rows=1, row_tokens=320, pad_id=tokenizer.pad_id)
    params, optimizer = init_params(model, seed=0), OptimizerConfig(learning_rate=1e-2)
    state = make_optimizer(optimizer, steps).init(params)
    for _ in range(steps):
        params, state, _ = sft_step(
            params,
            state,
            batch,
            model_config=model,
            optimizer_config=optimizer,
            steps=steps,
            chunk_tokens=128,
        )
    return Policy(model, params, tokenizer)
