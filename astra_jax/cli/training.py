"""`astra sft` and `astra rl`: the two training stages."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterator
from functools import partial

import jax

from astra_jax.cli.surroundings import in_sandbox, sandbox_for
from astra_jax.config import load_config
from astra_jax.mesh.hosts import (
    are_hosts_announced,
    ending_with_other_hosts,
    enter_on_all_hosts,
    host_folder,
    join_hosts,
    require_shared_folder,
)
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.stage import run_sft
from astra_jax.training.run_record import RL_RUN, SFT_RUN
from astra_jax.training.wandb_run import require_wandb
from synthesis.record_io import packages_of
from synthesis.run.destination import Result, require_destination
from synthesis.run.lock import run_lock


@contextlib.contextmanager
def _started(config: SFTConfig | RLConfig, kind: Result) -> Iterator[contextlib.ExitStack]:
    """Join the other hosts and hold the lock of the run's folder; yield a stack of contexts that ends with the run."""
    require_destination(config.out, kind)
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    with ending_with_other_hosts(), contextlib.ExitStack() as stack:
        require_shared_folder(config.out)
        # Each host locks its own folder, so a second run is refused on every host.
        stack.enter_context(run_lock(host_folder(config.out) / ".lock"))
        yield stack


def sft(options: argparse.Namespace) -> None:
    """Run SFT, or the rest of it."""
    config = load_config(SFTConfig, options.config, options.overrides)
    with _started(config, SFT_RUN):
        figures = run_sft(config)
    _print_figures(options, config, figures)


def rl(options: argparse.Namespace) -> None:
    """Run RL, or the rest of it, with a sandbox."""
    config = load_config(RLConfig, options.config, options.overrides)
    with _started(config, RL_RUN) as stack:
        require_wandb(config.wandb if jax.process_index() == 0 else None)  # before a sandbox is looked for
        held_out = [] if config.held_out is None else [config.held_out.environments]
        packages = packages_of(config.environments, *held_out)
        url = enter_on_all_hosts(stack, sandbox_for(options), "a sandbox")
        figures = asyncio.run(in_sandbox(url, packages, partial(run_rl, config)))
    _print_figures(options, config, figures)


def _print_figures(options: argparse.Namespace, config: SFTConfig | RLConfig, figures: dict) -> None:
    """Print the final figures of a run, and whether it was complete before this command."""
    shown = {name: value for name, value in figures.items() if name != "already_complete"}
    complete = "already complete, " if shown != figures else ""
    stage = options.command
    print(json.dumps({"stage": stage, **figures}) if options.json else f"{stage}: {complete}{shown} -> {config.out}")
