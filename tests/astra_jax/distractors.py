"""Distractors for an environment that has none of its own."""

from __future__ import annotations

from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, SimilarityBand, ToolDocument

SIMILARITIES: dict[SimilarityBand, float] = {"high": 0.9, "medium": 0.6, "low": 0.1}


def with_distractors(environment: Environment, per_band: int) -> Environment:
    """Give an environment so many tools of each band; they are named `high_0`, `high_1` …, and need no argument."""
    distractors = tuple(
        IrrelevantTool(tool=_tool(f"{band}_{number}"), band=band, similarity=similarity)
        for band, similarity in SIMILARITIES.items()
        for number in range(per_band)
    )
    return environment.model_copy(update={"irrelevant_tools": distractors})


def _tool(name: str) -> EnvironmentTool:
    document = ToolDocument(name=name, description=f"Give {name}.", parameters={"type": "object", "properties": {}})
    return EnvironmentTool(document=document, source=f"def {name}():\n    return '{name}'\n")
