"""Environments whose quality score is below the threshold are rejected before any tool is written."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from pydantic import ValidationError

from synthesis.environments.pipeline import synthesize_environments
from synthesis.prompts.decompositions import JudgeDecomposition, ScoredDecomposition
from synthesis.prompts.tool_writing import WriteToolImplementation
from synthesis.record_io import read_card
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import read, tiny_config
from tests.synthesis.otherwise import Otherwise


def test_what_is_below_the_threshold_is_rejected_before_any_tool_is_written(tmp_path: Path, sandbox_url: str) -> None:
    grades: dict[int, float] = {}

    def grade(request: JudgeDecomposition, reply: ScoredDecomposition, seed: int) -> ScoredDecomposition:
        grades[request.knowledge.seed] = given = 0.5 + request.knowledge.seed % 1000 / 2000
        indicators = ("dependency_consistency", "atomicity", "sequential_rationality", "task_completeness")
        return altered(reply, **dict.fromkeys(indicators, given))

    teacher = Otherwise({JudgeDecomposition: grade})
    config = tiny_config(seed=2, count=20, out=tmp_path / "out", quality_threshold=0.8)
    asyncio.run(synthesize_environments(config, teacher, sandbox_url))
    kept = sorted(environment.quality.mean for environment in read(config.out))
    good = {seed: given for seed, given in grades.items() if given >= 0.8}
    assert 0 < len(kept) < 20
    assert kept == pytest.approx(sorted(good.values()))
    assert read_card(config.out).rejected == {"quality below threshold": 20 - len(kept)}
    assert {request.knowledge.seed for request in teacher.asked_for(WriteToolImplementation)} == good.keys()


@pytest.mark.parametrize("threshold", [1.1, -0.1, {"value": 0.9}])
def test_a_threshold_that_can_keep_nothing_is_no_configuration(threshold: object, tmp_path: Path) -> None:
    with pytest.raises(ValidationError):
        tiny_config(seed=0, count=1, out=tmp_path, quality_threshold=threshold)
