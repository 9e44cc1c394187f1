"""The score of sampled tokens, just spoken or logged: their log-probs by the learner's program."""

from __future__ import annotations

import dataclasses
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple, cast

import numpy as np

from astra_jax.chat.format import Source
from astra_jax.checkpoints.policy import Policy
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import EpisodeLogError, LoggedEpisode
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.rl.batch import make_rl_batch, row_tokens
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import batch_logprobs

_ROWS: Final = 8
_CHUNK_TOKENS: Final = 256
_BUCKET_TOKENS: Final = 128


class Spoken(NamedTuple):
    """The tokens of an episode, and the limits that they were sampled under."""

    ledger: TokenLedger
    rollout: RolloutConfig
    is_unfinished: bool = False


def spoken(episode: Episode) -> Spoken:
    """Return the tokens of an episode that a policy has just spoken."""
    assert episode.rolled_out is not None, "a policy spoke"
    return Spoken(episode.ledger, RolloutConfig.model_validate(episode.rolled_out["limits"]))


def logged_as_spoken(logged: LoggedEpisode) -> Spoken:
    """Return the tokens of a logged episode.

    Raises:
        EpisodeLogError: no policy spoke.
    """
    if logged.rolled_out is None or not any(token.source == "model" for token in logged.tokens):
        raise EpisodeLogError(
            f"expected tokens that a policy sampled, and their limits, in the episode in {logged.environment_id}, "
            "found none: no policy spoke"
        )
    tokens = logged.tokens
    ledger = TokenLedger(
        ids=[token.id for token in tokens],
        sources=[int(Source[token.source.upper()]) for token in tokens],
        sampled_logprobs=[token.sampled_logprob for token in tokens],
        turns=[token.turn for token in tokens],
        policy_versions=[token.policy_version for token in tokens],
        kept_counts=[len(token.kept) for token in tokens],
        kept_ids=array("i", [id_ for token in tokens for id_ in token.kept]),
    )
    return Spoken(ledger, RolloutConfig.model_validate(logged.rolled_out.limits))


def learner_logprobs(
    policy: Policy, episodes: Sequence[Spoken], temperature: float, top_k: int | None = None
) -> np.ndarray:
    """Return the log-probs of the sampled tokens by the learner's program, in batches of 8 rows; float64 [N].

    With a `top_k` they are those among the ids that truncation kept, which every sampled token must have.
    """
    objective = Objective(temperature, clip_epsilon=1.0, chunk_tokens=_CHUNK_TOKENS)
    # One shape for all batches, which is compiled once.
    bucket = row_tokens(max(len(each.ledger) for each in episodes), _BUCKET_TOKENS)
    numbered, count = [], 0
    for each in episodes:
        numbered.append(each._replace(ledger=_numbered(each.ledger, count, keeps=top_k is not None)))
        count += int(each.ledger.loss_mask.sum())
    found_N = np.full(count, np.nan)
    for first in range(0, len(numbered), _ROWS):
        chosen = numbered[first : first + _ROWS]
        chosen += chosen[-1:] * (_ROWS - len(chosen))
        # Advantages, which no log-prob depends on, want any rewards.
        group = ScoredGroup(cast("list[Episode]", chosen), tuple(map(float, range(_ROWS))), 0)
        batch = make_rl_batch([group], length_bucket_tokens=bucket, pad_id=policy.tokenizer.pad_id, top_k=top_k)
        logprobs_BT = batch_logprobs(policy.params, batch, model_config=policy.model_config, objective=objective)
        is_sampled_BT = np.asarray(batch.loss_mask_BT) > 0
        numbers = np.asarray(batch.sampled_logprobs_BT)[is_sampled_BT].astype(int)
        found_N[numbers] = np.asarray(logprobs_BT, np.float64)[is_sampled_BT]
    assert not np.isnan(found_N).any(), "every sampled token stands in a batch"
    return found_N


def _numbered(ledger: TokenLedger, first: int, *, keeps: bool) -> TokenLedger:
    """Return a ledger with numbers in the place of sampled log-probs: by these a token is found in a batch."""
    is_sampled = ledger.loss_mask > 0
    numbers = np.where(is_sampled, first + np.cumsum(is_sampled) - 1, 0).tolist()
    if keeps:
        return dataclasses.replace(ledger, sampled_logprobs=numbers)
    return dataclasses.replace(ledger, sampled_logprobs=numbers, kept_counts=[0] * len(ledger), kept_ids=array("i"))
