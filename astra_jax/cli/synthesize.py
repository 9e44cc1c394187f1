"""`astra synthesize tools|functions|trajectories|environments`: training data."""

from __future__ import annotations

import argparse
import asyncio
import sys
from functools import partial
from typing import TYPE_CHECKING

from astra_jax.cli.surroundings import lock_beside, sandbox_for, with_teacher
from astra_jax.config import ConfigError, load_config
from synthesis.stage import StageReport
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.tools.ingestion import TOOL_DOCUMENTS
from synthesis.trajectories.pipeline import TRAJECTORIES, TrajectoriesConfig, synthesize_tools, synthesize_trajectories

if TYPE_CHECKING:
    from synthesis.cost import CostEstimate


def tools(options: argparse.Namespace) -> None:
    """Read and normalise tool documents."""
    with lock_beside(options.out, TOOL_DOCUMENTS, options.sources):
        report = asyncio.run(synthesize_tools(options.sources, options.out))
    _print_report(options, report)


def functions(options: argparse.Namespace) -> None:
    """Prove the user's own functions and questions, and write them as environments."""
    from synthesis.environments.own_functions import environments_of_functions
    from synthesis.environments.pipeline import ENVIRONMENTS

    sources = (options.functions, options.questions)
    with lock_beside(options.out, ENVIRONMENTS, sources), sandbox_for(options) as url:
        report = asyncio.run(environments_of_functions(*sources, options.out, url))
    for reason in report.first_rejections:
        print(reason, file=sys.stderr)
    _print_report(options, report)


def trajectories(options: argparse.Namespace) -> None:
    """Synthesise trajectories, or print an estimate of the cost."""
    config = load_config(TrajectoriesConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.cost import estimate_trajectories

        _print_estimate(options, "trajectories", asyncio.run(estimate_trajectories(config)), config.teacher)
        return
    if config.teacher is None and not config.templates:
        raise ConfigError(
            f"{options.config}: teacher has no value; name a model in a [teacher] table (docs/teacher.md), or say "
            "templates=true to try the machinery with the embedded teacher, whose texts are no data to train on"
        )
    with lock_beside(config.out, TRAJECTORIES, config.tool_documents):
        work = partial(synthesize_trajectories, config)
        report = asyncio.run(with_teacher(config.teacher, config.out, work))
    _print_report(options, report)


def environments(options: argparse.Namespace) -> None:
    """Synthesise environments, or print an estimate of the cost."""
    # Not above: they load scipy and scikit-learn, 100 MB that trajectories do without.
    from synthesis.cost import estimate_environments
    from synthesis.environments.pipeline import (
        ENVIRONMENTS,
        EnvironmentsConfig,
        journals_beside,
        synthesize_environments,
    )

    config = load_config(EnvironmentsConfig, options.config, options.overrides)
    if options.estimate:
        with sandbox_for(options) as url:
            _print_estimate(options, "environments", asyncio.run(estimate_environments(config, url)), config.teacher)
        return
    sources = (*config.knowledge, *config.disjoint_from)
    journals = journals_beside(config.out).values()
    with lock_beside(config.out, ENVIRONMENTS, sources, journals), sandbox_for(options) as url:
        work = partial(synthesize_environments, config, sandbox_url=url)
        report = asyncio.run(with_teacher(config.teacher, config.out, work))
    _print_report(options, report)


def _print_report(options: argparse.Namespace, report: StageReport) -> None:
    print(report.json_line() if options.json else report.closing_line())


def _print_estimate(
    options: argparse.Namespace, track: str, estimate: CostEstimate, prices: OpenAITeacherConfig | None
) -> None:
    print(estimate.json_line(track, prices) if options.json else estimate.table(prices))
