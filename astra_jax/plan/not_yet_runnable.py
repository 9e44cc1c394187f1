"""Which steps of a plan no run can have today, and why: the plan compiles more than `astra rl` knows how to run.

Each reason goes when rollouts or RL have learnt what it names.

Decided: docs/decisions/plan.md, “The plan says what no run can have”.
"""

from __future__ import annotations

from astra_jax.plan.config import PlanConfig

PAPER_UPDATE_ROWS = 256
"""Episodes that one RL update of the paper learns from."""


def not_yet_runnable(config: PlanConfig) -> dict[str, str]:
    """Return the steps of a plan that no run can have, each with the reason.

    >>> from astra_jax.plan.config import StepShape
    >>> not_yet_runnable(PlanConfig(model="qwen3-0.6b", mesh={}, rl_learner=StepShape(sequence_tokens=8192)))
    {'rl_learner': 'RL has no accumulation: an update learns from these 1 rows at once, the paper learns from 256'}
    """
    found = {}
    mesh = config.mesh
    if config.rl_learner is not None:
        rows = config.rl_learner.sequences_per_shard * mesh.data * mesh.fsdp
        if rows < PAPER_UPDATE_ROWS:
            found["rl_learner"] = (
                f"RL has no accumulation: an update learns from these {rows} rows at once, the paper learns from "
                f"{PAPER_UPDATE_ROWS}"
            )
    for name, shape in (("prefill", config.prefill), ("decode", config.decode)):
        if shape is not None and (reasons := _rollout_reasons(config)):
            found[name] = "; ".join(reasons)
    return found


def _rollout_reasons(config: PlanConfig) -> list[str]:
    mesh, planned, model = config.mesh, config.rollout_mesh, config.resolved_model()
    # As in `placement.rollout_mesh`.
    used = (mesh.data, mesh.fsdp * mesh.context, 1, mesh.tensor)
    reasons = []
    if planned.shape != used:
        reasons.append(
            f"RL rolls out on its learner's mesh, data {used[0]} × fsdp {used[1]} × tensor {used[3]}, not on data "
            f"{planned.data} × fsdp {planned.fsdp} × tensor {planned.tensor}"
        )
    if model.param_dtype != model.dtype:
        reasons.append(f"RL rolls out with its learner's {model.param_dtype} weights, not with {model.dtype} ones")
    return reasons
