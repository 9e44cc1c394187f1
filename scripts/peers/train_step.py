"""A training step on 8 rows of 1,024 tokens: loss, gradients, clipping at a norm of 1, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peers.qwen3 import SMALL, THREADS, hf_model, our_config, random_rows, tunix_model
from peers.taking_turns import Work

ROWS, TOKENS = 8, 1024


def ours() -> Callable[[], float]:
    """Jit the whole step as one function."""
    import jax
    import numpy as np
    import optax

    from astra_jax.model.logprobs import token_logprobs
    from astra_jax.model.qwen3 import bind, init_params
    from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

    config = our_config(SMALL)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3), 100)
    tokens_BT = random_rows(SMALL, ROWS, TOKENS + 1)
    positions_BT = np.broadcast_to(np.arange(TOKENS), (ROWS, TOKENS))

    def loss_fn(params: dict, tokens_BT: jax.Array) -> jax.Array:
        model = bind(config, params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT, np.ones((ROWS, TOKENS), np.int32))
        return -token_logprobs(hidden_BTD, model.output_embedding, tokens_BT[:, 1:]).mean()

    @jax.jit
    def step(params: dict, state: optax.OptState) -> tuple[dict, optax.OptState, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_fn)(params, tokens_BT)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    params = init_params(config, seed=0)
    state = optimizer.init(params)

    def run() -> float:
        nonlocal params, state
        params, state, loss = step(params, state)
        return float(loss)

    return run


def lean() -> Callable[[], float]:
    """Step with the plain model."""
    from peers.lean import Qwen3

    model = Qwen3(SMALL, TOKENS)
    return _torch_step(model, lambda tokens_BT: model.logits(model(tokens_BT)))


def hf() -> Callable[[], float]:
    """Step with transformers."""
    model = hf_model(SMALL)
    return _torch_step(model, lambda tokens_BT: model(input_ids=tokens_BT).logits)


def _torch_step(model: Any, logits_of: Callable[[Any], Any]) -> Callable[[], float]:
    import torch

    torch.set_num_threads(THREADS)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens_BT = torch.from_numpy(random_rows(SMALL, ROWS, TOKENS + 1)).long()

    def run() -> float:
        logits = logits_of(tokens_BT[:, :-1]).reshape(-1, SMALL.vocabulary)
        loss = torch.nn.functional.cross_entropy(logits, tokens_BT[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def tunix() -> Callable[[], float]:
    """google-tunix: its model without remat and its trainer's jitted step, whose loss leaves the last token out."""
    import numpy as np
    import optax
    from tunix.sft.peft_trainer import PeftTrainer, TrainingConfig, TrainingInput
    from tunix.sft.utils import build_positions_from_mask, make_causal_attn_mask

    model = tunix_model(SMALL)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    trainer = PeftTrainer(model, optimizer, TrainingConfig(eval_every_n_steps=1_000_000))
    trainer.with_gen_model_input_fn(
        lambda batch: {
            "input_tokens": batch.input_tokens,
            "input_mask": batch.input_mask,
            "positions": build_positions_from_mask(batch.input_mask),
            "attention_mask": make_causal_attn_mask(batch.input_mask),
        }
    )
    step, _ = trainer.jit_train_and_eval_step(cache_nnx_graph=True)
    tokens_BT = random_rows(SMALL, ROWS, TOKENS)
    batch = TrainingInput(input_tokens=tokens_BT, input_mask=np.ones((ROWS, TOKENS), bool))

    def run() -> float:
        loss, _, _ = step(batch)
        return float(loss)

    return run


WORK = Work(
    f"training step, {ROWS} x {TOKENS} tokens, fp32, {THREADS} threads",
    ROWS * TOKENS,
    {"ours": ours, "lean": lean, "hf": hf, "tunix": tunix},
    against=("lean", "hf"),
    rounds=5,
)
