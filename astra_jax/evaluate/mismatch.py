"""The difference of a token's log-prob between sampler and learner, split by cause.

Sampled tokens are scored by the learner's own program (`scoring`), at the settings that the sampler had and then, one
after the other, at the learner's. The parts of a token add up to sampled − learner:

    as sampled
    the learner's program, at the sampler's settings   program      another order of sums; `dtype` if the types differ
    … at the learner's temperature                     temperature
    … among the ids that the learner counts            kept_ids

A token that was sampled with other weights cannot be judged: all of its difference is the part `weight_version`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, get_args

import numpy as np

from astra_jax.checkpoints.policy import Policy
from astra_jax.episodes.log import EpisodeLogError
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start, finished, none_can_run
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.evaluate.environments import NoneFinished
from astra_jax.evaluate.replay import tolerance_of
from astra_jax.evaluate.scoring import Spoken, learner_logprobs, spoken
from astra_jax.model.config import DType
from astra_jax.rl.config import RLConfig
from sandbox.client import AsyncSandboxClient
from synthesis.records import Environment, JsonObject

Cause = Literal["weight_version", "program", "dtype", "temperature", "kept_ids"]
CAUSES: Final[tuple[Cause, ...]] = get_args(Cause)
_MOST_TOKENS: Final = 4096
_NOTHING: Final = 1e-5
"""Mean difference in nats that counts as none: float32 sums in another order come to less."""
_MUST_FIT_BETTER: Final = 2.0
"""Factor by which other settings must fit better than the recorded ones, to be believed."""


class Setting(NamedTuple):
    """The distribution that a log-prob is told of."""

    temperature: float
    among_kept: bool
    """Whether the probability is relative to the ids that truncation kept."""


class Figures(NamedTuple):
    """|Δ log-prob| over some tokens, in nats."""

    tokens: int
    mean: float
    p95: float
    max: float


@dataclasses.dataclass(frozen=True)
class Split:
    """The difference of each sampled token, and its parts."""

    total_N: np.ndarray
    """Sampled − learner, in nats; float64, as the parts."""
    parts: dict[Cause, np.ndarray]
    is_judged_N: np.ndarray
    """Whether each token was sampled with the weights of this comparison."""
    policy_version: int
    """Version of the weights of this comparison."""
    other_versions: tuple[int, ...]
    sampler: Setting
    sampler_dtype: DType
    learner: Setting
    learner_dtype: DType

    @property
    def largest(self) -> Cause:
        """The cause with the most nats over all tokens."""
        return max(CAUSES, key=lambda cause: float(np.abs(self.parts[cause]).sum()))

    def figures(self) -> dict[str, Figures]:
        """Return the figures of each cause over the tokens that it may concern, and the figures of the `total`."""
        tokens = dict.fromkeys(CAUSES, self.is_judged_N) | {"weight_version": ~self.is_judged_N}
        of_causes: dict[str, Figures] = {cause: figures_of(self.parts[cause][tokens[cause]]) for cause in CAUSES}
        return {**of_causes, "total": figures_of(self.total_N)}

    def to_json(self) -> JsonObject:
        """Return all figures, and the settings that they were taken at."""
        return {
            "largest": self.largest,
            "advice": advice(self),
            "causes": {name: figures._asdict() for name, figures in self.figures().items()},
            "sampler": {"dtype": self.sampler_dtype, **self.sampler._asdict()},
            "learner": {"dtype": self.learner_dtype, **self.learner._asdict()},
            "policy_version": self.policy_version,
            "other_versions": list(self.other_versions),
        }


def figures_of(part_N: np.ndarray) -> Figures:
    """Return the figures of the parts of some tokens; all 0 without tokens.

    >>> figures_of(np.array([0.0, -0.25, 0.25, 0.0]))
    Figures(tokens=4, mean=0.125, p95=0.25, max=0.25)
    """
    if len(part_N) == 0:
        return Figures(0, 0.0, 0.0, 0.0)
    size_N = np.abs(part_N)
    return Figures(len(part_N), float(size_N.mean()), float(np.quantile(size_N, 0.95)), float(size_N.max()))


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

    Without a config: groups of 4 at temperature 1, with at most half of the context each for prompt and response.

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


def split(
    policy: Policy,
    episodes: Sequence[Spoken],
    learner: RolloutConfig | None = None,
    *,
    sampler_dtype: DType | None = None,
    policy_version: int | None = None,
) -> Split:
    """Split the difference of sampled and learner's log-probs by cause.

    The learner counts at the temperature and among the kept ids of the rollout `learner`; None: as the episodes were
    sampled. Without a `sampler_dtype` it is the learner's; without a version, the weights are of the newest that tokens
    have.

    Raises:
        EpisodeLogError: there is no episode, or they were sampled under several limits.
    """
    limits = {each.rollout.model_dump_json() for each in episodes}
    if len(limits) != 1:
        raise EpisodeLogError(
            f"expected episodes that were sampled under the same limits, found {len(limits)} of them in "
            f"{len(episodes)} episodes; name the logs of one run"
        )
    rollout = episodes[0].rollout
    learner = learner or rollout
    sampled_N, version_N, is_kept_N = (
        np.concatenate([np.asarray(column, np.float64)[each.ledger.loss_mask > 0] for each, column in columns])
        for columns in zip(*map(_columns, episodes), strict=True)
    )
    newest = int(version_N.max()) if policy_version is None else policy_version
    is_judged_N = version_N == newest
    knows_kept = bool(is_kept_N.all())
    # Log-probs of greedy tokens are those at temperature 1.
    recorded = Setting(rollout.temperature or 1.0, rollout.top_k is not None)
    counted = Setting(learner.temperature or 1.0, learner.top_k is not None and knows_kept)

    @functools.cache
    def score(setting: Setting) -> np.ndarray:
        return learner_logprobs(policy, episodes, setting.temperature, rollout.top_k if setting.among_kept else None)

    sampler = recorded if knows_kept or not recorded.among_kept else None
    if sampler is not None and is_judged_N.any():
        others = itertools.product((counted.temperature, 1.0), {False, knows_kept and recorded.among_kept})
        settings = [recorded, *(Setting(*other) for other in others), recorded._replace(among_kept=False)]
        sampler = _best_fit(settings, lambda setting: float(np.abs(sampled_N - score(setting))[is_judged_N].mean()))
    # If the kept ids are lost, all that is not the temperature's part is theirs.
    own_dtype, told_dtype = policy.model_config.dtype, sampler_dtype or policy.model_config.dtype
    residual: Cause = "kept_ids" if sampler is None else "program" if told_dtype == own_dtype else "dtype"
    first = sampler or recorded._replace(among_kept=False)
    second = first._replace(temperature=counted.temperature)
    rungs = [sampled_N, score(first), score(second), score(counted)]
    parts: dict[Cause, np.ndarray] = {cause: np.zeros(len(sampled_N)) for cause in CAUSES}
    causes: tuple[Cause, ...] = (residual, "temperature", "kept_ids")
    for cause, before_N, after_N in zip(causes, rungs[:-1], rungs[1:], strict=True):
        parts[cause] += np.where(is_judged_N, before_N - after_N, 0.0)
    total_N = sampled_N - rungs[-1]
    parts["weight_version"] = np.where(is_judged_N, 0.0, total_N)
    versions = tuple(sorted(set(version_N[~is_judged_N].astype(int).tolist())))
    named = sampler or recorded
    return Split(total_N, parts, is_judged_N, newest, versions, named, told_dtype, counted, own_dtype)


def _columns(each: Spoken) -> tuple[tuple[Spoken, Sequence[float]], ...]:
    ledger = each.ledger
    return (each, ledger.sampled_logprobs), (each, ledger.policy_versions), (each, [n > 0 for n in ledger.kept_counts])


def _best_fit(settings: Sequence[Setting], miss_of: Callable[[Setting], float]) -> Setting:
    """Return the setting that fits best; the first one, unless another fits so much better that it is believed."""
    best = min(settings, key=miss_of)
    is_first = miss_of(settings[0]) <= max(_MUST_FIT_BETTER * miss_of(best), _NOTHING)
    return settings[0] if is_first else best


def advice(found: Split) -> str:
    """Return the largest cause, in words, and the remedy."""
    sampler, learner, total = found.sampler, found.learner, found.figures()["total"]
    if total.mean < _NOTHING:
        return f"sampler and learner agree to {total.mean:.1e} nats: nothing to do"
    among = {True: "among the kept ids", False: "among all ids"}
    rounds = "compute in float32, or correct the rest in an objective of your own (docs/variants.md)"
    is_rounding = found.figures()["program"].p95 <= tolerance_of(found.learner_dtype)
    return {
        "weight_version": f"{(~found.is_judged_N).sum()} of {len(found.total_N)} tokens were sampled with weights of "
        f"version {', '.join(map(str, found.other_versions))}, not {found.policy_version}, and cannot be judged: name "
        "the policy that sampled them, or the log of its own step; within a run lower max_staleness",
        "program": f"decoder and learner sum in another order, which {found.learner_dtype} shows: {rounds}"
        if is_rounding
        else "nothing here reproduces the sampled log-probs: other weights under this version, another temperature "
        "than in the log, or a sampler that is not this decoder; name the policy that sampled the episodes",
        "dtype": f"the sampler computes in {found.sampler_dtype}, the learner in {found.learner_dtype}: use one "
        "model_overrides.dtype for both, or correct the rest in an objective of your own (docs/variants.md)",
        "temperature": f"the sampled log-probs are those at temperature {sampler.temperature:.4g}, and the learner "
        f"divides by {learner.temperature:.4g}: set rollout.temperature to the sampler's, or have the sampler tell the "
        "log-probs of the distribution that it draws from",
        "kept_ids": f"sampled log-probs are {among[sampler.among_kept]}, the learner's {among[learner.among_kept]}: "
        "record the kept ids when tokens are sampled, with the run's top_k",
    }[found.largest]
