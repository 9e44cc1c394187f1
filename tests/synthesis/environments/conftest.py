"""One sandbox and one small synthesised pair of splits for all tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.local import local_sandbox
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, Language, Scenario
from synthesis.teacher.protocol import made_by
from tests.synthesis.environments.made import read, tiny_config


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    with local_sandbox(workers=2) as url:
        yield url


@pytest.fixture(scope="session")
def splits(tmp_path_factory: pytest.TempPathFactory, sandbox_url: str) -> tuple[Path, Path]:
    """A training and a held-out record directory, synthesised by the procedural teacher."""
    folder = tmp_path_factory.mktemp("splits")
    train = tiny_config(seed=0, count=24, out=folder / "train")
    heldout = tiny_config(seed=1, count=12, out=folder / "heldout", disjoint_from=(folder / "train",))
    for config in (train, heldout):
        report = asyncio.run(synthesize_environments(config, ProceduralTeacher(), sandbox_url))
        assert report.kept == config.count, report.closing_line()
        assert report.closing_line().endswith("; " + made_by([ProceduralTeacher.name]))
    return train.out, heldout.out


@pytest.fixture(scope="session")
def environments(splits: tuple[Path, Path]) -> list[Environment]:
    return read(splits[0])


@pytest.fixture(scope="session")
def instances() -> dict[str, QAInstance]:
    """A QA instance of each scenario, and one that ends in a computation, in both languages."""
    shapes: list[tuple[Scenario, int, bool]] = [
        ("single_hop", 1, False),
        ("parallel_single_hop", 2, False),
        ("parallel_single_hop", 2, True),
        ("multi_hop", 3, False),
        ("parallel_multi_hop", 4, False),
        ("parallel_multi_hop", 4, True),
    ]
    languages: tuple[Language, ...] = ("en", "zh")
    teacher = ProceduralTeacher()

    async def write(language: Language, shape: tuple[Scenario, int, bool]) -> QAInstance:
        scenario, num_lookups, with_computation = shape
        request = WriteQAInstance(
            knowledge=Knowledge(domain="library", language=language, seed=3),
            scenario=scenario,
            num_lookups=num_lookups,
            with_computation=with_computation,
            max_hops=4,
        )
        return await teacher.ask(request, seed=5)

    return {
        f"{language} {shape[0]}{' computed' if shape[2] else ''}": asyncio.run(write(language, shape))
        for language in languages
        for shape in shapes
    }
