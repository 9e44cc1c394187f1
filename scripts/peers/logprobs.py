"""Log-probs of given tokens under a vocabulary of 151,936, by a whole model of two layers: 4 sequences of 4,096 tokens.

ours     the whole batch as one jitted function, which never makes all logits
lean     one sequence at a time, the logits of 512 tokens at a time
torch    transformers' model, one sequence at a time: its logits less their `logsumexp`
trl      the chunked head of the GRPO trainer
tunix    one sequence at a time, as with `compute_logps_micro_batch_size = 1`
"""

from __future__ import annotations

from collections.abc import Callable

from peers.qwen3 import THREADS, Shape, hf_model, our_config, random_rows, tunix_model
from peers.taking_turns import Work

SHAPE = Shape(vocabulary=151_936, layers=2)
ROWS, TOKENS, CHUNK_TOKENS = 4, 4096, 512


def ours() -> Callable[[], object]:
    """Score the whole batch."""
    import jax
    import numpy as np

    from astra_jax.model.logprobs import token_logprobs
    from astra_jax.model.qwen3 import bind, init_params

    config, tokens_BT = our_config(SHAPE), random_rows(SHAPE, ROWS, TOKENS + 1)
    positions_BT = np.broadcast_to(np.arange(TOKENS), (ROWS, TOKENS))

    @jax.jit
    def logprobs(params: dict) -> jax.Array:
        model = bind(config, params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT, np.ones((ROWS, TOKENS), np.int32))
        return token_logprobs(hidden_BTD, model.output_embedding, tokens_BT[:, 1:])

    params = jax.device_put(init_params(config, seed=0))
    return lambda: logprobs(params).block_until_ready()


def lean() -> Callable[[], object]:
    """Score in chunks of a sequence."""
    import torch

    from peers.lean import Qwen3

    model, tokens_BT = Qwen3(SHAPE, TOKENS), torch.from_numpy(random_rows(SHAPE, ROWS, TOKENS + 1)).long()

    @torch.inference_mode()
    def run() -> torch.Tensor:
        found = []
        for tokens_1T in tokens_BT.split(1):
            hidden_1TD = model(tokens_1T[:, :-1])
            pairs = zip(hidden_1TD.split(CHUNK_TOKENS, 1), tokens_1T[:, 1:].split(CHUNK_TOKENS, 1), strict=True)
            for chunk, targets in pairs:
                logits = model.logits(chunk)
                found.append(logits.gather(-1, targets[..., None])[..., 0] - logits.logsumexp(-1))
        return torch.cat(found, 1)

    return run


def torch() -> Callable[[], object]:
    """Score one sequence at a time with transformers."""
    import torch

    torch.set_num_threads(THREADS)
    model, tokens_BT = hf_model(SHAPE), torch.from_numpy(random_rows(SHAPE, ROWS, TOKENS + 1)).long()

    def row(tokens_1T: torch.Tensor) -> torch.Tensor:
        logits_1TV = model(input_ids=tokens_1T[:, :-1]).logits
        return logits_1TV.gather(-1, tokens_1T[:, 1:, None])[..., 0] - logits_1TV.logsumexp(-1)

    return torch.no_grad()(lambda: torch.cat([row(tokens_1T) for tokens_1T in tokens_BT.split(1)]))


def trl() -> Callable[[], object]:
    """TRL's head without the logits of all tokens, which its GRPO trainer puts on `transformers` models."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    model, tokens_BT = hf_model(SHAPE), torch.from_numpy(random_rows(SHAPE, ROWS, TOKENS + 1)).long()
    add_fused_lm_head(model)

    torch.set_num_threads(THREADS)

    @torch.no_grad()
    def run() -> torch.Tensor:
        return model(input_ids=tokens_BT[:, :-1], shift_labels=tokens_BT[:, 1:], fused_lm_head=True).log_probs

    return run


def tunix() -> Callable[[], object]:
    """google-tunix's `compute_per_token_logps`, one sequence at a time: a prompt of one token, then the others."""
    import jax
    from flax import nnx
    from tunix.rl.common import compute_per_token_logps

    graph, state = nnx.split(tunix_model(SHAPE))
    # It runs the model over the last token too, so it is given one fewer: its sequences are then as long as ours.
    tokens_BT = random_rows(SHAPE, ROWS, TOKENS + 1)[:, :-1]

    def run() -> list[jax.Array]:
        return [
            compute_per_token_logps(
                graph, state, tokens_1T[None, :1], tokens_1T[None, 1:], pad_id=0, eos_id=SHAPE.vocabulary - 1
            ).block_until_ready()
            for tokens_1T in tokens_BT
        ]

    return run


WORK = Work(
    f"log-probs, {ROWS} x {TOKENS} tokens, vocabulary {SHAPE.vocabulary}, fp32, {THREADS} threads",
    ROWS * TOKENS,
    {"ours": ours, "lean": lean, "torch": torch, "trl": trl, "tunix": tunix},
    against=("lean",),
)
