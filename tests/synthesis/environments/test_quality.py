"""Environments whose quality score is below the threshold are rejected before any tool is written."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decomposition_quality import JudgeDecomposition, ScoredDecomposition
from synthesis.prompts.tool_implementation_writing import WriteToolImplementation
from synthesis.record_io import read_card
from synthesis.teacher.protocol import Reply, Request
from tests.synthesis.environments.made import read, tiny_config


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
    return teacher, sorted(environment.quality.mean for environment in read(config.out))


def test_a_value_rejects_what_is_below_it(tmp_path: Path, sandbox_url: str) -> None:
    config = tiny_config(seed=2, count=20, out=tmp_path / "out", quality_threshold=0.8)
    teacher, kept = synthesized(config, sandbox_url)
    assert read_card(config.out).rejected == {"quality below threshold": 20 - len(kept)}
    assert kept == pytest.approx(sorted(grade for grade in teacher.grades.values() if grade >= 0.8))
    assert 0 < len(kept) < 20


def test_no_tool_is_written_for_what_is_below_the_threshold(tmp_path: Path, sandbox_url: str) -> None:
    config = tiny_config(seed=2, count=10, out=tmp_path / "out", quality_threshold=0.75)
    teacher, kept = synthesized(config, sandbox_url)
    assert {teacher.grades[seed] for seed in teacher.implemented} == {g for g in teacher.grades.values() if g >= 0.75}
    assert 0 < len(kept) < 10


@pytest.mark.parametrize("threshold", [1.1, -0.1, {"value": 0.9}])
def test_a_threshold_that_can_keep_nothing_is_no_configuration(threshold: object, tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        tiny_config(seed=0, count=1, out=tmp_path, quality_threshold=threshold)
