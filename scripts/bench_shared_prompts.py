"""An RL step whose rows share prompts beside one with a row for each episode, on this CPU: one JSON line.

    python scripts/bench_shared_prompts.py

One group of 8 episodes, a prompt of 1,024 tokens and 256 after it, the tiny Qwen3 of the other benchmarks: loss,
gradients, AdamW, as `astra rl` makes them. Each kind runs in a process of its own, and they take turns; `ratio` says,
in wall and in CPU seconds, how many times as long as shared rows the plain ones take.
"""

from __future__ import annotations

from collections.abc import Callable

from measured_qwen3 import Shape, our_config
from taking_turns import compare

SHAPE = Shape(vocabulary=8192, layers=4)
EPISODES, PROMPT_TOKENS, RESPONSE_TOKENS = 8, 1024, 256


def step(episodes_per_row: int) -> Callable[[], float]:
    """Return one update on the group, laid out in such rows."""
    import jax
    import numpy as np

    from astra_jax.chat.format import Source
    from astra_jax.episodes.episode import Episode
    from astra_jax.episodes.ledger import TokenLedger
    from astra_jax.model.qwen3 import init_params
    from astra_jax.rl.batch import make_rl_batch
    from astra_jax.rl.batch_filling import ScoredGroup
    from astra_jax.rl.grpo_loss import Objective
    from astra_jax.rl.train import rl_step
    from astra_jax.testing import tiny_environment
    from astra_jax.training.optimizer import OptimizerConfig, make_optimizer

    rng, environment = np.random.default_rng(0), tiny_environment()
    prompt = rng.integers(0, SHAPE.vocabulary, PROMPT_TOKENS).tolist()

    def episode() -> Episode:
        ledger = TokenLedger()
        ledger.append_given(prompt, [int(Source.PROMPT)] * PROMPT_TOKENS, turn=0)
        said = rng.integers(0, SHAPE.vocabulary, RESPONSE_TOKENS).tolist()
        logprobs = [-float(np.log(SHAPE.vocabulary))] * RESPONSE_TOKENS
        ledger.append_sampled(said, logprobs, turn=1, policy_versions=[0] * RESPONSE_TOKENS)
        return Episode(environment, environment.tools, ledger)

    group = ScoredGroup([episode() for _ in range(EPISODES)], tuple(range(EPISODES)), 0)
    batch = make_rl_batch([group], length_bucket_tokens=128, pad_id=0, episodes_per_row=episodes_per_row)
    config, optimizer = our_config(SHAPE), OptimizerConfig(learning_rate=1e-6)
    params = jax.device_put(init_params(config, seed=0))
    state = make_optimizer(optimizer, 100).init(params)

    def run() -> float:
        nonlocal params, state
        params, state, metrics = rl_step(
            params,
            state,
            batch,
            model_config=config,
            optimizer_config=optimizer,
            steps=100,
            objective=Objective(temperature=1.0, clip_epsilon=0.2, chunk_tokens=2048),
        )
        return float(metrics["loss"])

    return run


def ours() -> Callable[[], float]:
    """The whole group in one row."""
    return step(EPISODES)


def plain() -> Callable[[], float]:
    """A row for each episode."""
    return step(1)


if __name__ == "__main__":
    compare(
        __doc__ or "",
        {"ours": ours, "plain": plain},
        work=f"RL step, {EPISODES} episodes of {PROMPT_TOKENS} + {RESPONSE_TOKENS} tokens, fp32",
        tokens=EPISODES * RESPONSE_TOKENS,
        against=["plain"],
        rounds=5,
    )
