"""The rollout engine: groups of episodes of one policy, decoded together, with their tools in the sandbox.

Dimensions: P prompts (environments) · G episodes per prompt · E = P·G, group-major · T new tokens · V vocabulary.

One round is one turn of every episode that still runs:

    decode   one compiled loop samples until every running episode has ended its message or met a limit
    tools    all tool calls of the round run in the sandbox, side by side
    append   template and tool-response tokens enter the cache, in one compiled call per length bucket

A group's prompt is prefilled once and shared. A sampled token depends on the run's seed, the episode and the position
alone, so the same policy, environments and seed give the same episodes; greedy ones (temperature 0) need no seed.
"""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.chat.format import Source, generation_prompt, segments
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.errors import AstraError
from astra_jax.model.config import ModelConfig
from astra_jax.model.kv_cache import KVCache, extend, last_hidden, prefill
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import TPU_LANES, platform
from sandbox.client import AsyncSandboxClient
from synthesis.records import Environment, EnvironmentTool, Message

Group = list[Episode]
"""The episodes of one environment."""


class RolloutConfig(BaseModel):
    """Limits and sampling of an episode; the paper's limits are 25,600 + 49,152 tokens and 32 turns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_prompt_tokens: int = Field(gt=0)
    max_response_tokens: int = Field(gt=0)
    """Tokens after the prompt, tool responses included."""
    max_turns: int = Field(gt=0)
    temperature: float = Field(default=1.0, ge=0)
    """What divides the logits; at 0 each token is the most likely one (greedy)."""
    append_bucket_tokens: int = Field(default=64, gt=0)
    """Lengths are padded to multiples of this, so that few shapes are compiled."""


class PromptTooLong(AstraError, ValueError):
    """An environment's prompt exceeds `max_prompt_tokens`; the message says by how much and what to do."""


@dataclass(frozen=True)
class Start:
    """An environment with the tools that the policy will be shown, in order."""

    environment: Environment
    tools: Sequence[EnvironmentTool]


class RolloutEngine:
    """Runs groups of episodes of a policy.

    Raises:
        ValueError: the limits allow episodes beyond the model's context.
    """

    def __init__(self, model: ModelConfig, tokenizer: Tokenizer, sandbox: AsyncSandboxClient, config: RolloutConfig):
        model.require_context(config.max_prompt_tokens + config.max_response_tokens)
        self.model, self.tokenizer, self.sandbox, self.config = model, tokenizer, sandbox, config

    def fits(self, start: Start) -> bool:
        """Say whether the prompt of an environment is within `max_prompt_tokens`."""
        try:
            self.prompt_tokens(start)
        except PromptTooLong:
            return False
        return True

    def prompt_tokens(self, start: Start) -> list[int]:
        """Return the tokens before the first turn.

        Raises:
            PromptTooLong: they exceed `max_prompt_tokens`.
        """
        question = [Message(role="user", content=start.environment.question)]
        documents = [tool.document for tool in start.tools]
        text = "".join(segment.text for segment in segments(question, documents)) + generation_prompt()
        ids = self.tokenizer.encode(text)
        if len(ids) > self.config.max_prompt_tokens:
            raise PromptTooLong(
                f"expected a prompt of at most {self.config.max_prompt_tokens} tokens, found {len(ids)}: environment "
                f"{start.environment.id}; raise max_prompt_tokens or show fewer irrelevant tools"
            )
        return ids

    async def run(
        self, params: Params, starts: Sequence[Start], *, group_size: int, seed: int, policy_version: int = 0
    ) -> list[Group]:
        """Run `group_size` episodes in each environment to their end.

        Raises:
            PromptTooLong: an environment does not fit.
            SandboxUnavailable: the sandbox is down; no episode is returned.
        """
        prompts = [self.prompt_tokens(start) for start in starts]
        episodes = [
            Episode(start.environment, start.tools, _prompt_ledger(prompt, policy_version), start.environment.state)
            for start, prompt in zip(starts, prompts, strict=True)
            for _ in range(group_size)
        ]
        bucket = self.config.append_bucket_tokens
        prompt_bucket = math.lcm(bucket, TPU_LANES) if platform() == "tpu" else bucket
        prompts_PS, counts_P = _right_padded(prompts, prompt_bucket, self.tokenizer.pad_id)
        capacity = _round_up(self.config.max_response_tokens, bucket)
        cache, hidden_PD = _prefill(self.model, params, prompts_PS, counts_P, group_size, capacity)
        hidden_ED = jnp.repeat(hidden_PD, group_size, axis=0)
        keys_E = _episode_keys(seed, len(episodes))
        while running := [index for index, episode in enumerate(episodes) if episode.stop_reason is None]:
            running_E = np.zeros(len(episodes), bool)
            running_E[running] = True
            cache, hidden_ED, tokens_ET, logprobs_ET, counts_E = _decode_turn(
                self.model,
                params,
                cache,
                hidden_ED,
                keys_E,
                running_E,
                self.config.temperature,
                end_id=self.tokenizer.end_id,
                max_response_tokens=self.config.max_response_tokens,
            )
            tokens, logprobs, counts = np.asarray(tokens_ET), np.asarray(logprobs_ET), np.asarray(counts_E)
            appended: list[list[int]] = [[] for _ in episodes]
            turns = [
                self._finish_turn(episodes[e], tokens[e, : counts[e]].tolist(), logprobs[e, : counts[e]].tolist())
                for e in running
            ]
            for e, ids in zip(running, await asyncio.gather(*turns), strict=True):
                appended[e] = ids
            if any(appended):
                appended_ET, appended_counts_E = _right_padded(appended, bucket, self.tokenizer.pad_id)
                cache, hidden_ED = _append(self.model, params, cache, hidden_ED, appended_ET, appended_counts_E)
        return [episodes[first : first + group_size] for first in range(0, len(episodes), group_size)]

    async def _finish_turn(self, episode: Episode, ids: list[int], logprobs: list[float]) -> list[int]:
        """Enter a sampled message in the ledger and run its tools; return the tokens that come before the next one."""
        episode.num_turns += 1
        ledger, turn = episode.ledger, episode.num_turns
        ledger.append_sampled(ids, logprobs, turn=turn)
        if ids[-1] != self.tokenizer.end_id:
            episode.stop_reason = "max_response_tokens"
            return []
        said = await episode.take_turn(self.tokenizer.decode(ids), self.sandbox)
        if episode.stop_reason is not None:
            return []
        encoded = self.tokenizer.encode_segments(said)
        if turn >= self.config.max_turns:
            episode.stop_reason = "max_turns"
        elif ledger.num_response_tokens + len(encoded.ids) >= self.config.max_response_tokens:
            episode.stop_reason = "max_response_tokens"
        if episode.stop_reason is not None:
            return []
        appended = encoded.ids.tolist()
        ledger.append_given(appended, encoded.sources.tolist(), turn=turn)
        return appended


def _prompt_ledger(ids: Sequence[int], policy_version: int) -> TokenLedger:
    ledger = TokenLedger(policy_version=policy_version)
    ledger.append_given(ids, [int(Source.PROMPT)] * len(ids), turn=0)
    return ledger


def _round_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def _right_padded(rows: Sequence[Sequence[int]], bucket_tokens: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows], np.int32)
    padded = np.full((len(rows), _round_up(int(counts.max()), bucket_tokens)), pad_id, np.int32)
    for row, ids in zip(padded, rows, strict=True):
        row[: len(ids)] = ids
    return padded, counts


@functools.partial(jax.jit, static_argnums=1)
def _episode_keys(seed: jax.Array, num_episodes: int) -> jax.Array:
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(seed)))(jnp.arange(num_episodes))


@functools.partial(jax.jit, static_argnums=(0, 4, 5))
def _prefill(
    config: ModelConfig, params: Params, prompts_PS: jax.Array, counts_P: jax.Array, group_size: int, capacity: int
) -> tuple[KVCache, jax.Array]:
    model = bind(config, params)
    return prefill(model, prompts_PS, counts_P, episodes_per_prompt=group_size, response_capacity=capacity)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _append(
    config: ModelConfig,
    params: Params,
    cache: KVCache,
    hidden_ED: jax.Array,
    tokens_ET: jax.Array,
    counts_E: jax.Array,
) -> tuple[KVCache, jax.Array]:
    cache, hidden_ETD = extend(bind(config, params), cache, tokens_ET, counts_E)
    return cache, jnp.where(counts_E[:, None] > 0, last_hidden(hidden_ETD, counts_E), hidden_ED)


@functools.partial(jax.jit, static_argnums=0, static_argnames=("end_id", "max_response_tokens"), donate_argnums=(2, 3))
def _decode_turn(
    config: ModelConfig,
    params: Params,
    cache: KVCache,
    hidden_ED: jax.Array,
    keys_E: jax.Array,
    running_E: jax.Array,
    temperature: jax.Array,
    *,
    end_id: int,
    max_response_tokens: int,
) -> tuple[KVCache, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Sample one message per running episode, `<|im_end|>` included.

    Returns the cache, the hidden state [E, D] after each episode's last token, and the sampled tokens [E, T], their
    log-probs at the sampling temperature [E, T], of the raw policy where it is greedy, and how many there are [E].
    """
    model = bind(config, params)
    is_greedy = temperature == 0
    num_episodes = len(hidden_ED)
    rows_E = jnp.arange(num_episodes)

    def unfinished(carry: tuple) -> jax.Array:
        return carry[2].any()

    def sample_one(carry: tuple) -> tuple:
        cache, hidden_ED, active_E, tokens_ET, logprobs_ET, counts_E = carry
        logprobs_EV = jax.nn.log_softmax(model.logits(hidden_ED) / jnp.where(is_greedy, 1.0, temperature))
        keys = jax.vmap(jax.random.fold_in)(keys_E, cache.response_counts_E)
        sampled_E = jax.vmap(jax.random.categorical)(keys, logprobs_EV)
        token_E = jnp.where(is_greedy, logprobs_EV.argmax(-1), sampled_E).astype(jnp.int32)
        column_E = jnp.where(active_E, counts_E, max_response_tokens)  # out of bounds for finished episodes: dropped
        tokens_ET = tokens_ET.at[rows_E, column_E].set(token_E, mode="drop")
        logprobs_ET = logprobs_ET.at[rows_E, column_E].set(logprobs_EV[rows_E, token_E], mode="drop")
        cache, new_hidden_E1D = extend(model, cache, token_E[:, None], active_E.astype(jnp.int32))
        hidden_ED = jnp.where(active_E[:, None], new_hidden_E1D[:, 0], hidden_ED)
        counts_E = counts_E + active_E
        active_E = active_E & (token_E != end_id) & (cache.response_counts_E < max_response_tokens)
        return cache, hidden_ED, active_E, tokens_ET, logprobs_ET, counts_E

    cache, hidden_ED, _, tokens_ET, logprobs_ET, counts_E = jax.lax.while_loop(
        unfinished,
        sample_one,
        (
            cache,
            hidden_ED,
            running_E,
            jnp.zeros((num_episodes, max_response_tokens), jnp.int32),
            jnp.zeros((num_episodes, max_response_tokens), jnp.float32),
            jnp.zeros(num_episodes, jnp.int32),
        ),
    )
    return cache, hidden_ED, tokens_ET, logprobs_ET, counts_E
