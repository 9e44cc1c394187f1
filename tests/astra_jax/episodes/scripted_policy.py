"""A policy that says scripted messages, in place of the compiled model; everything around it is the real engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.engine.interface import Finish, Generated, Sampling, Session, Told
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
        max_prompt_tokens=4096, max_response_tokens=max_response_tokens, max_turns=max_turns, **limits
    )
    model = tiny_model_config(tokenizer.vocab_size).model_copy(update={"max_position_embeddings": 1 << 16})
    engine = ScriptedEngine(model, tokenizer, sandbox, config)
    engine.decoder = ScriptedDecoder(messages, (tokenizer.end_id, tokenizer.end_of_text_id))
    ((episode,),) = await engine.run({}, [start], group_size=1, seed=0)
    return episode


class ScriptedDecoder:
    """Says the next message of a list; the prompt is ignored."""

    def __init__(self, messages: Sequence[Sequence[int]], end_ids: tuple[int, ...]):
        self._left, self._end_ids = list(messages), end_ids

    load = None

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told = lambda ids, logprobs: None
    ) -> Generated:
        said = list(self._left.pop(0)[: sampling.max_tokens])
        told(said, [LOGPROB] * len(said))
        finish: Finish = "end" if said[-1] in self._end_ids else "length"
        return Generated(said, [LOGPROB] * len(said), [0] * len(said), finish)

    def forget(self, session: Session) -> None:
        pass

    async def until_failed(self) -> NoReturn:
        while True:
            await asyncio.Event().wait()

    async def close(self, *, failed: bool = False) -> None:
        pass


class ScriptedEngine(RolloutEngine):
    """The real engine, with a decoder that is put in."""

    decoder: Any

    def _decoder(self, *_: Any) -> Any:
        return self.decoder
