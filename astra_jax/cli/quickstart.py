"""`astra quickstart`: the whole recipe with a tiny Qwen3."""

from __future__ import annotations

import argparse

from astra_jax.cli.surroundings import lock_beside
from astra_jax.recipes import quickstart as recipe
from astra_jax.recipes.quickstart_evaluation import closing_table
from astra_jax.recipes.stages import QUICKSTART
from astra_jax.training.termination import Terminated


def quickstart(options: argparse.Namespace) -> int | None:
    """Run the recipe; print its table and where its results are."""
    with lock_beside(options.out, QUICKSTART, options.tool_documents):
        try:
            summary = recipe.quickstart(
                options.out, seed=options.seed, tool_documents=options.tool_documents, resume=options.resume
            )
        except Terminated as ended:  # the stage is saved, the recipe is not at its end
            return 128 + ended.signum
    print(closing_table(summary))
    minutes = summary["seconds"]["total"] / 60
    print(f"quickstart: done in {minutes:.1f} minutes -> {options.out}/report.html, {options.out}/summary.json")
    print(recipe.how_to_talk(options.out))
    return None
