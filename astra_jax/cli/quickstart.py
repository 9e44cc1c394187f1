"""`astra quickstart`: the whole recipe with a tiny Qwen3."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import MOST_SEED, Commands, whole_number
from astra_jax.cli.surroundings import lock_beside
from astra_jax.training.termination import Terminated


def add_quickstart(commands: Commands) -> None:
    """Add the command."""
    quickstart = commands.add_parser("quickstart", help="the whole recipe with a tiny Qwen3 on this machine")
    add = quickstart.add_argument
    add("--out", type=Path, default=Path("runs/quickstart"), help="where everything is written")
    add("--seed", type=whole_number(0, MOST_SEED), default=0, help="the same seed gives the same records and curves")
    add("--tool-documents", type=Path, action="append", default=[], metavar="DIR", help="your own tool documents")
    add("--resume", action="store_true", help="go on with the stages that are not finished")
    quickstart.set_defaults(run=_quickstart, after_signal="; with --resume it goes on from there")


def _quickstart(options: argparse.Namespace) -> int | None:
    from astra_jax.recipes.stages import QUICKSTART

    with lock_beside(options.out, QUICKSTART, options.tool_documents):
        from astra_jax.cli.compile_cache import keep_compiled_programs
        from astra_jax.recipes.quickstart import how_to_talk, quickstart
        from astra_jax.recipes.quickstart_evaluation import closing_table

        keep_compiled_programs()
        try:
            summary = quickstart(
                options.out, seed=options.seed, tool_documents=options.tool_documents, resume=options.resume
            )
        except Terminated as ended:  # the stage is saved, the recipe is not at its end
            return 128 + ended.signum
    print(closing_table(summary))
    minutes = summary["seconds"]["total"] / 60
    print(f"quickstart: done in {minutes:.1f} minutes -> {options.out}/report.html, {options.out}/summary.json")
    print(how_to_talk(options.out))
    return None
