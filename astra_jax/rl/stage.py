"""The whole RL stage: it checks its parts, opens the run, trains by `train_rl`, and writes the policy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.checkpoints.provenance import training_stage
from astra_jax.mesh.layouts import rollout_mesh
from astra_jax.mesh.placement import require_rows
from astra_jax.metrics_file import last_metric, metric_totals
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.lora import merged
from astra_jax.model.sharding import require_divisible
from astra_jax.rl.config import RLConfig, open_rl_run
from astra_jax.rl.held_out import BestPolicy, HeldOut
from astra_jax.rl.metrics import SHOWN
from astra_jax.rl.rollouts import Rollouts
from astra_jax.rl.solved_rates import SOLVED_RATES_FILE
from astra_jax.rl.train import train_rl
from astra_jax.training.run import TrainingRun, checked_parts
from sandbox.client import AsyncSandboxClient


async def run_rl(config: RLConfig, sandbox: AsyncSandboxClient) -> dict[str, Any]:
    """Run RL to its last step, from the newest whole checkpoint of `out` if there is one; return the closing figures.

    Where there are several hosts, each calls this with the same config, on one file system, and with a sandbox of its
    own or the same one. A finished run is not run again: its closing figures are returned, with `already_complete`.

    Beside the policy after the last step lies `solved_rates.jsonl`, and with `held_out` the best policy, as `best`.

    Raises:
        ConfigError, CheckpointError, TokenizerError, DestinationRefused, RecordDirectoryError, PromptTooLong: before
            anything is written.
        BatchFillingStalled: none of the policy's groups varies any more (everything solved, or nothing).
        SandboxUnavailable, HostFailed: the run resumes from its last checkpoint.
        NotFinite, Terminated: the state is saved.
    """
    parts = checked_parts(config)
    require_layout(config, parts.model_config, parts.mesh)
    record = open_rl_run(config)
    if record.figures is not None:
        return record.figures
    # `Rollouts` and `HeldOut` may refuse limits and data: they come before the run leaves a trace in its folder.
    decode_mesh = rollout_mesh(config.rollout_mesh, parts.mesh)
    rollouts = Rollouts(config, parts, sandbox, decode_mesh)
    held_out = None
    if config.held_out is not None:
        stage = training_stage("RL", config, (config.environments,))

        def save(folder: Path, params: Params) -> None:
            policy = Policy(*merged(parts.model_config, params), parts.tokenizer)
            save_policy(policy, folder, trained_from=config.init, stage=stage)

        held_out = HeldOut(config, config.held_out, parts, sandbox, decode_mesh, BestPolicy(config.out, save))
    record.begin()
    with TrainingRun("rl", config, parts, num_steps=config.steps, shown=SHOWN) as run:
        state = run.restore(lambda: load_params(config.init, mesh=parts.mesh, overrides=config.model_overrides)[1])
        rollouts.go_on_from(state.data_position)
        state = await train_rl(config, parts, state, rollouts, run, held_out)
    if jax.process_index() == 0:
        rollouts.solved_rates.write(config.out / SOLVED_RATES_FILE)
    best = None if held_out is None else held_out.best_policy.best
    figures = {
        "steps": config.steps,
        "reward": last_metric(run.metrics, "reward"),
        **{f"groups_{cause}": count for cause, count in dataclasses.asdict(rollouts.filler.counts).items() if count},
        **metric_totals(run.metrics, "_errors_"),
        **({} if best is None else {"best_step": best.step, "best_held_out_f1": best.f1}),
    }
    return run.finish(state, record, data=(config.environments,), figures=figures)


def require_layout(config: RLConfig, model_config: ModelConfig, mesh: Mesh | None) -> None:
    """Raise ConfigError unless the batches, weights and episodes of a run fit its mesh and the model's context."""
    require_rows(config.rows_per_update, config.accumulation, mesh)
    require_divisible(model_config, mesh)
    require_divisible(model_config, rollout_mesh(config.rollout_mesh, mesh))
    model_config.require_context(config.rollout.max_prompt_tokens + config.rollout.max_response_tokens)
