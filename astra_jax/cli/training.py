"""`astra sft` and `astra rl`: the two training stages."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, add_sandbox, config_command
from astra_jax.cli.surroundings import ending_judge_for, required_packages, sandbox_for

if TYPE_CHECKING:
    from astra_jax.rl.config import RLConfig
    from astra_jax.sft.config import SFTConfig
    from synthesis.run.destination import Result


def add_training(commands: Commands) -> None:
    """Add the two commands."""
    config_command(commands, "sft", "supervised fine-tuning on trajectories and demonstrations", _sft)
    add_sandbox(config_command(commands, "rl", "multi-turn GRPO with the sandbox", _rl))


@contextlib.contextmanager
def _started(config: SFTConfig | RLConfig, kind: Result) -> Iterator[contextlib.ExitStack]:
    """Join the other hosts and hold the lock of the run's folder; yield a stack of contexts that ends with the run."""
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.mesh.hosts import (
        are_hosts_announced,
        ending_with_other_hosts,
        host_folder,
        join_hosts,
        require_shared_folder,
    )
    from synthesis.run.destination import require_destination
    from synthesis.run.lock import run_lock

    require_destination(config.out, kind)
    keep_compiled_programs()
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    with ending_with_other_hosts(), contextlib.ExitStack() as stack:
        require_shared_folder(config.out)
        # Each host locks its own folder, so a second run is refused on every host.
        stack.enter_context(run_lock(host_folder(config.out) / ".lock"))
        yield stack


def _sft(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from astra_jax.sft.config import SFTConfig
    from astra_jax.sft.stage import run_sft
    from astra_jax.training.run_record import SFT_RUN

    config = load_config(SFTConfig, options.config, options.overrides)
    with _started(config, SFT_RUN):
        figures = run_sft(config)
    _print_figures(options, config, figures)


def _rl(options: argparse.Namespace) -> None:
    import jax

    from astra_jax.config import load_config
    from astra_jax.mesh.hosts import enter_on_all_hosts, host_folder
    from astra_jax.rl.config import RLConfig
    from astra_jax.rl.stage import run_rl
    from astra_jax.training.run_record import RL_RUN
    from astra_jax.training.wandb_run import require_wandb
    from sandbox.client import AsyncSandboxClient
    from synthesis.record_io import packages_of

    config = load_config(RLConfig, options.config, options.overrides)

    async def run(url: str) -> dict:
        replies_of = host_folder(config.out)  # each host keeps the replies that its judge got
        async with AsyncSandboxClient(url) as sandbox, ending_judge_for(config.ending_judge, replies_of) as judge:
            await required_packages(sandbox, packages)
            return await run_rl(config, sandbox, judge)

    with _started(config, RL_RUN) as stack:
        require_wandb(config.wandb if jax.process_index() == 0 else None)  # before a sandbox is looked for
        held_out = [] if config.held_out is None else [config.held_out.environments]
        packages = packages_of(config.environments, *held_out)
        url = enter_on_all_hosts(stack, sandbox_for(options), "a sandbox")
        figures = asyncio.run(run(url))
    _print_figures(options, config, figures)


def _print_figures(options: argparse.Namespace, config: SFTConfig | RLConfig, figures: dict) -> None:
    """Print the final figures of a run, and whether it was complete before this command."""
    shown = {name: value for name, value in figures.items() if name != "already_complete"}
    complete = "already complete, " if shown != figures else ""
    stage = options.command
    print(json.dumps({"stage": stage, **figures}) if options.json else f"{stage}: {complete}{shown} -> {config.out}")
