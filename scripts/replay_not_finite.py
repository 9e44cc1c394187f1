"""Compute the loss of an RL step that was not applied once more, and say where it stops being finite: one JSON line.

    python scripts/replay_not_finite.py configs/tiny_rl.toml 123 [out=runs/mine/rl …]

Takes the config that the run was started with and reads `OUT/not_finite/step-000123.npz`, the batch as it was learnt
from; of several hosts, the rows of the first. The weights are those of the run's newest checkpoint up to that step, or
`init`; `updates_missing` says how many steps lie between, and 0 that they are the step's own. Mini-batches are computed
as one, with the step's first weights. Printed besides: the loss, the arrays whose gradient is not finite, and the first
tokens whose loss is not, each with its row, its column and what the loss is made of.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.config import load_config
from astra_jax.model.config import ModelConfig, Params
from astra_jax.rl.batch import RLBatch
from astra_jax.rl.config import RLConfig
from astra_jax.rl.grpo_loss import Objective
from astra_jax.rl.train import objective_of, rl_loss, token_losses, weights_of

TOKENS_SHOWN = 8


def kept_batch(path: Path) -> RLBatch:
    """Read what a run wrote down of a step that was not applied."""
    with np.load(path) as kept:
        return RLBatch(**{name: kept[name] for name in RLBatch._fields if name in kept.files})


def looked_at(params: Params, batch: RLBatch, *, model_config: ModelConfig, objective: Objective) -> dict[str, Any]:
    """Return what the loss of a batch comes to, and where it is not finite."""

    @jax.jit
    def compute(params: Params) -> tuple[Any, Params]:
        def loss_of(params: Params) -> tuple[jax.Array, jax.Array]:
            return rl_loss(params, batch, model_config=model_config, objective=objective)

        return jax.value_and_grad(loss_of, has_aux=True)(params)

    (loss, logprobs_BT), gradients = compute(params)
    losses_BT = np.asarray(token_losses(logprobs_BT, batch, objective))
    is_bad_BT = ~np.isfinite(losses_BT) & (np.asarray(weights_of(batch)) > 0)
    of_token = {
        "token": batch.targets_BT,
        "logprob": logprobs_BT,
        "sampled_logprob": batch.sampled_logprobs_BT,
        "advantage": batch.advantages_BT,
        "loss": losses_BT,
    }
    return {
        "loss": told(float(loss)),
        "gradients_not_finite": [
            jax.tree_util.keystr(path)
            for path, leaf in jax.tree_util.tree_leaves_with_path(gradients)
            if not np.isfinite(np.asarray(leaf)).all()
        ],
        "tokens_not_finite": int(is_bad_BT.sum()),
        "tokens": [
            {"row": row, "column": column} | {name: told(x_BT[row, column].item()) for name, x_BT in of_token.items()}
            for row, column in np.argwhere(is_bad_BT)[:TOKENS_SHOWN].tolist()
        ],
    }


def told(value: float) -> float | str:
    """Return a number as JSON has it, where it has it."""
    return value if math.isfinite(value) else str(value)


def main() -> None:
    """Look at one step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("step", type=int)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as the run had them")
    options = parser.parse_args()
    config = load_config(RLConfig, options.config, options.overrides)
    steps = [int(each.name) for each in (config.out / "checkpoints").glob("[0-9]*") if (each / "params").is_dir()]
    done = max((step for step in steps if step <= options.step), default=0)
    weights = config.out / "checkpoints" / f"{done:08d}" if done else config.init
    model_config, params = load_params(weights, overrides=config.model_overrides)
    path = config.out / "not_finite" / f"step-{options.step:06d}.npz"
    if not path.is_file():
        parser.error(f"expected the batch of a step that was not applied, found no {path}: name another step or out=")
    batch = kept_batch(path)
    found = looked_at(params, batch, model_config=model_config, objective=objective_of(config))
    print(json.dumps({"step": options.step, "updates_missing": options.step - done, **found}))


if __name__ == "__main__":
    main()
