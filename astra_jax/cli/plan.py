"""`astra plan`: memory, FLOPs and roofline of a pod that is not there."""

from __future__ import annotations

import argparse
import json
import os

from astra_jax.cli.arguments import Commands, config_command


def add_plan(commands: Commands) -> None:
    """Add the command."""
    plan = config_command(commands, "plan", "memory, FLOPs and roofline of a run on a pod that is not there", _plan)
    plan.description = (
        "Compiles every step of `astra sft CONFIG` or `astra rl CONFIG` for a pod; exit 1 where one does not fit."
    )
    plan.set_defaults(patience_seconds=0.5)  # it holds nothing, and compilers hear no signal
    plan.add_argument("--topology", required=True, metavar="T", help="e.g. v5p:4x4x4, v5e:16x16, v6e:8x8")


def _plan(options: argparse.Namespace) -> int | None:
    from astra_jax.plan import PLAN_ENVIRONMENT

    os.environ.update(PLAN_ENVIRONMENT)  # before JAX is imported
    from astra_jax.plan.plan import load_run_config, plan

    planned = plan(load_run_config(options.config, options.overrides), options.topology)
    print(json.dumps(planned.to_json()) if options.json else planned.render())
    return None if planned.fits else 1
