"""A logged episode again: the same policy, environment, seed and slot, its tools run anew; every token is compared.

Decided: docs/decisions/rl.md, “A logged episode says what its tokens follow from”
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from astra_jax.checkpoints.policy import Policy
from astra_jax.episodes.endings import as_judged_before, by_lexicon
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.log import EpisodeLogError, LoggedEpisode, episode_to_json
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
from astra_jax.model.config import ModelConfig
from astra_jax.model.kv_pages import KVDType
from sandbox.client import AsyncSandboxClient
from synthesis.records import Environment

_COMPARED: Final = (
    *("stop_reason", "num_turns", "final_text", "is_answer_accurate", "num_solved", "num_subtasks", "num_tool_calls"),
    *("f1", "reward"),
)
_TOLERANCE: Final = {"float32": 1e-4, "bfloat16": 5e-2, "int8": 5e-2}
"""How far log-probs may be apart: alone an episode decodes in another batch than it did among others."""


@dataclass(frozen=True)
class Replay:
    """What came of running an episode again."""

    num_tokens: int
    """Of the log, those of the prompt and of tools included."""
    num_calls: int
    largest_logprob_difference: float
    """Over the tokens that were sampled both times, up to the first that differs."""
    difference: str
    """What differs first; empty where nothing does."""


async def replay(
    logged: LoggedEpisode, environment: Environment, policy: Policy, sandbox: AsyncSandboxClient
) -> Replay:
    """Run a logged episode again, alone, and compare it with its log.

    Raises:
        EpisodeLogError: the log does not say what its tokens follow from, or the environment has other tools.
        SandboxUnavailable: the sandbox is down.
    """
    how = logged.rolled_out
    if how is None:
        raise EpisodeLogError(
            f"expected seed, slot and limits of the episode in {logged.environment_id}, found none: no policy spoke, "
            "or the log is of an older version"
        )
    try:
        config = RolloutConfig.model_validate(how.limits)
    except ValidationError as error:
        first = error.errors()[0]
        raise EpisodeLogError(
            f"expected the limits of a rollout in the episode in {logged.environment_id}, found a fault at "
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        ) from error
    versions = {token.policy_version for token in logged.tokens if token.policy_version >= 0}
    if len(versions) > 1:
        raise EpisodeLogError(
            f"expected one policy in the episode in {logged.environment_id}, found tokens of policy versions "
            f"{sorted(versions)}: its weights changed on the way, and no folder holds them all"
        )
    config = config.model_copy(update={"max_tool_seconds": None})  # it had ended, however long that took
    by_name = {tool.document.name: tool for tool in environment.all_tools}
    if missing := [name for name in logged.tools if name not in by_name]:
        raise EpisodeLogError(
            f"expected the tools of {logged.environment_id} in the environments, found none of {missing}; name the "
            "record directory that the episode was run in"
        )
    # Whoever judged the episode is not asked again: what a model would say today is no fault of the replay.
    judge = by_lexicon if logged.met_expectation is None else as_judged_before(logged.met_expectation)
    engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config, judge=judge)
    start = Start(environment, [by_name[name] for name in logged.tools])
    ((episode,),) = await engine.run(policy.params, [start], group_size=1, seed=how.seed, first_slot=how.slot)
    return compared(logged, episode, policy)


def compared(logged: LoggedEpisode, episode: Episode, policy: Policy) -> Replay:
    """Compare an episode with its log: tokens, log-probs, calls, replies, how it ended and what it earned."""
    line = episode_to_json(episode, policy.tokenizer, policy=logged.policy, reward=episode_reward(episode))
    again = LoggedEpisode.model_validate(line)
    limits = {} if logged.rolled_out is None else logged.rolled_out.limits
    tolerance = tolerance_of(policy.model_config, limits.get("kv_dtype"))
    largest = 0.0
    for place, (old, new) in enumerate(zip(logged.tokens, again.tokens, strict=False)):
        if (old.id, old.source, old.turn) != (new.id, new.source, new.turn):
            found = f"token {place} was {old.id} {old.text!r} of the {old.source}, now {new.id} {new.text!r}"
            return Replay(len(logged.tokens), len(logged.calls), largest, f"{found} of the {new.source}")
        if old.kept and set(old.kept) != set(new.kept):  # a server does not tell what it kept
            found = f"truncation kept {sorted(old.kept)} where token {place} was drawn, now {sorted(new.kept)}"
            return Replay(len(logged.tokens), len(logged.calls), largest, found)
        apart = abs(old.sampled_logprob - new.sampled_logprob)
        largest = max(largest, apart)
        if apart > tolerance:
            found = f"the log-prob of token {place} was {old.sampled_logprob:.6f}, now {new.sampled_logprob:.6f}"
            return Replay(len(logged.tokens), len(logged.calls), largest, found)
    return Replay(len(logged.tokens), len(logged.calls), largest, _difference_beside_tokens(logged, again))


def tolerance_of(config: ModelConfig, kv_dtype: KVDType | None) -> float:
    """Return how far log-probs of such a model, with such cached keys and values, may be apart, in nats."""
    return max(_TOLERANCE[config.dtype], _TOLERANCE[kv_dtype or config.dtype])


def _difference_beside_tokens(logged: LoggedEpisode, again: LoggedEpisode) -> str:
    if len(logged.tokens) != len(again.tokens):
        return f"it had {len(logged.tokens)} tokens, now {len(again.tokens)}"
    for number, (old, new) in enumerate(zip(logged.calls, again.calls, strict=False), start=1):
        if old != new:  # of the last turn: what earlier ones were answered stands among the tokens
            return f"call {number} was {old}, now {new}"
    for name in _COMPARED:
        if getattr(logged, name) != getattr(again, name):
            return f"{name} was {getattr(logged, name)!r}, now {getattr(again, name)!r}"
    return ""
