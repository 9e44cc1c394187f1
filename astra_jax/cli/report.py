"""`astra report`: one self-contained HTML page."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands


def add_report(commands: Commands) -> None:
    """Add the command."""
    report = commands.add_parser(
        "report",
        help="one self-contained HTML page of a run or of a record directory",
        description="Writes one self-contained HTML page: that of a run's folder into it, as report.html; that of a "
        "record directory (trajectories or environments) beside it, as DIR.html, because its own files are "
        "check-summed.",
    )
    report.add_argument("folder", type=Path, metavar="DIR", help="the `out` folder of a run or of a synthesis")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from astra_jax.recipes.data_sets import describe
    from astra_jax.report import write_report

    print(f"report -> {write_report(options.folder, describe)}")
