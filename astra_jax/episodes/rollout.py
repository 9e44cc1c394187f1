"""Rollouts: groups of episodes of one policy, decoded together, with their tools in the sandbox.

One round is one turn of every episode that still runs:

    decode   every running episode samples a message, to its end or its limit        (`sample_messages`)
    tools    all tool calls of the round run in the sandbox, side by side             (`_finish_turn`)
    append   template and tool-response tokens go back to the decoder; none is sampled  (`append`)

The groups of a `run` are two lots, each in rounds of its own: while the tools of one run, the other decodes. Which lot
an episode is in changes none of its tokens.

`sample_messages` is the one call that samples, at `RolloutConfig.temperature`. Its draw for a token is that of the key
(seed of this `run`, place of the episode in it, tokens since the prompt, those of tools included), so the same policy,
environments and seed give the same episodes; greedy ones (temperature 0) need no seed. In RL the seed of a `run` is
made of the config's and of how many groups have been submitted before (`rl/rollouts.py`); rollouts go on until there
are as many groups as a batch has whose rewards differ within the group, and only then one update follows, whose loss
divides by the same temperature (`rl/train.py`). Groups that were one too many wait, for `max_staleness` updates at
most, and are learnt from first.

Decided: docs/decisions/rl.md, “Rollouts advance in rounds of one turn”.
Decided: docs/decisions/rl.md, “Every way to write a bad call has an answer, and every episode an end”.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import jax
from pydantic import BaseModel, ConfigDict, Field

from astra_jax.chat.format import Source, generation_prompt, segments
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.engine.decoder import DecodeConfig, LockstepDecoder, SampledMessage, is_spread
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.errors import AstraError
from astra_jax.mesh.placement import in_force
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import has_sub_task
from synthesis.records import Environment, EnvironmentTool, Message

_T = TypeVar("_T")
_LOTS: Final = 2
Group = list[Episode]
"""The episodes of one environment."""


class RolloutConfig(BaseModel):
    """Limits and sampling of an episode; the paper's limits are 25,600 + 49,152 tokens and 32 turns."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_prompt_tokens: int = Field(gt=0)
    max_response_tokens: int = Field(gt=0)
    """Tokens after the prompt, tool responses included."""
    max_turns: int = Field(gt=0)
    max_consecutive_invalid_calls: int | None = Field(default=None, gt=0)
    """Calls in a row that no tool could take (`ToolOutcome.is_valid`) after which an episode ends."""
    max_tool_response_tokens: int | None = Field(default=None, gt=0)
    """Of a longer tool response the policy is shown so many tokens, and how many follow."""
    temperature: float = Field(default=1.0, ge=0)
    """What divides the logits; at 0 each token is the most likely one (greedy)."""
    append_bucket_tokens: int = Field(default=64, gt=0)
    """Lengths are padded to multiples of this, so that few shapes are compiled."""


class PromptTooLong(AstraError, ValueError):
    """An environment's prompt exceeds `max_prompt_tokens`, or no environment can run; the message says what to do."""


def none_can_run(config: RolloutConfig, num_environments: int) -> PromptTooLong:
    """Return what to raise where not one of so many environments can run."""
    return PromptTooLong(
        f"expected environments with a sub-task and a prompt of at most {config.max_prompt_tokens} tokens, found none "
        f"among {num_environments}; raise rollout.max_prompt_tokens or show fewer irrelevant tools"
    )


@dataclass(frozen=True)
class Start:
    """An environment with the tools that the policy will be shown, in order."""

    environment: Environment
    tools: Sequence[EnvironmentTool]


class RolloutEngine:
    """Runs groups of episodes of a policy.

    Raises:
        ConfigError: the limits allow episodes beyond the model's context.
    """

    def __init__(
        self, model_config: ModelConfig, tokenizer: Tokenizer, sandbox: AsyncSandboxClient, config: RolloutConfig
    ):
        model_config.require_context(config.max_prompt_tokens + config.max_response_tokens)
        self.model_config, self.tokenizer, self.sandbox, self.config = model_config, tokenizer, sandbox, config
        self._decode_config = DecodeConfig(
            end_ids=(tokenizer.end_id, tokenizer.end_of_text_id),
            pad_id=tokenizer.pad_id,
            temperature=config.temperature,
            max_response_tokens=config.max_response_tokens,
            bucket_tokens=config.append_bucket_tokens,
        )

    def can_run(self, start: Start) -> bool:
        """Say whether an environment has something to solve, and a prompt within `max_prompt_tokens`."""
        if not has_sub_task(start.environment):
            return False
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
        self,
        params: Params,
        starts: Sequence[Start],
        *,
        group_size: int,
        seed: int,
        policy_version: int = 0,
        first_slot: int = 0,
    ) -> list[Group]:
        """Run `group_size` episodes in each environment to their end; the first one draws as slot `first_slot`.

        Raises:
            PromptTooLong: an environment does not fit.
            SandboxUnavailable: the sandbox is down; no episode is returned.
        """
        prompts = [self.prompt_tokens(start) for start in starts]
        limits = self.config.model_dump(mode="json")
        # A group shares its first state object: calls replace it, none changes it.
        groups = [
            [
                Episode(
                    start.environment,
                    start.tools,
                    _prompt_ledger(prompt, policy_version),
                    start.environment.state,
                    rolled_out={"seed": seed, "slot": slot, "limits": limits},
                )
                for slot in range(first_slot + first, first_slot + first + group_size)
            ]
            for start, prompt, first in zip(
                starts, prompts, range(0, len(starts) * group_size, group_size), strict=True
            )
        ]
        # Over several devices one lot: a part of the prompts could not be dealt out evenly.
        per_lot = len(starts) if is_spread() else -(-len(starts) // _LOTS)
        lots = [
            self._run_lot(
                params,
                prompts[first : first + per_lot],
                groups[first : first + per_lot],
                first_slot + first * group_size,
                seed,
            )
            for first in range(0, len(starts), per_lot)
        ]
        await _all_or_none(lots)
        return groups

    async def _run_lot(
        self, params: Params, prompts: Sequence[Sequence[int]], groups: Sequence[Group], first_slot: int, seed: int
    ) -> None:
        """Run the episodes of some groups to their end, in a decoder of their own."""
        episodes = [episode for group in groups for episode in group]  # in the order of the decoder's slots
        decoder = await _off_the_loop(
            LockstepDecoder,
            *(self.model_config, params, prompts),
            slots_per_prompt=len(groups[0]),
            seed=seed,
            config=self._decode_config,
            first_slot=first_slot,
        )
        while running := [index for index, episode in enumerate(episodes) if episode.stop_reason is None]:
            said = await _off_the_loop(decoder.sample_messages, running)
            # A round waits for its slowest tool; the calls of all episodes wait side by side.
            turns = [self._finish_turn(episodes[e], message) for e, message in zip(running, said, strict=True)]
            # One entry a slot, empty where an episode has stopped or stops now.
            given: list[list[int]] = [[] for _ in episodes]
            for e, ids in zip(running, await _all_or_none(turns), strict=True):
                given[e] = ids
            await _off_the_loop(decoder.append, given)

    async def _finish_turn(self, episode: Episode, message: SampledMessage) -> list[int]:
        """Enter a sampled message in the ledger and run its tools; return the tokens that come before the next one."""
        episode.num_turns += 1
        ledger, turn = episode.ledger, episode.num_turns
        ledger.append_sampled(message.ids, message.logprobs, turn=turn)
        # Cut off by the limit: half a message is not read, so no tool runs on arguments that were never finished.
        if message.ids[-1] not in self._decode_config.end_ids:
            episode.stop_reason = "max_response_tokens"
            return []
        said = await episode.take_turn(self.tokenizer.decode(message.ids), self.sandbox, self._shortened)
        if episode.stop_reason is not None:
            return []
        # The tools of a last turn have run, and count; their responses nobody will read, so the ledger has none.
        encoded = self.tokenizer.encode_segments(said)
        most_invalid = self.config.max_consecutive_invalid_calls
        if message.ids[-1] != self.tokenizer.end_id:
            episode.stop_reason = "end_of_text"
        elif most_invalid is not None and episode.num_consecutive_invalid_calls >= most_invalid:
            episode.stop_reason = "max_consecutive_invalid_calls"
        elif turn >= self.config.max_turns:
            episode.stop_reason = "max_turns"
        # At the limit, not only beyond it: the next message needs room for one token at least.
        elif ledger.num_response_tokens + len(encoded.ids) >= self.config.max_response_tokens:
            episode.stop_reason = "max_response_tokens"
        if episode.stop_reason is not None:
            return []
        given = encoded.ids.tolist()
        ledger.append_given(given, encoded.sources.tolist(), turn=turn)
        return given

    def _shortened(self, response: str) -> str:
        most = self.config.max_tool_response_tokens
        return response if most is None else self.tokenizer.shortened(response, most)


async def _off_the_loop(call: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
    """Call what waits for the devices in a thread, under the mesh that is in force here."""
    mesh = jax.sharding.get_mesh()

    def under_the_mesh() -> _T:  # a thread begins without one
        with in_force(None if mesh.empty else mesh):
            return call(*args, **kwargs)

    thread = asyncio.ensure_future(asyncio.to_thread(under_the_mesh))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait([thread])  # a thread cannot be stopped, and it holds weights and cache
        raise


async def _all_or_none(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Return all results in order; of the first failure, after whatever else was under way has ended, too."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _prompt_ledger(ids: Sequence[int], policy_version: int) -> TokenLedger:
    ledger = TokenLedger(policy_version=policy_version)
    ledger.append_given(ids, [int(Source.PROMPT)] * len(ids), turn=0)
    return ledger
