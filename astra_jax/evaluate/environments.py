"""Held-out evaluation: the episodes of a policy in environments that it has never seen, and their figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from pydantic import Field

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import Frozen
from astra_jax.episodes.figures import call_errors, episode_figures, service_errors
from astra_jax.episodes.log import episode_to_json, write_episodes
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import EvaluationRollout, Group, RolloutEngine, Start, none_can_run
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.evaluate.conduct import figures_of, summed
from astra_jax.evaluate.intervals import clustered_interval
from astra_jax.evaluate.slices import SLICED, EvaluatedEnvironment, slices_of
from astra_jax.model.config import DType
from astra_jax.model.qwen3 import Params
from astra_jax.training.run_record import EVALUATION, digest_of_policy, open_run
from synthesis.record_io import digest_of_records
from synthesis.records import Environment, JsonObject, SimilarityBand
from synthesis.run.destination import write_whole
from synthesis.run.manifest import RunManifest
from synthesis.run.places import Place


class EvaluationConfig(Frozen):
    """The config of an evaluation of a policy on environments."""

    seed: int = Field(ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    policy: Place
    """Policy folder to evaluate."""
    environments: Place
    """Record directory of environments that the policy has not been trained on."""
    out: Place
    """Folder of figures and episodes."""
    rollout: EvaluationRollout
    """Limits and sampling of an episode; `rollout.temperature=0` evaluates greedily."""
    irrelevant_per_band: dict[SimilarityBand, int] = Field(default_factory=dict)
    """K: the most distractors of each similarity band that an episode is shown."""
    episodes_per_environment: int = Field(default=1, gt=0)
    """Episodes in each environment."""
    environments_at_once: int = Field(default=16, gt=0)
    """Environments rolled out side by side; memory is reserved for this number, even if there are fewer."""
    log_episodes_per_environment: int = Field(default=1, ge=0)
    """Episodes of each environment that are written to `episodes.jsonl`, with their token ids."""


def open_evaluation(
    config: EvaluationConfig, *, baseline: str | None = None, dtype: DType | None = None
) -> RunManifest:
    """Return the record of the evaluation in `out`, of a policy as it is stored or in another `dtype`.

    Nothing is written there yet.

    Raises:
        DestinationRefused: `out` is something else than an evaluation, or one of another config, data or code.
        RecordDirectoryError: the record directory is missing or damaged.
    """
    return open_run(
        EVALUATION,
        config,
        config.out,
        product="figures.json",
        contents={
            "policy": digest_of_policy(config.policy) if baseline is None else f"baseline {baseline}",
            **({} if dtype is None else {"dtype": dtype}),
            "environments": digest_of_records(config.environments),
        },
        may_change=("log_episodes_per_environment",),
        stage="astra_jax.evaluate.environments",
    )


@dataclass(frozen=True)
class Evaluation:
    """The episodes of a policy in environments, and their figures."""

    figures: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    """95 % bootstrap intervals over environments of the figures in `SLICED`."""
    groups: list[Group]
    """The episodes, by environment."""
    errors: Counter[str]
    """Errors of all calls by their origin and kind."""
    stop_reasons: Counter[str]
    """Stop reasons of all episodes."""
    num_left_out: int
    """Environments whose prompt exceeds `max_prompt_tokens`, or that have nothing to solve: they are no part of the
    figures. They are the same for every policy that has the same tokenizer."""

    def to_json(self) -> JsonObject:
        """Return the figures, `NAME_interval` beside those that have one, errors, and how much they were taken from."""
        return {
            **self.figures,
            **{f"{name}_interval": list(interval) for name, interval in self.intervals.items()},
            "environments": len(self.groups),
            "episodes": sum(map(len, self.groups)),
            "left_out": self.num_left_out,
            **self.errors,
        }

    def in_full(self, environments: Sequence[EvaluatedEnvironment], *, seed: int) -> JsonObject:
        """Return the same, how the episodes went in `environments`, every mean with its interval, and the slices."""
        return {
            **figures_of([environment.terms for environment in environments], seed=seed),
            **self.to_json(),
            "stop_reasons": dict(sorted(self.stop_reasons.items())),
            "slices": slices_of(environments, seed=seed),
        }


async def evaluate_environments(
    engine: RolloutEngine,
    params: Params,
    environments: Sequence[Environment],
    config: EvaluationConfig,
    *,
    seed: int,
    say: Callable[[str], None] = lambda line: None,
) -> Evaluation:
    """Run every environment whose prompt fits and that has something to solve.

    `say` is given a line after each `environments_at_once`.

    Raises:
        PromptTooLong: there is no such environment.
        SandboxUnavailable: the sandbox is down; there are no figures then.
    """
    # Mixed by the seed alone, so that policies which are compared are shown the same tools in the same order.
    starts = [
        Start(environment, mix_tools(environment, irrelevant_per_band=config.irrelevant_per_band, seed=seed))
        for environment in environments
    ]
    fitting = [start for start in starts if engine.can_run(start)]
    if not fitting:
        raise none_can_run(config.rollout, len(environments))
    groups: list[Group] = []
    errors_before = Counter(engine.sandbox.service_errors)
    for first in range(0, len(fitting), config.environments_at_once):
        chosen = fitting[first : first + config.environments_at_once]
        # Another seed for each lot: with one for all, a slot would draw the same random numbers in every lot.
        groups += await engine.run(
            params,
            chosen,
            group_size=config.episodes_per_environment,
            seed=seed + first,
            room_for=config.environments_at_once,  # the last lot, and a smaller set, compile nothing of their own
        )
        reward = fmean(episode_reward(episode) for group in groups for episode in group)
        say(f"evaluate: {first + len(chosen)} of {len(fitting)} environments, mean reward {reward:.3f} so far")
    errors = service_errors(engine.sandbox.service_errors, errors_before)
    return sum_up(groups, seed=seed, num_left_out=len(starts) - len(fitting), errors=errors)


def sum_up(
    groups: Sequence[Group], *, seed: int, num_left_out: int = 0, errors: Mapping[str, int] | None = None
) -> Evaluation:
    """Sum up episodes, given by environment; `seed` draws the bootstrap, `errors` are the service's.

    Raises:
        ValueError: there are none.
    """
    episodes = [episode for group in groups for episode in group]
    terms = [summed(group) for group in groups]
    return Evaluation(
        figures=episode_figures(episodes, [episode_reward(episode) for episode in episodes]),
        intervals={
            name: clustered_interval(*zip(*(of_group[name] for of_group in terms), strict=True), seed=seed)
            for name in SLICED
        },
        groups=list(groups),
        errors=call_errors(episodes) + Counter(errors or {}),
        stop_reasons=Counter(str(episode.stop_reason) for episode in episodes),
        num_left_out=num_left_out,
    )


def logged_episodes(
    groups: Sequence[Group], tokenizer: Tokenizer, *, policy: str, split: str, per_environment: int = 1
) -> list[dict[str, Any]]:
    """Return the lines of the episode log: the first episodes of every environment."""
    return [
        episode_to_json(episode, tokenizer, policy=policy, reward=episode_reward(episode), split=split)
        for group in groups
        for episode in group[:per_environment]
    ]


def write_evaluation(
    record: RunManifest,
    figures: JsonObject,
    environments: Sequence[EvaluatedEnvironment],
    episodes: Sequence[dict[str, Any]],
) -> None:
    """Write `episodes.jsonl`, `environments.jsonl` and `figures.json`, the last of which says that all is there.

    Raises:
        OSError: the disk is full or not writable.
    """
    record.begin()
    write_episodes(record.out / "episodes.jsonl", episodes)
    write_whole(record.out / "environments.jsonl", "".join(each.model_dump_json() + "\n" for each in environments))
    write_whole(record.out / "figures.json", json.dumps(figures, indent=2) + "\n")
    record.finish(figures)
