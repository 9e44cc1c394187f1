"""A training step of a tiny Qwen3 on this CPU, ours beside its peers: one JSON line.

    python scripts/bench_train_step.py --against hf tunix --python tunix=/path/to/tunix/bin/python

`hf` is `transformers` + torch with its default attention; `tunix` is google-tunix 0.1.7, its model and the step of its
own trainer. A peer that wants another environment than ours gets its interpreter by `--python`; tunix's is made by

    python3.11 -m venv /path/to/tunix
    /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2

Each system runs in a process of its own, and they take turns; `ratio` says, in wall and in CPU seconds, how many times
as long as ours each peer takes.
"""

from __future__ import annotations

from collections.abc import Callable

from measured_qwen3 import Shape, hf_model, our_config, tunix_model
from taking_turns import compare

SHAPE = Shape(vocabulary=8192, layers=4)
ROWS, TOKENS = 8, 1024


def ours() -> Callable[[], float]:
    """Loss, gradients, clipping and AdamW as one jitted function."""
    import jax
    import numpy as np
    import optax

    from astra_jax.model.logprobs import token_logprobs
    from astra_jax.model.qwen3 import bind, init_params
    from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

    config = our_config(SHAPE)
    optimizer = make_optimizer(OptimizerConfig(learning_rate=1e-3), 100)
    tokens_BT = np.random.default_rng(0).integers(0, SHAPE.vocabulary, (ROWS, TOKENS + 1)).astype(np.int32)
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


def hf() -> Callable[[], float]:
    """`transformers` + torch, with its default attention."""
    import torch

    model = hf_model(SHAPE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    tokens_BT = torch.randint(0, SHAPE.vocabulary, (ROWS, TOKENS + 1), generator=torch.Generator().manual_seed(0))

    def run() -> float:
        logits_BTV = model(input_ids=tokens_BT[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits_BTV.reshape(-1, SHAPE.vocabulary), tokens_BT[:, 1:].reshape(-1))
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

    model = tunix_model(SHAPE)
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
    tokens_BT = np.random.default_rng(0).integers(0, SHAPE.vocabulary, (ROWS, TOKENS)).astype(np.int32)
    batch = TrainingInput(input_tokens=tokens_BT, input_mask=np.ones((ROWS, TOKENS), bool))

    def run() -> float:
        loss, _, _ = step(batch)
        return float(loss)

    return run


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {"ours": ours, "hf": hf, "tunix": tunix},
        work=f"train step, {ROWS} x {TOKENS} tokens, fp32",
        tokens=ROWS * TOKENS,
        against=["hf"],
        rounds=5,
    )
