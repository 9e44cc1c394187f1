"""The explanation of an RL step that was not applied: its loss once more, and the tokens whose loss is not finite."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.errors import AstraError
from astra_jax.model.config import ModelConfig, Params
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import objective_of, rl_loss

_TOKENS_SHOWN = 8


def explain_step(config: RLConfig, step: int) -> dict[str, Any]:
    """Compute the loss of a batch in `OUT/not_finite/` again; return it as JSON, with the tokens that are not finite.

    The weights are those of the newest checkpoint up to that step, or of `init`; `updates_missing` is the number of
    steps in between. With several hosts, the batch is that of the first.

    Raises:
        AstraError: the step was applied, or not reached.
    """
    path = config.out / "not_finite" / f"step-{step:06d}.npz"
    if not path.is_file():
        there = ", ".join(sorted(each.name for each in path.parent.glob("step-*.npz"))) or "none"
        raise AstraError(f"{path} does not exist; name a step that was not applied (there: {there}), or out=DIR")
    saved = [int(each.name) for each in (config.out / "checkpoints").glob("[0-9]*") if (each / "params").is_dir()]
    done = max((number for number in saved if number <= step), default=0)
    weights = config.out / "checkpoints" / f"{done:08d}" if done else config.init
    model_config, params = load_params(weights, overrides=config.model_overrides)
    with np.load(path) as kept:
        batch = RLBatch(**{name: kept[name] for name in RLBatch._fields if name in kept.files})
    found = _explained(params, batch, model_config, objective_of(config))
    return {"step": step, "updates_missing": step - done, **found}


def _explained(params: Params, batch: RLBatch, model_config: ModelConfig, objective: Objective) -> dict[str, Any]:
    loss_of = functools.partial(rl_loss, batch=batch, model_config=model_config, objective=objective)
    (loss, logprobs_BT), gradients = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    losses_BT = np.asarray(objective.losses(logprobs_BT, batch._asdict()))
    is_bad_BT = ~np.isfinite(losses_BT) & (np.asarray(batch.loss_mask_BT) > 0)
    of_token = {
        "token": batch.targets_BT,
        "logprob": logprobs_BT,
        "sampled_logprob": batch.sampled_logprobs_BT,
        "advantage": batch.advantages_BT,
        "loss": losses_BT,
    }
    return {
        "loss": _as_json(float(loss)),
        "gradients_not_finite": [
            jax.tree_util.keystr(path)
            for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
            if not np.isfinite(np.asarray(leaf)).all()
        ],
        "tokens_not_finite": int(is_bad_BT.sum()),
        "tokens": [
            {"row": row, "column": column}
            | {name: _as_json(x_BT[row, column].item()) for name, x_BT in of_token.items()}
            for row, column in np.argwhere(is_bad_BT)[:_TOKENS_SHOWN].tolist()
        ],
    }


def _as_json(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
