"""`astra synthesize tools|trajectories|environments`: training data."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, add_sandbox, config_command
from astra_jax.cli.surroundings import lock_beside, sandbox_for, teacher_for, with_usage

if TYPE_CHECKING:
    from synthesis.cost import CostEstimate
    from synthesis.stage import StageReport
    from synthesis.teacher.config import OpenAITeacherConfig

_GOES_ON = "; finished work is kept, and the same command goes on from there"


def add_synthesize(commands: Commands) -> None:
    """Add the three commands."""
    parser = commands.add_parser("synthesize", help="make training data")
    synthesize = parser.add_subparsers(dest="track", required=True, metavar="TRACK")
    tools = synthesize.add_parser("tools", help="read and normalise tool documents only")
    tools.add_argument("sources", nargs="+", type=Path, metavar="SRC", help="files or folders, in any known format")
    tools.add_argument("--out", type=Path, required=True)
    tools.add_argument("--json", action="store_true", help="end with one machine-readable line")
    tools.set_defaults(run=_tools)
    text = "conversations with tools, scored on seven axes"
    trajectories = config_command(synthesize, "trajectories", text, _trajectories)
    text = "questions whose sub-answers are proven by running tools"
    environments = config_command(synthesize, "environments", text, _environments)
    add_sandbox(environments)
    for track in (trajectories, environments):
        track.set_defaults(after_signal=_GOES_ON)
        track.add_argument(
            "--estimate",
            action="store_true",
            help="only say how many calls and tokens a language model would be asked for, and what they cost: a small "
            "run with the embedded teacher, scaled up; its replies are short, retries and repairs are not counted",
        )


def _tools(options: argparse.Namespace) -> None:
    from synthesis.tools.ingestion import TOOL_DOCUMENTS
    from synthesis.trajectories.pipeline import synthesize_tools

    with lock_beside(options.out, TOOL_DOCUMENTS, options.sources):
        report = asyncio.run(synthesize_tools(options.sources, options.out))
    print(report.json_line() if options.json else report.closing_line())


def _trajectories(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.trajectories.pipeline import TRAJECTORIES, TrajectoriesConfig, synthesize_trajectories

    config = load_config(TrajectoriesConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.cost import estimate_trajectories

        _print_estimate(options, "trajectories", asyncio.run(estimate_trajectories(config)), config.teacher)
        return

    async def run() -> StageReport:
        async with teacher_for(config.teacher, config.out) as teacher:
            return with_usage(await synthesize_trajectories(config, teacher), teacher)

    with lock_beside(config.out, TRAJECTORIES, config.tool_documents):
        report = asyncio.run(run())
    print(report.json_line() if options.json else report.closing_line())


def _environments(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.environments.pipeline import ENVIRONMENTS, EnvironmentsConfig, synthesize_environments

    config = load_config(EnvironmentsConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.cost import estimate_environments

        with sandbox_for(options) as url:
            estimate = asyncio.run(estimate_environments(config, url))
            _print_estimate(options, "environments", estimate, config.teacher)
        return

    async def run(url: str) -> StageReport:
        async with teacher_for(config.teacher, config.out) as teacher:
            return with_usage(await synthesize_environments(config, teacher, url), teacher)

    sources = (*config.knowledge, *config.disjoint_from)
    with lock_beside(config.out, ENVIRONMENTS, sources), sandbox_for(options) as url:
        report = asyncio.run(run(url))
    print(report.json_line() if options.json else report.closing_line())


def _print_estimate(
    options: argparse.Namespace, track: str, estimate: CostEstimate, prices: OpenAITeacherConfig | None
) -> None:
    print(estimate.json_line(track, prices) if options.json else estimate.table(prices))
