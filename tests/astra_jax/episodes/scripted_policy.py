"""A policy that says what it is told, in place of the compiled model; everything around it is the real engine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.engine import decoder as decoder_module
from astra_jax.engine.step import Decoded
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
from astra_jax.testing import tiny_model_config
from sandbox.client import AsyncSandboxClient

LOGPROB = -0.25


async def run_scripted(
    start: Start,
    messages: Sequence[Sequence[int]],
    *,
    tokenizer: Tokenizer,
    sandbox: AsyncSandboxClient,
    max_response_tokens: int = 4096,
    max_turns: int = 32,
    **limits: int,
) -> Episode:
    """Run one episode whose k-th message is `messages[k]`, cut where the engine's token limit cuts it."""
    config = RolloutConfig(
        max_prompt_tokens=4096,
        max_response_tokens=max_response_tokens,
        max_turns=max_turns,
        append_bucket_tokens=1,
        **limits,
    )
    left = list(messages)

    # The number of response tokens stands for the slots.
    def prefill(model, params, prompts_PS, counts_P, keys_E, capacity):
        return 0

    def append(model, params, num_response_tokens, tokens_ET, counts_E):
        return num_response_tokens + int(counts_E[0])

    def decode_turn(model, params, num_response_tokens, *_, end_ids, max_response_tokens):
        said = np.array([left.pop(0)[: max_response_tokens - num_response_tokens]])
        counts_E, logprobs = np.array([said.shape[1]]), np.full(said.shape, LOGPROB)
        return Decoded(num_response_tokens + said.shape[1], np.array([False]), said, logprobs, counts_E)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_module, "prefill_prompts", prefill)
        patch.setattr(decoder_module, "append_tokens", append)
        patch.setattr(decoder_module, "decode_messages", decode_turn)
        model = tiny_model_config(tokenizer.vocab_size).model_copy(update={"max_position_embeddings": 1 << 16})
        engine = RolloutEngine(model, tokenizer, sandbox, config)
        ((episode,),) = await engine.run({}, [start], group_size=1, seed=0)
    return episode
