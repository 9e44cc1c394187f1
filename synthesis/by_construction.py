"""Figures of a record set that follow from how it was made, and do not measure its quality.

The sentences rest on the set itself: the teacher of its records, scores that are 1.0 everywhere, and the settings in
its card. If a card has no settings, no sentence is about settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from synthesis.environments.selection.statistics import EnvironmentStatistics
from synthesis.records import JsonValue
from synthesis.run.fingerprint import digest
from synthesis.teacher.protocol import EMBEDDED, made_by
from synthesis.trajectories.statistics import TrajectoryStatistics

CATCH_RATES: Final = "see docs/results.md, Catch rates"
_SHOWS_NOTHING: Final = "how near they are to the paper's shows nothing"
_NO_MODEL: Final = "no language model was asked: tokens, cost and speed say nothing of a run with one"


def of_environments(counted: EnvironmentStatistics, made_with: Mapping[str, JsonValue]) -> list[str]:
    """Return the sentences about a set of environments, one for each figure."""
    said = []
    if any(name.startswith("scenarios.") for name in made_with):
        # Files bring their own languages and domains.
        is_planned = made_with.get("knowledge") == digest([])
        shares = "languages, domains and scenarios" if is_planned else "scenarios"
        said.append(f"shares of {shares} are set by quotas: {_SHOWS_NOTHING}")
    if any(name.startswith("lookups.") for name in made_with):
        said.append(
            "numbers of sub-questions and tool calls, and how many of these can run parallel, come from quotas, "
            f"in configs/paper_environments.toml such as give the paper's means: {_SHOWS_NOTHING}"
        )
    said += _of_the_teacher(counted.teachers, {"all four quality scores": counted.quality_mean})
    if counted.similarity == "lexical":
        said.append(
            "irrelevant tools are near by shared letters (similarity is lexical), which know no synonyms; `embedding` "
            "in the config names a model that does"
        )
    if made_with.get("long_documents"):
        said.append(
            "tool documents were lengthened by rule: sections behind the first paragraph say nothing of the tool"
        )
    if counted.stateful_share:
        said.append("no judge is asked of stateful environments: all their quality scores are set to 1.0")
    return said


def of_trajectories(counted: TrajectoryStatistics, made_with: Mapping[str, JsonValue]) -> list[str]:
    """Return the sentences about a set of trajectories, one for each figure."""
    said = []
    if counted.injected_failure_rate is not None and "failure_rate" in made_with:
        said.append(f"emulated calls are made to fail at a rate that is set ({made_with['failure_rate']})")
    axes = {axis: mean for axis, mean in counted.reward.items() if axis != "mean"}
    return said + _of_the_teacher(counted.teachers, axes | counted.task_scores)


def _of_the_teacher(teachers: Mapping[str, int], means: Mapping[str, float]) -> list[str]:
    """Return the sentences about a teacher that judges its own work; `means` are those of its scores, by name."""
    said = [notice] if (notice := made_by(teachers)) else []
    if set(teachers) == {EMBEDDED}:
        never_fall = [name.replace("_", " ") for name, mean in means.items() if mean == 1.0]
        found = f", here with 1.0 on every record for {', '.join(never_fall)}" if never_fall else ""
        said += [f"the embedded teacher judges its own work{found} ({CATCH_RATES})", _NO_MODEL]
    return said
