"""Rollouts: groups of episodes of one policy, each at its own pace, with their tools in the sandbox.

An episode goes turn by turn:

    generate   the decoder samples a message, to its end or its limit             (`PagedDecoder.generate`)
    tools      its tool calls run in the sandbox, those of a turn side by side    (`_finish_turn`)
    append     template and tool-response tokens enter the ledger; the next `generate` is given all of it

`generate` is the one call that samples, at `RolloutConfig.temperature`. Its draw for a token is that of the key (seed
of this `run`, place of the episode in it, tokens since the prompt, those of tools included), so the same policy,
environments and seed give the same episodes, however long tools take; greedy ones (temperature 0) need no seed. In RL
`rl/rollouts.py` makes the seed of a `run`, and rolls out until enough groups have rewards that differ; one update
follows, whose loss divides by the same temperature.

Decided: docs/decisions/rl.md, “Episodes advance independently, in pages of 32 tokens and a fixed number of rows”.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from astra_jax.chat.format import Segment, Source, generation_prompt, segments
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import Frozen
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import Generated, Load, Sampling, Session
from astra_jax.engine.shared_device import shared
from astra_jax.engine.sizes import decode_limits
from astra_jax.episodes.episode import Episode, TurnSeconds, all_or_none
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.saved import exchanged
from astra_jax.errors import AstraError
from astra_jax.mesh.placement import num_shards, own_shards
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from sandbox.client import AsyncSandboxClient
from synthesis.answers.counting import has_sub_task
from synthesis.records import Environment, EnvironmentTool, Message

CALLS_AWAY: Final = 2
"""Calls of the decoder after which an episode of a reproducible rollout is back from its tools."""
Group = list[Episode]
"""The episodes of one environment."""


class RolloutConfig(Frozen):
    """Limits and sampling of an episode; the paper's limits are 25,600 + 49,152 tokens and 32 turns."""

    max_prompt_tokens: int = Field(gt=0)
    """Tokens of the longest prompt; an environment with a longer one is left out and counted."""
    max_response_tokens: int = Field(gt=0)
    """Tokens after the prompt, tool responses included."""
    max_turns: int = Field(gt=0)
    """Assistant messages of an episode."""
    temperature: float = Field(default=1.0, ge=0)
    """Divisor of the logits; at 0 each token is the most likely one (greedy)."""
    reproducible: bool = True
    """Whether the same seed gives the same bytes: episodes come back from their tools in an order that follows from
    tokens alone. Without it none waits for another's tools, which is faster where those take seconds; then draws are
    the same, and tokens too unless the rounding of a log-prob tips one."""
    read_tokens: int = Field(default=32, gt=0)
    """Tokens of a tool response that are computed at once; a shorter response takes as long."""
    kv_share: float = Field(default=1.0, gt=0, le=1)
    """Cached keys and values on the devices, as a share of those of all episodes at once at full length; if room runs
    out, episodes that wait for their tools give way first, then those that asked last; their tokens are read again."""

    def sampling(self, max_tokens: int) -> Sampling:
        """Return the rules for a message of at most `max_tokens`: a token is drawn from the whole distribution."""
        return Sampling(max_tokens, self.temperature)


class EvaluationRollout(RolloutConfig):
    """Limits and sampling of an episode that nothing is learnt from, so that its tokens may be truncated."""

    top_k: int | None = Field(default=None, gt=0)
    """Number of likeliest ids that a token is drawn from; without it all (`engine.interface.Sampling`)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Share of probability that the likeliest ids must reach together; a token is drawn from the fewest that do."""

    def sampling(self, max_tokens: int) -> Sampling:
        """Return the rules for a message of at most `max_tokens`."""
        return Sampling(max_tokens, self.temperature, self.top_k, self.top_p)


class PromptTooLong(AstraError, ValueError):
    """An environment's prompt exceeds `max_prompt_tokens`, or no environment can run; the message names the remedy."""


def none_can_run(config: RolloutConfig, num_environments: int) -> PromptTooLong:
    """Return the error for a set of environments of which none can run."""
    return PromptTooLong(
        f"none of {num_environments} environments has a sub-task and a prompt of at most {config.max_prompt_tokens} "
        "tokens; raise rollout.max_prompt_tokens or show fewer irrelevant tools"
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
        """Run in this sandbox, under these limits."""
        model_config.require_context(config.max_prompt_tokens + config.max_response_tokens)
        self.model_config, self.tokenizer, self.sandbox, self.config = model_config, tokenizer, sandbox, config
        self.load: Load | None = None
        """Load of the decoder of the last `run` when it was closed."""
        self._end_ids = (tokenizer.end_id, tokenizer.end_of_text_id)

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
        shown = [*segments(question, documents), Segment(generation_prompt(), Source.TEMPLATE)]
        ids: list[int] = self.tokenizer.encode_segments(shown).ids.tolist()
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
        room_for: int = 0,
        groups_with_rows: int | None = None,
    ) -> list[Group]:
        """Run `group_size` episodes in each environment to their end; return a group for each environment.

        Pages and rows are made for `room_for` groups, if there are fewer: runs of different sizes then share the
        compiled programs. With `groups_with_rows`, rows are for as many groups, and the other episodes wait until one
        is free.

        If there are several hosts, each calls this with the same starts, runs the episodes of its own shards with
        their tools, and returns those of all.

        Raises:
            PromptTooLong: an environment does not fit.
            SandboxUnavailable: the sandbox is down; no episode is returned.
            HostFailed: another host has failed.
            HostsEnd: a signal at one of several hosts ends all.
        """
        prompts = [self.prompt_tokens(start) for start in starts]
        own = set(own_shards())
        is_own = [shard in own for shard in dealt_out(prompts, num_shards())]
        groups: list[Group] = []
        running: list[tuple[Episode, Session]] = []
        for place, (start, prompt) in enumerate(zip(starts, prompts, strict=True)):
            sessions = [Session(seed, place * group_size + number) for number in range(group_size)]
            groups.append([self._begun(start, prompt, session) for session in sessions])
            if is_own[place]:
                running += zip(groups[-1], sessions, strict=True)
        num_groups = max(len(starts), room_for)
        decoder = self._decoder(params, num_groups, group_size, policy_version, groups_with_rows or num_groups)
        failed, began = True, time.monotonic()
        try:
            await _unless_it_fails(decoder, all_or_none(self._run_episode(decoder, *each, began) for each in running))
            failed = False
        finally:
            await decoder.close(failed=failed)
            self.load = decoder.load
        return exchanged(groups, is_own)

    def _begun(self, start: Start, prompt: Sequence[int], session: Session) -> Episode:
        """Return an episode that has its prompt and no message."""
        limits = self.config.model_dump(mode="json")
        ledger = TokenLedger()
        ledger.append_given(prompt, [int(Source.PROMPT)] * len(prompt), turn=0)
        # A group shares its first state object: calls replace it, none changes it.
        state, rolled_out = start.environment.state, {"seed": session.seed, "slot": session.slot, "limits": limits}
        return Episode(start.environment, start.tools, ledger, state, rolled_out=rolled_out)

    def _decoder(
        self, params: Params, num_groups: int, group_size: int, policy_version: int, groups_with_rows: int
    ) -> PagedDecoder:
        """Make a decoder with pages for `num_groups` at once."""
        limits = decode_limits(self.config, num_groups, group_size, groups_with_rows)
        return PagedDecoder(
            shared(XLADevice(self.model_config, params, limits, end_ids=self._end_ids)),
            limits,
            end_ids=self._end_ids,
            policy_version=policy_version,
            calls_away=CALLS_AWAY if self.config.reproducible else None,
        )

    async def _run_episode(self, decoder: PagedDecoder, episode: Episode, session: Session, began: float) -> None:
        config, ledger = self.config, episode.ledger
        while episode.stop_reason is None:
            room = config.max_response_tokens - ledger.num_response_tokens
            asked, told = time.monotonic(), list[float]()
            message = await decoder.generate(
                ledger.ids, config.sampling(room), session, lambda *_, told=told: told.append(time.monotonic())
            )
            sampled, calls_before = time.monotonic(), len(episode.outcomes)
            await self._finish_turn(episode, message)
            tools = time.monotonic() - sampled if len(episode.outcomes) > calls_before else 0.0
            episode.seconds.append(TurnSeconds(asked - began, told[0] - asked, sampled - told[0], tools))
        decoder.forget(session)

    async def _finish_turn(self, episode: Episode, message: Generated) -> None:
        """Enter a sampled message in the ledger, run its tools, and enter the tokens before the next message."""
        episode.num_turns += 1
        ledger, turn = episode.ledger, episode.num_turns
        ledger.append_sampled(message.ids, message.logprobs, turn=turn, policy_versions=message.policy_versions)
        # Cut off by the limit: half a message is not read, so no tool runs on arguments that were never finished.
        if message.finish != "end":
            episode.stop_reason = "max_response_tokens"
            return
        said = await episode.take_turn(self.tokenizer.decode(message.ids), self.sandbox)
        if episode.stop_reason is not None:
            return
        # The tools of a last turn have run, and count; no message reads their responses, so the ledger has none.
        encoded = self.tokenizer.encode_segments(said)
        if message.ids[-1] != self.tokenizer.end_id:
            episode.stop_reason = "end_of_text"
        elif turn >= self.config.max_turns:
            episode.stop_reason = "max_turns"
        # At the limit, not only beyond it: the next message needs room for one token at least.
        elif ledger.num_response_tokens + len(encoded.ids) >= self.config.max_response_tokens:
            episode.stop_reason = "max_response_tokens"
        if episode.stop_reason is None:
            ledger.append_given(encoded.ids.tolist(), encoded.sources.tolist(), turn=turn)


async def _unless_it_fails(decoder: PagedDecoder, episodes: Coroutine[Any, Any, Any]) -> None:
    """Run all episodes to their end; if the decoder fails, raise its error at once, even while all wait for tools."""
    ends = [asyncio.ensure_future(coroutine) for coroutine in (episodes, decoder.until_failed())]
    try:
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await next(end for end in ends if end in done)
    finally:
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)


def dealt_out(prompts: Sequence[Sequence[int]], num_shards: int) -> list[int]:
    """Say on which shard of all hosts each prompt is sampled: in turn, and the same prompt on the same one.

    Among the shards of a host a `Schedule` deals them out alike, so that the number of hosts changes nothing.

    >>> dealt_out([[7], [8], [7], [9], [6]], num_shards=3)
    [0, 1, 0, 2, 0]
    """
    shards: dict[tuple[int, ...], int] = {}
    return [shards.setdefault(tuple(prompt), len(shards) % num_shards) for prompt in prompts]
