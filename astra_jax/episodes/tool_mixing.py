"""Mixing irrelevant tools in: which distractors an episode is shown, and in which order all tools stand."""

from __future__ import annotations

import random
from collections.abc import Mapping

from synthesis.records import Environment, EnvironmentTool, SimilarityBand


def mix_tools(
    environment: Environment, *, irrelevant_per_band: Mapping[SimilarityBand, int], seed: int
) -> tuple[EnvironmentTool, ...]:
    """Return the environment's own tools and up to K distractors of each similarity band, in seeded random order.

    Raises:
        ValueError: two tools would have one name; a call must never be able to mean both.
    """
    # Seeded by text, which every process reads alike; `hash` of a string differs from one process to the next.
    rng = random.Random(f"{environment.id}/{seed}")
    chosen = list(environment.tools)
    for band in ("high", "medium", "low"):
        candidates = [irrelevant.tool for irrelevant in environment.irrelevant_tools if irrelevant.band == band]
        chosen.extend(rng.sample(candidates, min(irrelevant_per_band.get(band, 0), len(candidates))))
    names = [tool.document.name for tool in chosen]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"environment {environment.id}: mixed tools must have different names, found twice: {doubled}")
    rng.shuffle(chosen)
    return tuple(chosen)
