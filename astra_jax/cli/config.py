"""`astra config`: every key of a kind of config, with its default and one line of explanation."""

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
            print(f"{name}{default}")
            print(textwrap.fill(key.explanation, width, initial_indent="    ", subsequent_indent="    "))
        print()


def config_types(kind: str) -> dict[str, type[BaseModel]]:
    """Return the classes of a kind of config, each by the command that reads it."""
    from astra_jax.evaluate.environments import EvaluationConfig
    from astra_jax.rl.config import RLConfig
    from astra_jax.sft.config import SFTConfig
    from synthesis.environments.config import EnvironmentsConfig
    from synthesis.trajectories.config import TrajectoriesConfig

    of_benchmarks = {f"evaluate {name}": benchmark.config_type for name, benchmark in benchmark_kinds().items()}
    by_kind: dict[str, dict[str, type[BaseModel]]] = {
        "rl": {"rl": RLConfig},
        "sft": {"sft": SFTConfig},
        "synthesis": {"synthesize trajectories": TrajectoriesConfig, "synthesize environments": EnvironmentsConfig},
        "evaluation": {"evaluate environments": EvaluationConfig, **of_benchmarks},
    }
    return by_kind[kind]
