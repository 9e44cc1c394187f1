"""`astra plan`: memory, FLOPs and roofline of a pod that is not there."""

from __future__ import annotations

import argparse
import json
import os

from astra_jax.plan import PLAN_ENVIRONMENT


def plan_run(options: argparse.Namespace) -> int | None:
    """Print the plan of a run; return 1 if a step does not fit."""
    os.environ.update(PLAN_ENVIRONMENT)  # before JAX is imported
    from astra_jax.plan.plan import load_run_config, plan

    planned = plan(load_run_config(options.config, options.overrides), options.topology)
    print(json.dumps(planned.to_json()) if options.json else planned.render())
    return None if planned.fits else 1
