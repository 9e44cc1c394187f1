"""`astra sft` and `astra rl`: the two training stages."""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

from astra_jax.cli.arguments import Commands, add_sandbox, config_command
from astra_jax.cli.surroundings import sandbox_for


def add_training(commands: Commands) -> None:
    """Add the two commands."""
    config_command(commands, "sft", "supervised fine-tuning on trajectories and gold episodes", _sft)
    add_sandbox(config_command(commands, "rl", "multi-turn GRPO with the sandbox", _rl))


def _sft(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.mesh.hosts import are_hosts_announced, host_folder, join_hosts, require_shared_folder
    from astra_jax.sft.config import SFTConfig
    from astra_jax.sft.stage import run_sft
    from astra_jax.training.run_lock import run_lock
    from astra_jax.training.run_record import SFT_RUN
    from synthesis.destination import require_destination

    config = load_config(SFTConfig, options.config, options.overrides)
    require_destination(config.out, SFT_RUN)
    keep_compiled_programs()
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    require_shared_folder(config.out)
    with run_lock(host_folder(config.out) / ".lock"):  # on every host, so that every host of a second run is refused
        figures = run_sft(config)
    _print_figures(options, "sft", figures, config.out)


def _rl(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.mesh.hosts import are_hosts_announced, join_hosts
    from astra_jax.rl.config import RLConfig
    from astra_jax.rl.stage import require_one_host, run_rl
    from astra_jax.training.run_lock import run_lock
    from astra_jax.training.run_record import RL_RUN
    from astra_jax.training.wandb_run import require_wandb
    from sandbox.client import AsyncSandboxClient
    from synthesis.destination import require_destination

    config = load_config(RLConfig, options.config, options.overrides)
    require_destination(config.out, RL_RUN)
    keep_compiled_programs()
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    require_one_host()
    require_wandb(config.wandb)  # before a sandbox is looked for

    async def run(url: str) -> dict:
        async with AsyncSandboxClient(url) as sandbox:
            return await run_rl(config, sandbox)

    with run_lock(config.out / ".lock"), sandbox_for(options) as url:
        figures = asyncio.run(run(url))
    _print_figures(options, "rl", figures, config.out)


def _print_figures(options: argparse.Namespace, stage: str, figures: dict, out: Path) -> None:
    """End a run with its closing figures; those of an earlier command are said to be that."""
    shown = {name: value for name, value in figures.items() if name != "already_complete"}
    complete = "already complete, " if shown != figures else ""
    print(json.dumps({"stage": stage, **figures}) if options.json else f"{stage}: {complete}{shown} -> {out}")
