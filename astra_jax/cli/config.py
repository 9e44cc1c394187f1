"""`astra config`: every key of a kind of config, with its default, type, bounds and one line of explanation."""

from __future__ import annotations

import argparse
import shutil
import textwrap

from pydantic import BaseModel

from astra_jax.cli.benchmarks import benchmark_kinds
from astra_jax.config_keys import keys_of

KINDS = ("rl", "sft", "synthesis", "evaluation")


def print_keys(options: argparse.Namespace) -> None:
    """Print the keys of a kind of config."""
    width = max(shutil.get_terminal_size().columns, 60)
    for command, config_type in config_types(options.kind).items():
        print(f"# astra {command} CONFIG")
        for key in keys_of(config_type):
            name = f"[{key.path}]" if key.is_table else key.path
            default = "" if key.is_table and key.default not in ("required", "none") else f" = {key.default}"
            print(f"{name}{default}{f'    # {key.kind}' if key.kind else ''}{f', {key.bounds}' if key.bounds else ''}")
            print(textwrap.fill(key.explanation, width, initial_indent="    ", subsequent_indent="    "))
        print()


def config_types(kind: str) -> dict[str, type[BaseModel]]:
    """Return the classes of a kind of config, each by the command that reads it."""
    if kind == "rl":
        from astra_jax.rl.config import RLConfig

        return {"rl": RLConfig}
    if kind == "sft":
        from astra_jax.sft.config import SFTConfig

        return {"sft": SFTConfig}
    if kind == "synthesis":
        from synthesis.environments.config import EnvironmentsConfig
        from synthesis.trajectories.config import TrajectoriesConfig

        return {"synthesize trajectories": TrajectoriesConfig, "synthesize environments": EnvironmentsConfig}
    from astra_jax.evaluate.environments import EvaluationConfig

    of_benchmarks = {f"evaluate {name}": kind.config_type for name, kind in benchmark_kinds().items()}
    return {"evaluate environments": EvaluationConfig, **of_benchmarks}
