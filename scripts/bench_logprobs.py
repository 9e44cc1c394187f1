"""Log-probabilities of given tokens under a vocabulary of 151,936, ours beside its peers: one JSON line.

    python scripts/bench_logprobs.py --against torch trl tunix ours_with_gradients \
        --python trl=/path/to/trl/bin/python --python tunix=/path/to/tunix/bin/python

Every system runs its whole model, two layers of width 256, over 4 sequences of 4,096 tokens, with as many threads as
this process has cores (`work` says how many). `torch` (`transformers`) makes the logits of one sequence at a time and
takes `logsumexp` of them, which is faster than `log_softmax`; `torch_compiled` is the same through `torch.compile`,
which needs a C++ compiler. `trl` is the chunked head of TRL's GRPO trainer; `tunix` is google-tunix
0.1.7, a sequence at a time as its `compute_logps_micro_batch_size = 1` does. None of them computes gradients;
`ours_with_gradients` adds those of every parameter. A peer that wants another environment than ours gets its
interpreter by `--python`:

    python3.11 -m venv /path/to/trl && /path/to/trl/bin/pip install torch==2.13.0 "transformers>=5,<6" trl==1.16.0
    python3.11 -m venv /path/to/tunix && /path/to/tunix/bin/pip install google-tunix==0.1.7 jax==0.10.2

Each system runs in a process of its own, and they take turns; `ratio` says, in wall and in CPU seconds, how many times
as long as ours each other one takes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from measured_qwen3 import Shape, hf_model, our_config, tunix_model
from taking_turns import compare

if TYPE_CHECKING:
    import numpy as np

SHAPE = Shape(vocabulary=151_936, layers=2)
ROWS, TOKENS = 4, 4096
THREADS = len(os.sched_getaffinity(0))


def token_ids() -> np.ndarray:
    """[B, T + 1]: each token but the last predicts the one after it."""
    import numpy as np

    return np.random.default_rng(0).integers(1, SHAPE.vocabulary, (ROWS, TOKENS + 1)).astype(np.int32)


def _our_logprobs() -> tuple[Any, Callable]:
    """Our parameters, and the function of them that is measured."""
    import jax
    import numpy as np

    from astra_jax.model.logprobs import token_logprobs
    from astra_jax.model.qwen3 import bind, init_params

    config = our_config(SHAPE)
    tokens_BT = token_ids()
    positions_BT = np.broadcast_to(np.arange(TOKENS), (ROWS, TOKENS))

    def logprobs(params: dict) -> jax.Array:
        model = bind(config, params)
        hidden_BTD = model(tokens_BT[:, :-1], positions_BT, np.ones((ROWS, TOKENS), np.int32))
        return token_logprobs(hidden_BTD, model.output_embedding, tokens_BT[:, 1:])

    return jax.device_put(init_params(config, seed=0)), logprobs


def ours() -> Callable[[], object]:
    """The whole batch as one jitted function."""
    import jax

    params, logprobs = _our_logprobs()
    forward = jax.jit(logprobs)
    return lambda: forward(params).block_until_ready()


def ours_with_gradients() -> Callable[[], object]:
    """The mean log-probability and its gradient in every parameter."""
    import jax

    params, logprobs = _our_logprobs()
    gradients = jax.jit(jax.value_and_grad(lambda params: logprobs(params).mean()))
    return lambda: jax.block_until_ready(gradients(params))


def _torch_row() -> tuple[Callable, Any]:
    """The log-probs of one sequence in `transformers`, and the sequences."""
    import torch

    torch.set_num_threads(THREADS)
    model, tokens_BT = hf_model(SHAPE), torch.from_numpy(token_ids()).long()

    def row(tokens_1T: torch.Tensor) -> torch.Tensor:
        logits_1TV = model(input_ids=tokens_1T[:, :-1]).logits
        return logits_1TV.gather(-1, tokens_1T[:, 1:, None])[..., 0] - logits_1TV.logsumexp(-1)

    return row, tokens_BT.split(1)


def torch() -> Callable[[], object]:
    """`transformers`: logits, logsumexp and gather, one sequence at a time."""
    import torch

    row, sequences = _torch_row()
    return torch.no_grad()(lambda: torch.cat([row(tokens_1T) for tokens_1T in sequences]))


def torch_compiled() -> Callable[[], object]:
    """The same, compiled."""
    import torch

    row, sequences = _torch_row()
    compiled = torch.compile(row)
    return torch.no_grad()(lambda: torch.cat([compiled(tokens_1T) for tokens_1T in sequences]))


def trl() -> Callable[[], object]:
    """TRL's head without the logits of all tokens, which its GRPO trainer puts on `transformers` models."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    model, tokens_BT = hf_model(SHAPE), torch.from_numpy(token_ids()).long()
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
    tokens_BT = token_ids()[:, :-1]

    def run() -> list[jax.Array]:
        return [
            compute_per_token_logps(
                graph, state, tokens_1T[None, :1], tokens_1T[None, 1:], pad_id=0, eos_id=SHAPE.vocabulary - 1
            ).block_until_ready()
            for tokens_1T in tokens_BT
        ]

    return run


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {
            "ours": ours,
            "ours_with_gradients": ours_with_gradients,
            "torch": torch,
            "torch_compiled": torch_compiled,
            "trl": trl,
            "tunix": tunix,
        },
        work=f"log-probabilities, {ROWS} x {TOKENS} tokens, vocabulary {SHAPE.vocabulary}, fp32, {THREADS} threads",
        tokens=ROWS * TOKENS,
        against=["ours_with_gradients", "torch"],
        rounds=3,
    )
