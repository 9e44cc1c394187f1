"""What the log-probs of sampler and learner differ by, split by cause: one policy, two programs, the same tokens.

The sampled tokens are scored along a ladder of settings, each of which differs from the one before in one thing. What
two rungs are apart by is that thing's part; the parts of a token add up to sampled − learner:

    as sampled
    the decoder alone, as it fits best     decoder_batch  other rows and calls, or what nothing here reproduces
    … at the learner's temperature         temperature
    … among the ids the learner counts     kept_ids
    … in the learner's dtype               dtype
    the learner, the episode in one row    program
    the learner, in the run's batches      batch

Tokens of other weights than those at hand cannot be judged: all of their difference is weight_version's.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, cast, get_args

import numpy as np

from astra_jax.chat.format import Source
from astra_jax.checkpoints.policy import Policy
from astra_jax.engine.interface import Sampling
from astra_jax.engine.teacher_forced import SampledTokens, forced_logprobs
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import EpisodeLogError, LoggedEpisode
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start, decode_limits, finished, none_can_run
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.evaluate.environments import NoneFinished
from astra_jax.evaluate.replay import tolerance_of
from astra_jax.model.config import DType, ModelConfig
from astra_jax.rl.batch import make_rl_batch, row_tokens
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import batch_logprobs
from sandbox.client import AsyncSandboxClient
from synthesis.records import Environment, JsonObject

Cause = Literal[
    "weight_version",
    "decoder_batch",
    "temperature",
    "kept_ids",
    "dtype",
    "program",
    "batch",
]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_BAND: Final = (0.9, 1.1)
_MOST_TOKENS: Final = 4096
_NOTHING: Final = 1e-5
"""Nats, in the mean: what float32 sums in another order come to."""
_NUM_NAMED: Final = 3
_GRID: Final = 33
"""Temperatures that are tried at once, from a quarter of the learner's to four times it, then ever closer."""
_MAY_BE_TWICE: Final = 2.0
"""By how much other settings have to fit better than those that a run says it has, to be believed."""


class Spoken(NamedTuple):
    """The tokens of an episode, and the limits that they were sampled under."""

    ledger: TokenLedger
    rollout: RolloutConfig
    is_unfinished: bool = False


class Learner(NamedTuple):
    """How a run's learner computes log-probs."""

    temperature: float
    top_k: int | None
    """None: among all ids."""
    num_rows: int
    """Of a batch."""
    episodes_per_row: int = 1
    length_bucket_tokens: int = 128
    chunk_tokens: int = 256
    accumulation: int = 1


class Sampler(NamedTuple):
    """How the tokens were sampled, as far as their log-probs tell."""

    dtype: DType
    temperature: float
    is_truncated: bool
    """Whether the log-probs are those among the ids that truncation kept."""


class Figures(NamedTuple):
    """What a part comes to over tokens; in nats, but for the share."""

    tokens: int
    mean: float
    """Of |Δ|, as the next three."""
    p50: float
    p95: float
    max: float
    share_outside: float
    """Of tokens whose ratio, learner / sampler, this part alone moves out of [0.9, 1.1]."""
    kl: float
    """KL(sampler ‖ learner) by the k3 estimate, mean of ρ − 1 − ln ρ (Schulman, “Approximating KL divergence”)."""


@dataclasses.dataclass(frozen=True)
class Split:
    """The difference of each sampled token, and its parts."""

    total_N: np.ndarray
    """Sampled − learner, in nats; float64, as the parts."""
    parts: dict[Cause, np.ndarray]
    is_judged_N: np.ndarray
    """Where the token was sampled with the weights at hand."""
    policy_version: int
    """That of these weights."""
    other_versions: tuple[int, ...]
    sampler: Sampler
    learner: Learner
    model_config: ModelConfig
    """The learner's."""

    @property
    def largest(self) -> Cause:
        """The cause whose parts come to the most nats, over all tokens."""
        return max(CAUSES, key=lambda cause: float(np.abs(self.parts[cause]).sum()))

    def figures(self) -> dict[str, Figures]:
        """Return the figures of each cause, and of the `total`; those of a cause are over the tokens that it has."""
        tokens = dict.fromkeys(CAUSES, self.is_judged_N) | {"weight_version": ~self.is_judged_N}
        return {
            **{cause: figures_of(self.parts[cause][tokens[cause]]) for cause in CAUSES},
            "total": figures_of(self.total_N),
        }

    def to_json(self) -> JsonObject:
        """Return all figures, and what they were taken from."""
        return {
            "largest": self.largest,
            "advice": advice(self),
            "causes": {name: figures._asdict() for name, figures in self.figures().items()},
            "sampler": self.sampler._asdict(),
            "learner": {"dtype": self.model_config.dtype, **self.learner._asdict()},
            "policy_version": self.policy_version,
            "other_versions": list(self.other_versions),
        }


def figures_of(part_N: np.ndarray) -> Figures:
    """Return what parts come to; all 0 without tokens.

    >>> figures_of(np.array([0.0, -0.2, 0.0, 0.0])).share_outside
    0.25
    """
    if len(part_N) == 0:
        return Figures(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    size_N, ratio_N = np.abs(part_N), np.exp(-part_N)
    low, high = _BAND
    return Figures(
        tokens=len(part_N),
        mean=float(size_N.mean()),
        p50=float(np.quantile(size_N, 0.5)),
        p95=float(np.quantile(size_N, 0.95)),
        max=float(size_N.max()),
        share_outside=float(((ratio_N < low) | (ratio_N > high)).mean()),
        kl=float((np.expm1(-part_N) + part_N).mean()),
    )


def learner_of(config: RLConfig) -> Learner:
    """Return how the learner of a run computes log-probs."""
    return Learner(
        temperature=config.rollout.temperature,
        top_k=config.rollout.top_k,
        num_rows=config.rows_per_update,
        episodes_per_row=config.episodes_per_row,
        length_bucket_tokens=config.length_bucket_tokens,
        chunk_tokens=config.logprob_chunk_tokens,
        accumulation=config.accumulation,
    )


def spoken(episode: Episode) -> Spoken:
    """Return the tokens of an episode that a policy has just spoken."""
    assert episode.rolled_out is not None, "a policy spoke"
    return Spoken(episode.ledger, RolloutConfig.model_validate(episode.rolled_out["limits"]))


async def rolled_out(
    policy: Policy,
    environments: Sequence[Environment],
    sandbox: AsyncSandboxClient,
    config: RLConfig | None = None,
    *,
    num_groups: int,
    seed: int,
    sampler_dtype: DType | None = None,
) -> list[Spoken]:
    """Roll groups out in the first environments that can be run, as a run of this config would.

    Without one: groups of 4 at temperature 1, with at most half of the context each for prompt and response.

    Raises:
        PromptTooLong: there is no such environment.
        NoneFinished: an episode of every group was cut off.
        SandboxUnavailable: the sandbox is down.
    """
    sampler_config = policy.model_config.model_copy(update={"dtype": sampler_dtype or policy.model_config.dtype})
    half = min(sampler_config.context_tokens // 2, _MOST_TOKENS)
    rollout = RolloutConfig(max_prompt_tokens=half, max_response_tokens=half, max_turns=8)
    rollout, bands = (rollout, {}) if config is None else (config.rollout, config.irrelevant_per_band)
    engine = RolloutEngine(sampler_config, policy.tokenizer, sandbox, rollout)
    starts = (Start(each, mix_tools(each, irrelevant_per_band=bands, seed=seed)) for each in environments)
    chosen = list(itertools.islice(filter(engine.can_run, starts), num_groups))
    if not chosen:
        raise none_can_run(rollout, len(environments))
    group_size = 4 if config is None else config.group_size
    groups = finished(await engine.run(policy.params, chosen, group_size=group_size, seed=seed))
    if not groups:
        raise NoneFinished("expected a group whose episodes all ended, found none; raise rollout.max_tool_seconds")
    return [spoken(episode) for group in groups for episode in group]


def logged_as_spoken(logged: LoggedEpisode) -> Spoken:
    """Return the tokens of a logged episode.

    Raises:
        EpisodeLogError: no policy spoke, or the log is of a version that does not say how.
    """
    if logged.rolled_out is None or not any(token.source == "model" for token in logged.tokens):
        raise EpisodeLogError(
            f"expected tokens that a policy sampled, and their limits, in the episode in {logged.environment_id}, "
            "found none: no policy spoke, or the log is of an older version"
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


def split(
    policy: Policy,
    episodes: Sequence[Spoken],
    learner: Learner | None = None,
    *,
    sampler_dtype: DType | None = None,
    policy_version: int | None = None,
) -> Split:
    """Split what the log-probs of sampled tokens and the learner's differ by.

    Without a `learner` it is one that computes as the episodes were sampled, all of them in one batch. Without a
    `sampler_dtype` the one that fits is taken; without a version, the weights are of the newest that tokens have.

    Raises:
        EpisodeLogError: there is no episode, or they were sampled under several limits.
        ConfigError: the platform knows no pages of the type that they were sampled with.
    """
    limits = {each.rollout.model_dump_json() for each in episodes}
    if len(limits) != 1:
        raise EpisodeLogError(
            f"expected episodes that were sampled under the same limits, found {len(limits)} of them in "
            f"{len(episodes)} episodes; name the logs of one run"
        )
    rollout = episodes[0].rollout
    said = rollout.temperature or 1.0  # the log-probs of greedy tokens are those at 1
    learner = learner or Learner(said, rollout.top_k, num_rows=len(episodes))
    sampled_N, version_N, is_kept_N = (_of_sampled(episodes, column) for column in _COLUMNS)
    newest = int(version_N.max()) if policy_version is None else policy_version
    is_judged_N = (version_N == newest) | (version_N < 0)  # older logs do not say
    # A run refuses tokens whose kept ids it does not know; here their learner counts all ids.
    learner = learner._replace(top_k=learner.top_k if is_kept_N.all() else None)
    model_config = policy.model_config

    def decoded(dtype: DType, temperatures: Sequence[float]) -> np.ndarray:
        return _decoder_logprobs(model_config.model_copy(update={"dtype": dtype}), policy, episodes, temperatures)

    def fitted(dtype: DType) -> tuple[float, Sampler]:
        def misses_at(temperatures: Sequence[float]) -> np.ndarray:
            logprobs_NG2 = decoded(dtype, temperatures)
            return np.abs(sampled_N[:, None, None] - logprobs_NG2)[is_judged_N].mean(0)

        miss, temperature, is_truncated = _best_fit(misses_at, learner, said)
        return miss, Sampler(dtype, temperature, is_truncated)

    of_learner_N = _learner_logprobs(policy, episodes, learner, in_batches=True)
    parts: dict[Cause, np.ndarray] = {cause: np.zeros(len(sampled_N)) for cause in CAUSES}
    sampler = Sampler(sampler_dtype or model_config.dtype, said, learner.top_k is not None)
    if is_judged_N.any():
        sampler = _sampler(fitted, model_config.dtype, sampler_dtype)
        truncated, counted = int(sampler.is_truncated), int(learner.top_k is not None)
        at_both = decoded(sampler.dtype, [sampler.temperature, learner.temperature])
        rungs = [sampled_N, at_both[:, 0, truncated], at_both[:, 1, truncated], at_both[:, 1, counted]]
        same = sampler.dtype == model_config.dtype
        rungs.append(rungs[-1] if same else decoded(model_config.dtype, [learner.temperature])[:, 0, counted])
        rungs += [_learner_logprobs(policy, episodes, learner, in_batches=False), of_learner_N]
        for cause, before_N, after_N in zip(CAUSES[1:], rungs[:-1], rungs[1:], strict=True):
            parts[cause] = np.where(is_judged_N, before_N - after_N, 0.0)
    total_N = sampled_N - of_learner_N
    parts["weight_version"] = np.where(is_judged_N, 0.0, total_N)
    others = tuple(sorted(set(version_N[~is_judged_N].astype(int).tolist())))
    return Split(total_N, parts, is_judged_N, newest, others, sampler, learner, model_config)


def advice(found: Split) -> str:
    """Return what the largest cause is, in words, and what to do."""
    sampler, learner, total = found.sampler, found.learner, found.figures()["total"]
    if total.mean < _NOTHING:
        return f"sampler and learner agree to {total.mean:.1e} nats: nothing to do"
    cap = "or correct what is left with importance weights in an objective of your own (docs/variants.md)"
    of_batch = np.quantile(np.abs(found.parts["decoder_batch"]), 0.95)
    sampled_as = found.model_config.model_copy(update={"dtype": sampler.dtype})
    is_reproduced = of_batch <= tolerance_of(sampled_as)
    among = {True: "among the kept ids", False: "among all ids"}
    return {
        "weight_version": f"{(~found.is_judged_N).sum()} of {len(found.total_N)} tokens were sampled with weights of "
        f"version {', '.join(map(str, found.other_versions))}, not {found.policy_version}, and cannot be judged: name "
        "the policy that sampled them, or the log of its own step; within a run lower max_staleness",
        "decoder_batch": f"the decoder sums in another order among other rows, which {sampler.dtype} shows: compute in "
        f"float32, {cap}"
        if is_reproduced
        else "nothing here reproduces what was sampled: other weights under this version, another checkpoint's limits, "
        "or a sampler that is not this decoder; name the policy that sampled the episodes",
        "temperature": f"the sampled log-probs are those at temperature {sampler.temperature:.4g}, and the learner "
        f"divides by {learner.temperature:.4g}: set rollout.temperature to what is sampled at, or have the sampler "
        "tell the log-probs of the distribution that it draws from",
        "kept_ids": f"the sampled log-probs are {among[sampler.is_truncated]}, the learner's "
        f"{among[learner.top_k is not None]}: record the kept ids where tokens are sampled, with the run's top_k",
        "dtype": f"the sampler computes in {sampler.dtype}, the learner in {found.model_config.dtype}: use one "
        f"model_overrides.dtype for both, {cap}",
        "program": f"decoder and learner sum in another order, which {found.model_config.dtype} shows: compute in "
        f"float32, {cap}",
        "batch": f"the learner sums in another order in its batches, which {found.model_config.dtype} shows: "
        f"compute in float32, or change episodes_per_row and accumulation, {cap}",
    }[found.largest]


_COLUMNS: Final[tuple[Callable[[TokenLedger], Sequence[float]], ...]] = (
    lambda ledger: ledger.sampled_logprobs,
    lambda ledger: ledger.policy_versions,
    lambda ledger: [count > 0 for count in ledger.kept_counts],
)


def _of_sampled(episodes: Sequence[Spoken], column: Callable[[TokenLedger], Sequence[float]]) -> np.ndarray:
    """Return a column of the ledgers where tokens were sampled, one episode after the other; float64 [N]."""
    return np.concatenate([np.asarray(column(each.ledger), np.float64)[each.ledger.loss_mask > 0] for each in episodes])


def _sampler(fitted: Callable[[DType], tuple[float, Sampler]], own: DType, sampler_dtype: DType | None) -> Sampler:
    """Return what the tokens were sampled with: in the dtype that is told, or the learner's own if no other fits."""
    miss, sampler = fitted(sampler_dtype or own)
    if sampler_dtype is not None or miss < _NOTHING:
        return sampler
    (other,) = {*get_args(DType)} - {own}
    other_miss, other_sampler = fitted(other)
    return other_sampler if other_miss * _MAY_BE_TWICE < miss else sampler


def _best_fit(
    misses_at: Callable[[Sequence[float]], np.ndarray], learner: Learner, said: float
) -> tuple[float, float, bool]:
    """Return how far the best setting is off, in the mean, its temperature, and whether it is among kept ids.

    The learner's own setting is the best one unless another fits twice as well; then the temperature that the episodes
    name, then 1, which servers tell log-probs at that do not scale them, then any.
    """
    named, counted = [learner.temperature, said, 1.0], int(learner.top_k is not None)
    low, high = learner.temperature / 4, learner.temperature * 4
    misses_G2 = misses_at([*named, *np.geomspace(low, high, _GRID)])
    order = [(place, kept) for place in range(len(named)) for kept in (counted, 1 - counted)]
    # Closer twice: a grid of 33 is then 0.03 % wide.
    for _ in range(3):
        best = float(misses_G2.min())
        for place, kept in order:
            if misses_G2[place, kept] <= max(_MAY_BE_TWICE * best, _NOTHING):
                return float(misses_G2[place, kept]), named[place], bool(kept)
        grid = np.geomspace(low, high, _GRID)
        place = int(misses_G2[len(named) :].argmin()) // 2
        low, high = float(grid[max(place - 1, 0)]), float(grid[min(place + 1, _GRID - 1)])
        misses_G2 = misses_at([*named, *np.geomspace(low, high, _GRID)])
    place, kept = divmod(int(misses_G2[len(named) :].argmin()), 2)
    return float(misses_G2.min()), float(np.geomspace(low, high, _GRID)[place]), bool(kept)


def _decoder_logprobs(
    model_config: ModelConfig,
    policy: Policy,
    episodes: Sequence[Spoken],
    temperatures: Sequence[float],
) -> np.ndarray:
    """Return the log-probs of the sampled tokens by the decoder's programs, each episode alone; float64 [N, G, 2]."""
    # Always as many: one program, whatever is asked.
    asked = [*temperatures, *[1.0] * (_NUM_NAMED + _GRID - len(temperatures))]
    found = []
    for ledger, rollout, _ in episodes:
        limits = decode_limits(rollout.model_copy(update={"kv_share": 1.0}), 1, 1)
        sampling = Sampling(1, rollout.temperature, rollout.top_k, rollout.top_p, rollout.min_p)
        sequence = SampledTokens(ledger.ids, (ledger.loss_mask > 0).tolist(), ledger.kept, sampling)
        found.append(forced_logprobs(model_config, policy.params, sequence, limits, temperatures=asked))
    return np.concatenate(found).astype(np.float64)[:, : len(temperatures)]


def _learner_logprobs(policy: Policy, episodes: Sequence[Spoken], learner: Learner, *, in_batches: bool) -> np.ndarray:
    """Return the log-probs of the sampled tokens by the learner's program; float64 [N].

    In the run's batches, or each episode in a row of its own, alone.
    """
    objective = Objective(learner.temperature, clip_epsilon=1.0, chunk_tokens=learner.chunk_tokens)
    rows, per_row = (learner.num_rows, learner.episodes_per_row) if in_batches else (1, 1)
    bucket = learner.length_bucket_tokens
    if not in_batches:  # of one shape, which is compiled once
        bucket = row_tokens(max(len(each.ledger) for each in episodes), bucket)
    numbered, count = [], 0
    for each in episodes:
        numbered.append(each._replace(ledger=_numbered(each.ledger, count, keeps=learner.top_k is not None)))
        count += int(each.ledger.loss_mask.sum())
    found_N = np.full(count, np.nan)
    for first in range(0, len(numbered), rows * per_row):
        chosen = numbered[first : first + rows * per_row]
        if len(chosen) == 1:  # a group is of two at least: twice the same
            chosen = chosen * 2
        # Of an episode a batch asks for its tokens alone; advantages, which no log-prob depends on, want any rewards.
        group = ScoredGroup(cast("list[Episode]", chosen), tuple(map(float, range(len(chosen)))), 0)
        batch = make_rl_batch(
            [group],
            length_bucket_tokens=bucket,
            pad_id=policy.tokenizer.pad_id,
            top_k=learner.top_k,
            episodes_per_row=per_row,
            num_rows=rows,
        )
        batch = batch._replace(**{name: x[:rows] for name, x in batch._asdict().items() if x is not None})
        logprobs_BT = batch_logprobs(
            policy.params,
            batch,
            model_config=policy.model_config,
            objective=objective,
            accumulation=learner.accumulation if in_batches else 1,
        )
        is_sampled_BT = np.asarray(batch.loss_mask_BT) > 0
        numbers = np.asarray(batch.sampled_logprobs_BT)[is_sampled_BT].astype(int)
        found_N[numbers] = np.asarray(logprobs_BT, np.float64)[is_sampled_BT]
    assert not np.isnan(found_N).any(), "every sampled token stands in a batch"
    return found_N


def _numbered(ledger: TokenLedger, first: int, *, keeps: bool) -> TokenLedger:
    """Return a ledger that has numbers in the place of sampled log-probs, by which a token is found in a batch."""
    is_sampled = ledger.loss_mask > 0
    numbers = np.where(is_sampled, first + np.cumsum(is_sampled) - 1, 0)
    nothing: dict[str, Any] = {} if keeps else {"kept_counts": [0] * len(ledger), "kept_ids": array("i")}
    return dataclasses.replace(ledger, sampled_logprobs=numbers.tolist(), **nothing)
