"""Mixing irrelevant tools in: which distractors an episode is shown, and in which order all tools stand."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

from synthesis.records import Environment, EnvironmentTool, SimilarityBand


def mix_tools(
    environment: Environment,
    *,
    irrelevant_per_band: Mapping[SimilarityBand, int],
    seed: int,
    called: Collection[str] = (),
) -> tuple[EnvironmentTool, ...]:
    """Return the environment's own tools and up to K distractors of each similarity band, in seeded random order.

    Distractors that a demonstration has `called` are among them in any case.

    Raises:
        ValueError: two tools would have one name; a call must never be able to mean both.
    """
    # Seeded by text, which every process reads alike; `hash` of a string differs from one process to the next.
    rng = random.Random(f"{environment.id}/{seed}")
    chosen = list(environment.tools)
    for band in ("high", "medium", "low"):
        candidates = [irrelevant.tool for irrelevant in environment.irrelevant_tools if irrelevant.band == band]
        drawn = rng.sample(candidates, min(irrelevant_per_band.get(band, 0), len(candidates)))
        shown = [tool for tool in candidates if tool.document.name in called]
        others = [tool for tool in drawn if tool.document.name not in called]
        chosen.extend([*shown, *others[: max(0, len(drawn) - len(shown))]] if shown else drawn)
    names = [tool.document.name for tool in chosen]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"environment {environment.id}: mixed tools must have different names, found twice: {doubled}")
    rng.shuffle(chosen)
    return tuple(chosen)
