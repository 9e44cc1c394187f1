"""Multi-turn GRPO as ASTRA has it: strictly online, no KL term, no entropy term, batch-level token mean.

One step, read from top to bottom in `train_rl`:

    fill     roll out groups, tools in the sandbox, until n of them have reward variance   (batch_filling)
    learn    group-relative advantages, clipped ratio, one AdamW update                    (rl_step)

Where the paper is silent: group size, ε, δ and temperature are config keys; a waiting group is used for at most
`max_staleness` updates after its own, with the sampled log-probs as the denominator of the ratio.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from pydantic import BaseModel, ConfigDict, Field, field_validator

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import Checkpoints, TrainState, load_params
from astra_jax.checkpoints.policy import Policy, read_policy, save_policy
from astra_jax.checkpoints.provenance import training_stage
from astra_jax.config import ConfigError
from astra_jax.episodes.f1_reward import episode_reward
from astra_jax.episodes.figures import episode_figures
from astra_jax.episodes.log import episode_to_json, step_episodes_path, write_episodes
from astra_jax.episodes.rollout import Group, RolloutConfig, RolloutEngine, Start
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.mesh.placement import (
    in_force,
    init_optimizer_state,
    place_batch,
    require_prompts,
    require_rows,
    rollout_mesh,
    training_mesh,
)
from astra_jax.model.config import ModelConfig, ModelOverrides
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import Params, bind
from astra_jax.model.sharding import MeshConfig, param_shardings, require_divisible
from astra_jax.rl.advantage import group_advantages
from astra_jax.rl.batch_filling import BatchFiller, BatchFillingStalled, ScoredGroup
from astra_jax.rl.grpo_loss import grpo_token_losses
from astra_jax.training.metrics import MetricsLog, Progress, last_metric
from astra_jax.training.not_finite import NotFiniteSteps
from astra_jax.training.optimizer import OptimizerConfig, make_optimizer, update_if_finite
from astra_jax.training.run_record import RL_RUN, RunRecord, digest_of_policy, digest_of_records, open_run
from astra_jax.training.termination import Terminated, Termination
from astra_jax.training.wandb_run import WandbConfig, require_wandb
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource, require_records
from synthesis.records import Environment, SimilarityBand

_MAY_CHANGE = (
    "mesh",
    "checkpoint_every_steps",
    "log_episodes_every_steps",
    "keep_weights",
    "max_not_finite_steps",
    "logprob_chunk_tokens",
    "model_overrides.remat",
    "wandb",
)
"""Keys of the config that may change when a run resumes: where it works, in what memory, and what it keeps."""
_SOURCES = (
    "astra_jax/chat/format.py",
    "astra_jax/training/optimizer.py",
    "astra_jax/rl/advantage.py",
    "astra_jax/rl/batch_filling.py",
    "astra_jax/episodes/f1_reward.py",
    "astra_jax/rl/grpo_loss.py",
    "astra_jax/episodes/tool_mixing.py",
    "astra_jax/rl/train.py",
    "astra_jax/episodes/episode.py",
    "synthesis/records.py",
)
"""Files that decide what is learnt: episodes, what solves a sub-task, reward, filling, advantage, loss and step."""


class SampledRollout(RolloutConfig):
    """Episodes to learn from: sampled, not greedy."""

    @field_validator("temperature")
    @classmethod
    def _is_above_0(cls, temperature: float) -> float:
        if temperature == 0:
            raise ValueError("expected above 0: greedy episodes of a group are all alike, so none is learnt from")
        return temperature


class RLConfig(BaseModel):
    """What to learn from, for how long, and where to write."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    steps: int = Field(gt=0)
    out: Path
    init: Path
    """The policy folder to start from."""
    model_overrides: ModelOverrides = ModelOverrides()
    """What changes of its model: numerics, remat, rope scaling."""
    environments: Path
    """A record directory of environments."""
    rollout: SampledRollout
    optimizer: OptimizerConfig
    group_size: int = Field(gt=1)
    """G: episodes per environment."""
    groups_per_step: int = Field(gt=0)
    """n: valid groups per update."""
    groups_per_rollout: int = Field(gt=0)
    """Environments rolled out at once."""
    min_reward_std: float = Field(default=0.01, ge=0)
    """δ: groups whose rewards vary less are degenerate."""
    max_staleness: int = Field(default=1, ge=0)
    max_rollouts_per_step: int = Field(default=16, gt=0)
    """Rollouts after which a batch that is still not full stops the run."""
    clip_epsilon: float = Field(default=0.2, gt=0)
    max_irrelevant_per_band: dict[SimilarityBand, int] = {}
    """K: distractors of each similarity band that an episode is shown."""
    length_bucket_tokens: int = Field(default=128, gt=0)
    """Training rows are padded to multiples of this."""
    logprob_chunk_tokens: int = Field(default=256, gt=0)
    mesh: MeshConfig | None = None
    """Which devices of this host learn and roll out; without it, the first alone."""
    max_not_finite_steps: int = Field(default=5, gt=0)
    """Steps in a row whose loss or gradient is not finite, and that are therefore not applied, before the run stops."""
    checkpoint_every_steps: int = Field(default=20, gt=0)
    log_episodes_every_steps: int = Field(default=10, gt=0)
    """How often, and at the last step, the first episode of every group is written to `episodes/`, with token ids."""
    keep_weights: int | None = Field(default=None, gt=0)
    """Checkpoints whose weights are kept; without it all, for analysis. Optimiser state is kept for the newest two."""
    wandb: WandbConfig | None = None
    """Where Weights & Biases shows the run, live; without it, nowhere. Needs the extra `astra-jax[wandb]`."""


class RLBatch(NamedTuple):
    """Right-padded episodes, shifted: column t holds what predicts, and what is known of, the token after token t."""

    tokens_BT: jax.Array
    targets_BT: jax.Array
    loss_mask_BT: jax.Array
    """1 where the target was sampled by the policy."""
    segment_ids_BT: jax.Array
    positions_BT: jax.Array
    """Where each token stands in its episode, also when `context_parallel.balance` has moved it."""
    sampled_logprobs_BT: jax.Array
    advantages_BT: jax.Array


def rl_loss(
    params: Params, model: ModelConfig, batch: RLBatch, *, temperature: float, clip_epsilon: float, chunk_tokens: int
) -> tuple[jax.Array, jax.Array]:
    """Mean GRPO loss per sampled token over the whole batch, and the policy log-probs [B, T]."""
    qwen3 = bind(model, params)
    hidden_BTD = qwen3(batch.tokens_BT, batch.positions_BT, batch.segment_ids_BT) / temperature
    logprobs_BT = token_logprobs(hidden_BTD, qwen3.output_embedding, batch.targets_BT, chunk_tokens=chunk_tokens)
    losses_BT = grpo_token_losses(
        logprobs_BT, batch.sampled_logprobs_BT, batch.advantages_BT, clip_epsilon=clip_epsilon
    )
    return (losses_BT * batch.loss_mask_BT).sum() / batch.loss_mask_BT.sum(), logprobs_BT


@functools.partial(
    jax.jit,
    static_argnames=("model", "optimizer", "steps", "temperature", "clip_epsilon", "chunk_tokens"),
    donate_argnames=("params", "optimizer_state"),
)
def rl_step(
    params: Params,
    optimizer_state: optax.OptState,
    batch: RLBatch,
    *,
    model: ModelConfig,
    optimizer: OptimizerConfig,
    steps: int,
    temperature: float,
    clip_epsilon: float,
    chunk_tokens: int,
) -> tuple[Params, optax.OptState, dict[str, jax.Array]]:
    """One optimiser update on one batch, if its loss and gradients are finite."""
    loss_and_logprobs = functools.partial(
        rl_loss, model=model, batch=batch, temperature=temperature, clip_epsilon=clip_epsilon, chunk_tokens=chunk_tokens
    )
    (loss, logprobs_BT), gradients = jax.value_and_grad(loss_and_logprobs, has_aux=True)(params)
    params, optimizer_state, metrics = update_if_finite(
        make_optimizer(optimizer, steps), loss, gradients, params, optimizer_state
    )
    difference_BT = jnp.abs(logprobs_BT - batch.sampled_logprobs_BT) * batch.loss_mask_BT
    metrics["mean_abs_logprob_difference"] = difference_BT.sum() / batch.loss_mask_BT.sum()
    return params, optimizer_state, metrics


async def train_rl(config: RLConfig, sandbox: AsyncSandboxClient) -> dict[str, Any]:
    """Run RL to its last step, from the newest whole checkpoint of `out` if there is one; return the closing figures.

    A run that is finished is not run again: its closing figures are returned, with `already_complete`.

    Raises:
        BatchFillingStalled: the policy's groups no longer vary (everything solved, or nothing).
        DestinationRefused: `out` is something else than a run, or one that was begun with another config.
        NotFinite: `max_not_finite_steps` steps in a row could not be applied; the state is saved.
        SandboxUnavailable: the sandbox is down; the run resumes from its last checkpoint.
        Terminated: after SIGTERM or Ctrl-C, when the state is saved.
        ValueError: the mesh does not fit the devices, the model or the batch; there are several hosts; or W&B is
            wanted and cannot be used.
    """
    require_one_host()
    require_wandb(config.wandb)
    mesh = training_mesh(config.mesh)
    require_rows(config.groups_per_step * config.group_size, 1, mesh)
    require_prompts(config.groups_per_rollout, mesh)
    model, tokenizer = read_policy(config.init, overrides=config.model_overrides)
    require_chat_template(config.init, tokenizer)
    require_divisible(model, mesh)
    run = _open_run(config)
    if run.figures is not None:
        return run.figures
    decoding_mesh = rollout_mesh(mesh)
    engine = RolloutEngine(model, tokenizer, sandbox, config.rollout)
    environments = RecordSource(config.environments, Environment)
    require_records(environments)
    optimizer = make_optimizer(config.optimizer, config.steps)
    progress = Progress("rl", config.steps, ("reward", "recall", "precision", "seconds"))
    not_finite = NotFiniteSteps("rl", config.out, most_in_a_row=config.max_not_finite_steps)
    run.begin()
    with (
        Termination() as termination,
        Checkpoints(config.out / "checkpoints", model, keep_weights=config.keep_weights) as checkpoints,
    ):
        state = checkpoints.restore_latest(optimizer, mesh=mesh) or _first_state(config, optimizer, mesh)
        params, optimizer_state = state.params, state.optimizer_state
        submitted = state.data_position["groups_submitted"]
        starts = _starts(config, environments, first=submitted)
        filler: BatchFiller[Group] = BatchFiller(config.groups_per_step, config.min_reward_std, config.max_staleness)
        with MetricsLog(
            config.out / "metrics.jsonl",
            first_step=state.step,
            wandb=config.wandb,
            hyperparameters=config.model_dump(mode="json"),
        ) as log:
            for step in range(state.step, config.steps):
                started = time.monotonic()
                filler.drop_stale(step)
                with in_force(decoding_mesh):
                    decoding_params = jax.device_put(params, param_shardings(params, decoding_mesh))
                    rolled_out = await _fill(
                        filler, engine, decoding_params, starts, config, step=step, submitted=submitted
                    )
                submitted += len(rolled_out)
                batch_groups = filler.take_batch()
                batch = make_rl_batch(
                    batch_groups, length_bucket_tokens=config.length_bucket_tokens, pad_id=tokenizer.pad_id
                )
                rollout_seconds = time.monotonic() - started
                with in_force(mesh):
                    params, optimizer_state, metrics = rl_step(
                        params,
                        optimizer_state,
                        place_batch(batch, len(batch.tokens_BT), mesh),
                        model=model,
                        optimizer=config.optimizer,
                        steps=config.steps,
                        temperature=config.rollout.temperature,
                        clip_epsilon=config.clip_epsilon,
                        chunk_tokens=config.logprob_chunk_tokens,
                    )
                seen = rolled_out or batch_groups
                figures = episode_figures(
                    [episode for group in seen for episode in group.group],
                    [reward for group in seen for reward in group.rewards],
                )
                reward = figures.reward
                line = {
                    **{name: float(value) for name, value in metrics.items()},
                    "applied": int(metrics["applied"]),
                    "reward": reward,
                    "f1": figures.f1,
                    "recall": figures.recall,
                    "precision": figures.precision,
                    "answer_accuracy": figures.answer_accuracy,
                    "tool_calls_per_episode": figures.tool_calls_per_episode,
                    "tokens_per_turn": figures.tokens_per_turn,
                    "irrelevant_call_share": figures.irrelevant_call_share,
                    "groups_valid": filler.num_valid,
                    "groups_degenerate": filler.num_degenerate,
                    "groups_stale": filler.num_stale,
                    "groups_waiting": len(filler.buffer),
                    "rollout_seconds": round(rollout_seconds, 3),
                    "seconds": round(time.monotonic() - started, 3),
                }
                if step % config.log_episodes_every_steps == 0 or step + 1 == config.steps:
                    write_step_episodes(config.out, step, seen, tokenizer)
                log.write(step, line)
                progress.report(step, line)
                not_finite.note(step, line, batch)
                is_last, is_ended = step + 1 == config.steps, termination.asked() or not_finite.are_too_many
                if is_last or is_ended or (step + 1) % config.checkpoint_every_steps == 0:
                    position = {"groups_submitted": submitted}
                    checkpoints.save(TrainState(step + 1, params, optimizer_state, state.rng, position))
                if not_finite.are_too_many or (is_ended and not is_last):
                    checkpoints.wait()
                    if not_finite.are_too_many:
                        raise not_finite.error()
                    raise Terminated("rl", step + 1, termination.signum)
    stage = training_stage("RL", config, (config.environments,))
    save_policy(Policy(model, params, tokenizer), config.out / "policy", trained_from=config.init, stage=stage)
    reward_at_last = last_metric(config.out / "metrics.jsonl", "reward")
    return run.finish({"steps": config.steps, "reward": reward_at_last, "groups_submitted": submitted})


def _open_run(config: RLConfig) -> RunRecord:
    """The record of the run in `out`; refused if it was begun with something else."""
    return open_run(
        RL_RUN,
        config,
        config.out,
        product="policy/params.whole.json",
        contents={
            "environments": digest_of_records(config.environments),
            "init": digest_of_policy(config.init),
        },
        may_change=_MAY_CHANGE,
        sources=_SOURCES,
    )


def require_one_host() -> None:
    """Raises ConfigError where this process is one of several hosts of a job."""
    if jax.process_count() > 1:
        raise ConfigError(f"expected one host, found {jax.process_count()}: episodes are not rolled out over hosts yet")


def _first_state(config: RLConfig, optimizer: optax.GradientTransformation, mesh: Mesh | None) -> TrainState:
    """The state of a run that starts: the weights of `init`."""
    _, params = load_params(config.init, mesh=mesh, overrides=config.model_overrides)
    optimizer_state = init_optimizer_state(optimizer, params, mesh)
    return TrainState(0, params, optimizer_state, jax.random.key(config.seed), {"groups_submitted": 0})


async def _fill(
    filler: BatchFiller[Group],
    engine: RolloutEngine,
    params: Params,
    starts: Iterator[Start],
    config: RLConfig,
    *,
    step: int,
    submitted: int,
) -> list[ScoredGroup[Group]]:
    """Roll groups out until the filler holds a batch; return all of them, `submitted` came before.

    Raises:
        BatchFillingStalled: after `max_rollouts_per_step` rollouts there are still too few whose rewards vary.
    """
    rolled_out: list[ScoredGroup[Group]] = []
    while not filler.is_full:
        rollouts = len(rolled_out) // config.groups_per_rollout
        if rollouts == config.max_rollouts_per_step:
            raise BatchFillingStalled(
                f"expected {config.groups_per_step} groups with reward variance at step {step}, found "
                f"{len(filler.buffer)} after {rollouts} rollouts; the policy solves everything or nothing: change "
                "the environments, the temperature or min_reward_std, or stop here"
            )
        groups = await engine.run(
            params,
            [next(starts) for _ in range(config.groups_per_rollout)],
            group_size=config.group_size,
            seed=_rollout_seed(config.seed, submitted + len(rolled_out)),
            policy_version=step,
        )
        scored = [ScoredGroup(group, tuple(map(episode_reward, group)), step) for group in groups]
        filler.add(scored)
        rolled_out += scored
    return rolled_out


def make_rl_batch(groups: Sequence[ScoredGroup[Group]], *, length_bucket_tokens: int, pad_id: int) -> RLBatch:
    """Lay the episodes of valid groups out as padded rows with their advantages on the tokens that were sampled."""
    episodes = [episode for group in groups for episode in group.group]
    advantages = np.concatenate([group_advantages(group.rewards) for group in groups])
    longest = max(len(episode.ledger) for episode in episodes)
    columns = -(-longest // length_bucket_tokens) * length_bucket_tokens + 1
    shape = (len(episodes), columns)
    tokens = np.full(shape, pad_id, np.int32)
    loss_mask, logprobs = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    segment_ids = np.zeros(shape, np.int32)
    for row, episode in enumerate(episodes):
        count = len(episode.ledger)
        tokens[row, :count], loss_mask[row, :count] = episode.ledger.ids, episode.ledger.loss_mask
        logprobs[row, :count], segment_ids[row, :count] = episode.ledger.sampled_logprobs, 1
    return RLBatch(
        tokens_BT=jnp.asarray(tokens[:, :-1]),
        targets_BT=jnp.asarray(tokens[:, 1:]),
        loss_mask_BT=jnp.asarray(loss_mask[:, 1:]),
        segment_ids_BT=jnp.asarray(segment_ids[:, :-1]),
        positions_BT=jnp.asarray(np.broadcast_to(np.arange(columns - 1, dtype=np.int32), (len(episodes), columns - 1))),
        sampled_logprobs_BT=jnp.asarray(logprobs[:, 1:]),
        advantages_BT=jnp.asarray(loss_mask[:, 1:] * advantages[:, None]),
    )


def write_step_episodes(out: Path, step: int, groups: Sequence[ScoredGroup[Group]], tokenizer: Tokenizer) -> None:
    """Write the first episode of each group of a step; a resumed run writes the same file again."""
    lines = [
        episode_to_json(group.group[0], tokenizer, policy=f"step {step}", reward=group.rewards[0]) for group in groups
    ]
    write_episodes(step_episodes_path(out, step), lines)


def _starts(config: RLConfig, environments: Sequence[Environment], *, first: int) -> Iterator[Start]:
    """Environments in seeded random order, epoch after epoch, each with freshly mixed tools; from the first-th on."""
    index = first
    while True:
        epoch, place = divmod(index, len(environments))
        order = list(range(len(environments)))
        random.Random(f"{config.seed}/{epoch}").shuffle(order)
        environment = environments[order[place]]
        seed = config.seed + epoch
        yield Start(environment, mix_tools(environment, max_per_band=config.max_irrelevant_per_band, seed=seed))
        index += 1


def _rollout_seed(seed: int, groups_submitted: int) -> int:
    return random.Random(f"{seed}/rollout/{groups_submitted}").getrandbits(31)
