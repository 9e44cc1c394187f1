"""The configuration of an RL run, and what the run is known by."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from astra_jax.engine.interface import MOST_KEPT_IDS
from astra_jax.episodes.rewards import RewardName
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.sharding import MeshConfig
from astra_jax.rl.batch_filling import StaleGroups
from astra_jax.training.config import MAY_CHANGE, TrainingConfig
from astra_jax.training.run_record import RL_RUN, digest_of_policy, digest_of_records, open_run
from synthesis.records import SimilarityBand
from synthesis.run.fingerprint import digest_of_files
from synthesis.run.manifest import RunManifest


class SampledRollout(RolloutConfig):
    """Episodes to learn from: sampled, not greedy, and truncated to so few ids that all of them are kept."""

    @field_validator("temperature")
    @classmethod
    def _is_above_0(cls, temperature: float) -> float:
        if temperature == 0:
            raise ValueError("expected above 0: greedy episodes of a group are all alike, so none is learnt from")
        return temperature

    @model_validator(mode="after")
    def _keeps_few_ids(self) -> SampledRollout:
        truncates = self.top_k is not None or self.top_p < 1 or self.min_p > 0
        if truncates and (self.top_k is None or self.top_k > MOST_KEPT_IDS):
            raise ValueError(
                f"expected top_k of at most {MOST_KEPT_IDS} beside top_p and min_p: the ids that truncation keeps are "
                "recorded for the loss, which renormalises over them"
            )
        return self


class HeldOutConfig(BaseModel):
    """On what, and how often, the policy is evaluated while it learns; what is learnt does not depend on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    environments: Path
    """A record directory of environments, none of which is learnt from."""
    every_steps: int = Field(gt=0)
    """Updates between two evaluations; the policy after the last update is evaluated in any case."""
    num_environments: int | None = Field(default=None, gt=0)
    """How many of them, drawn by the seed; none: all."""
    temperature: float = Field(default=0.0, ge=0)
    """Of its episodes, one in each environment; at 0 they are greedy. All other limits are those of `rollout`."""
    environments_at_once: int = Field(default=16, gt=0)

    @property
    def most_at_once(self) -> int:
        """Episodes at once, if there are so many environments that can be rolled out."""
        return min(self.environments_at_once, self.num_environments or self.environments_at_once)


class CurriculumConfig(BaseModel):
    """Which solved rates an environment must have to be rolled out in every epoch; outside it is in every other one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_solved_rate: float = Field(default=0.2, ge=0, le=1)
    """Of all its episodes since the run began, the least share that solved everything."""
    max_solved_rate: float = Field(default=0.8, ge=0, le=1)
    """The largest."""

    @model_validator(mode="after")
    def _is_a_band(self) -> CurriculumConfig:
        if self.min_solved_rate > self.max_solved_rate:
            raise ValueError(
                f"expected min_solved_rate of at most max_solved_rate = {self.max_solved_rate:g}, found "
                f"{self.min_solved_rate:g}"
            )
        return self


class RLConfig(TrainingConfig):
    """What to learn from, for how long, and where to write.

    Where the paper is silent, group size, ε, δ, temperature and K are keys. A group may wait for its update; it is
    learnt from with the sampled log-probs as the denominator of the ratio.
    """

    init: Path
    """The policy folder to start from."""
    steps: int = Field(gt=0)
    reward: RewardName = "f1"
    """What an episode earns; the paper's is F1."""
    environments: Path
    """A record directory of environments."""
    ending_judge: Path | None = None
    """A TOML file as the `[teacher]` of a synthesis: its role `judges` says whether messages refuse or ask back, where
    an environment expects that; without one a lexicon does. The same seed gives the same episodes while its replies are
    kept, which is beside `out`."""
    rollout: SampledRollout
    group_size: int = Field(gt=1)
    """G: episodes per environment."""
    groups_per_step: int = Field(gt=0)
    """n: valid groups per update, fewer only after `max_rollouts_per_step` rollouts."""
    groups_per_rollout: int = Field(gt=0)
    """Environments rolled out at once."""
    min_reward_std: float = Field(default=0.01, ge=0)
    """δ: groups whose rewards vary less are degenerate."""
    max_staleness: int = Field(default=1, ge=0)
    """Updates after its own that a waiting group may be used for; later ones find it too old."""
    stale_groups: StaleGroups = "drop"
    """What becomes of groups that would be too old: `drop` lets go of them; `pace` rolls out no more groups at once
    than are learnt from in time, so that none is; `wait` learns from them all the same, however old."""
    max_rollouts_per_step: int = Field(default=16, gt=0)
    """Rollouts after which an update learns from the groups that are there, even if they do not fill a batch; the run
    stops where there are none."""
    clip_epsilon: float = Field(default=0.2, gt=0)
    """ε: how far the ratio of a token may move its loss."""
    clip_epsilon_high: float | None = Field(default=None, gt=0)
    """ε of ratios above 1, where it is another: "clip higher" of DAPO."""
    divide_advantages_by_std: bool = True
    """Whether advantages are in units of their group's Std(R), as GRPO has them; Dr. GRPO does without."""
    sequence_mean: bool = False
    """Whether every episode weighs the same in the loss, as in the first GRPO, instead of every token."""
    mini_batches: int = Field(default=1, gt=0)
    """Optimiser updates per step, each on as many of its groups; with 1, as in the paper, RL is strictly on-policy."""
    importance_cap: float | None = Field(default=None, gt=0)
    """C: truncated importance weights correct what sampler and learner differ by, up to this; None: none do."""
    irrelevant_per_band: dict[SimilarityBand, int] = Field(default_factory=dict)
    """K: the most distractors of each similarity band that an episode is shown."""
    length_bucket_tokens: int = Field(default=128, gt=0)
    """Training rows are padded to multiples of this."""
    curriculum: CurriculumConfig | None = None
    """Which environments are passed over for being solved too often or too seldom; none: no one is."""
    held_out: HeldOutConfig | None = None
    """What the policy is evaluated on while it learns, by which `OUT/best` is chosen; none: nothing."""
    episodes_per_row: int = Field(default=1, gt=0)
    """Episodes of a group that share a training row, and in it their prompt, which is then computed once for them."""
    accumulation: int = Field(default=1, gt=0)
    """Parts that a batch is worked through in, one after the other: the same update in less memory."""
    packing: bool = False
    """Several episodes, or bundles of them that share a prompt, in one row as long as the longest, apart by segments;
    `accumulation` parts that are left empty cost nothing."""
    rollout_mesh: MeshConfig | None = None
    """Where episodes are sampled, over the devices of `mesh`; without it all of its axes but `tensor` are `data`."""
    optimizer_waits_on_host: bool = False
    """Whether the optimiser's state lies in the host's memory while episodes are rolled out."""
    checkpoint_every_steps: int = Field(default=20, gt=0)
    log_episodes_every_steps: int = Field(default=10, gt=0)
    """How often, and at the last step, the first episode of every group is written to `episodes/`, with token ids."""

    @model_validator(mode="after")
    def _rows_hold_groups(self) -> RLConfig:
        if self.group_size % self.episodes_per_row:
            raise ValueError(
                f"expected episodes_per_row that divides group_size = {self.group_size}, found {self.episodes_per_row}"
            )
        return self

    @model_validator(mode="after")
    def _mini_batches_hold_groups(self) -> RLConfig:
        if self.groups_per_step % self.mini_batches:
            raise ValueError(
                f"expected mini_batches that divide groups_per_step = {self.groups_per_step}, found {self.mini_batches}"
            )
        return self

    @property
    def rows_per_update(self) -> int:
        """Training rows of an update."""
        return self.groups_per_step // self.mini_batches * self.group_size // self.episodes_per_row

    @property
    def has_start_logprobs(self) -> bool:
        """Whether a step begins with a pass for its policy's log-probs: with one update they are the update's own."""
        return self.importance_cap is not None and self.mini_batches > 1

    @property
    def num_updates(self) -> int:
        """Optimiser updates of the whole run, over which the learning rate is scheduled."""
        return self.steps * self.mini_batches


def open_rl_run(config: RLConfig) -> RunManifest:
    """Return the record of the run in `out`, and refuse one that was begun with something else.

    Raises:
        DestinationRefused: `out` is something else than a run, or one of another config, data or code.
        RecordDirectoryError: the record directory is missing or damaged.
    """
    held_out = config.held_out
    return open_run(
        RL_RUN,
        config,
        config.out,
        product="policy/params.whole.json",
        contents={
            "environments": digest_of_records(config.environments),
            "init": digest_of_policy(config.init),
            **({} if config.ending_judge is None else {"ending_judge": digest_of_files([config.ending_judge])}),
            **({} if held_out is None else {"held_out.environments": digest_of_records(held_out.environments)}),
        },
        may_change=(
            *(*MAY_CHANGE, "accumulation", "episodes_per_row", "packing", "rollout_mesh"),
            *("optimizer_waits_on_host", "log_episodes_every_steps"),
        ),
        stage="astra_jax.rl.stage",
    )
