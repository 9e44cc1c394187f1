"""The configuration of an RL run, and the record of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationInfo, field_validator, model_validator

from astra_jax.config import Frozen
from astra_jax.episodes.rewards import reward_named
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.sharding import MeshConfig
from astra_jax.named_functions import own_modules
from astra_jax.rl.grpo_loss import objective_named
from astra_jax.rl.solved_rates import curriculum_named
from astra_jax.training.certified import require_certified
from astra_jax.training.config import MAY_CHANGE, TrainingConfig
from astra_jax.training.optimizer import may_be_longer
from astra_jax.training.run_record import RL_RUN, digest_of_policy, open_run
from synthesis.record_io import digest_of_records
from synthesis.records import SimilarityBand
from synthesis.run.manifest import RunManifest
from synthesis.run.places import Place


class SampledRollout(RolloutConfig):
    """Episodes to learn from: sampled from the whole distribution, and not greedy.

    Decided: docs/decisions/rl.md, “RL samples from the whole distribution”.
    """

    @field_validator("temperature")
    @classmethod
    def _is_above_0(cls, temperature: float) -> float:
        if temperature == 0:
            raise ValueError("expected above 0: greedy episodes of a group are all alike, so none is learnt from")
        return temperature


class HeldOutConfig(Frozen):
    """Evaluation of the policy on held-out environments while it learns; learning does not depend on it."""

    environments: Place
    """Record directory of environments, none of which is learnt from."""
    every_steps: int = Field(gt=0)
    """Updates between two evaluations; the policy after the last update is evaluated in any case."""
    num_environments: int | None = Field(default=None, gt=0)
    """Number of environments, drawn by the seed; without it all of the directory."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the one episode in each environment; 0 is greedy. All other limits are those of
    `rollout`."""
    environments_at_once: int = Field(default=16, gt=0)
    """Environments that are rolled out side by side; more need more memory."""

    @property
    def most_at_once(self) -> int:
        """The largest number of episodes that are rolled out at the same time."""
        return min(self.environments_at_once, self.num_environments or self.environments_at_once)


_NAMED: Final[Mapping[str, Callable[[str, Path | None], object]]] = {
    "reward": reward_named,
    "objective": objective_named,
    "curriculum": curriculum_named,
}
"""Keys that name a function, each with the look-up of its functions."""


class RLConfig(TrainingConfig):
    """An RL run: the data, the method's parameters, and the folder to write to.

    Where the paper is silent, group size, ε, δ, temperature and K are keys. A group may wait for its update; it is
    learnt from with the sampled log-probs as the denominator of the ratio.
    """

    init: Place
    """Policy folder to start from."""
    steps: int = Field(gt=0)
    """Optimiser updates of the run."""
    reward: str = "f1"
    """Reward of an episode: a built-in one, of which f1 is the paper's, or `MODULE:FUNCTION` of your own file."""
    environments: Place
    """Record directory of environments."""
    rollout: SampledRollout
    """Limits and sampling of an episode."""
    group_size: int = Field(gt=1)
    """G: episodes per environment."""
    groups_per_step: int = Field(gt=0)
    """n: valid groups per update, fewer only after `max_rollouts_per_step` rollouts."""
    groups_per_rollout: int = Field(gt=0)
    """Environments rolled out at once. Rows are for those of a step, at least for a third; other episodes wait."""
    min_reward_std: float = Field(default=0.01, ge=0)
    """δ: groups whose rewards vary less are degenerate."""
    max_staleness: int = Field(default=1, ge=0)
    """Updates after its own for which a waiting group is kept; then it is dropped."""
    max_rollouts_per_step: int = Field(default=16, gt=0)
    """Rollouts after which an update learns from the groups that are there, even if they do not fill a batch; the run
    stops if there are none."""
    objective: str = "grpo"
    """Loss of each token: `grpo`, the paper's, or `MODULE:FUNCTION` of your own file."""
    clip_epsilon: float = Field(default=0.2, gt=0)
    """ε: distance from 1 at which the ratio of a token is clipped."""
    irrelevant_per_band: dict[SimilarityBand, int] = Field(default_factory=dict)
    """K: the most distractors of each similarity band (`high`, `medium`, `low`) that an episode is shown."""
    length_bucket_tokens: int = Field(default=128, gt=0)
    """Tokens to a multiple of which training rows are padded."""
    curriculum: str | None = None
    """Function `MODULE:FUNCTION` of your own file that says which environments are rolled out in an epoch; without it
    all are."""
    held_out: HeldOutConfig | None = None
    """Evaluation while the policy learns, by which `OUT/best` is chosen; without it no policy is evaluated."""
    episodes_per_row: int = Field(default=1, gt=0)
    """Episodes of a group that share a training row, and in it their prompt, which is then computed once for them."""
    accumulation: int = Field(default=1, gt=0)
    """Parts that a batch is worked through in, one after the other: the same update in less memory."""
    packing: bool = False
    """Whether a training row holds as many episodes as fit, apart by segments; parts of `accumulation` that stay empty
    cost nothing."""
    rollout_mesh: MeshConfig | None = None
    """Mesh that episodes are sampled on, over the devices of `mesh`; without it all axes of `mesh` but `tensor` become
    `data`."""
    optimizer_waits_on_host: bool = False
    """Whether the optimiser's state lies in the host's memory while episodes are rolled out."""
    max_attack_f1: float | None = Field(default=None, ge=0, le=1)
    """Highest attack F1 in the certificate of `environments` (`astra records attack`); without it they need none."""
    checkpoint_every_steps: int = Field(default=20, gt=0)
    """Updates between two checkpoints."""
    log_episodes_every_steps: int = Field(default=10, gt=0)
    """Updates between two logs in `episodes/`: the first episode of every group, with token ids; the last step is
    always logged."""

    @field_validator(*_NAMED)
    @classmethod
    def _names_a_function(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.field_name is not None:
            _NAMED[info.field_name](name, (info.context or {}).get("folder"))
        return name

    @model_validator(mode="after")
    def _rows_hold_groups(self) -> RLConfig:
        if self.group_size % self.episodes_per_row:
            raise ValueError(
                f"expected episodes_per_row that divides group_size = {self.group_size}, found {self.episodes_per_row}"
            )
        return self

    @property
    def groups_with_rows(self) -> int:
        """Groups whose episodes sample at once; the others take the rows of episodes that have ended.

        A rollout lasts as long as its longest episode, and most rows would wait for it. With three times as many
        episodes it is hardly longer (`scripts/bench_schedule.py pod`).
        """
        return max(self.groups_per_step, -(-self.groups_per_rollout // 3))

    @property
    def rows_per_update(self) -> int:
        """Number of training rows of an update."""
        return self.groups_per_step * self.group_size // self.episodes_per_row


def open_rl_run(config: RLConfig) -> RunManifest:
    """Return the record of the run in `out`; refuse a run that was begun with another config, data or code."""
    held_out = config.held_out
    if config.max_attack_f1 is not None:
        require_certified(config.environments, config.max_attack_f1, config.irrelevant_per_band)
    return open_run(
        RL_RUN,
        config,
        config.out,
        contents={
            "environments": digest_of_records(config.environments),
            "init": digest_of_policy(config.init),
            **({} if held_out is None else {"held_out.environments": digest_of_records(held_out.environments)}),
        },
        may_change=(
            *(*MAY_CHANGE, "accumulation", "episodes_per_row", "packing", "rollout_mesh"),
            *("optimizer_waits_on_host", "log_episodes_every_steps", "max_attack_f1"),
        ),
        may_grow=may_be_longer(config.optimizer),
        stage="astra_jax.rl.stage",
        own_modules=own_modules(config.reward, config.objective, config.curriculum),
    )
