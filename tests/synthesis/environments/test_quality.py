"""What is kept by quality: everything from a value upwards, or all but the lowest of what was scored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.selection.thresholds import Percentile, least_quality
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decomposition_quality import JudgeDecomposition, ScoredDecomposition
from synthesis.prompts.tool_implementation_writing import WriteToolImplementation
from synthesis.record_io import RecordSource, read_card
from synthesis.records import Environment
from synthesis.teacher.protocol import Reply, Request

MakeConfig = Callable[..., EnvironmentsConfig]


class GradingTeacher(ProceduralTeacher):
    """Gives each decomposition a grade of its own between 0.5 and 1, and remembers grades and implemented seeds."""

    def __init__(self) -> None:
        self.grades: dict[int, float] = {}
        self.implemented: set[int] = set()

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        reply: Any = await super().ask(request, seed=seed)
        if isinstance(request, JudgeDecomposition):
            self.grades[request.knowledge.seed] = grade = 0.5 + request.knowledge.seed % 1000 / 2000
            indicators = dict.fromkeys(("dependency_consistency", "atomicity", "sequential_rationality"), grade)
            return ScoredDecomposition(reason="so", **indicators, task_completeness=grade)  # type: ignore[return-value]
        if isinstance(request, WriteToolImplementation):
            self.implemented.add(request.knowledge.seed)
        return reply


def synthesized(config: EnvironmentsConfig, url: str) -> tuple[GradingTeacher, list[float]]:
    teacher = GradingTeacher()
    asyncio.run(synthesize_environments(config, teacher, url))
    return teacher, sorted(environment.quality.mean for environment in RecordSource(config.out, Environment))


def test_a_percentile_rejects_that_share_of_the_lowest(
    make_config: MakeConfig, tmp_path: Path, sandbox_url: str
) -> None:
    config = make_config(seed=2, count=20, out=tmp_path / "out", quality_threshold={"percentile": 30})
    teacher, kept = synthesized(config, sandbox_url)
    assert len(set(teacher.grades.values())) == 20
    assert kept == pytest.approx(sorted(teacher.grades.values())[6:])
    assert read_card(config.out).rejected == {"quality below threshold": 6}


def test_a_value_rejects_what_is_below_it(make_config: MakeConfig, tmp_path: Path, sandbox_url: str) -> None:
    config = make_config(seed=2, count=20, out=tmp_path / "out", quality_threshold=0.8)
    teacher, kept = synthesized(config, sandbox_url)
    assert kept == pytest.approx(sorted(grade for grade in teacher.grades.values() if grade >= 0.8))
    assert 0 < len(kept) < 20


def test_no_tool_is_written_for_what_is_below_the_threshold(
    make_config: MakeConfig, tmp_path: Path, sandbox_url: str
) -> None:
    config = make_config(seed=2, count=10, out=tmp_path / "out", quality_threshold={"percentile": 50})
    teacher, kept = synthesized(config, sandbox_url)
    assert {teacher.grades[seed] for seed in teacher.implemented} == set(sorted(teacher.grades.values())[5:])
    assert len(kept) == 5


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(0, 99.9))
def test_at_most_the_percentage_is_below_a_percentile(scores: list[float], percentile: float) -> None:
    least = least_quality(scores, Percentile(percentile=percentile))
    assert sum(score < least for score in scores) <= -(-len(scores) * percentile // 100)
    assert max(scores) >= least


def test_equal_scores_are_kept_together() -> None:
    assert least_quality([0.75] * 9, Percentile(percentile=90)) == 0.75


@pytest.mark.parametrize("threshold", [1.1, -0.1, {"percentile": 100}, {"percentile": -1}, {"value": 0.9}])
def test_a_threshold_that_can_keep_nothing_is_no_configuration(
    threshold: object, make_config: MakeConfig, tmp_path: Path
) -> None:
    with pytest.raises(ValidationError):
        make_config(seed=0, count=1, out=tmp_path, quality_threshold=threshold)
