"""One sandbox and one small synthesised split for all tests of this folder."""

from __future__ import annotations

import asyncio

import pytest

from sandbox.local import local_sandbox
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Language, Scenario
from tests.synthesis.environments.in_this_process import here  # noqa: F401
from tests.synthesis.environments.made import all_kept, read, tiny_config


@pytest.fixture(scope="session")
def sandbox_url():
    with local_sandbox(workers=2) as url:
        yield url


@pytest.fixture(scope="session")
def training(tmp_path_factory, here):  # noqa: F811
    """A record directory of 24 environments, synthesised by the embedded teacher."""
    return all_kept(tiny_config(seed=0, count=24, out=tmp_path_factory.mktemp("training") / "out"), here)


@pytest.fixture(scope="session")
def environments(training):
    return read(training)


@pytest.fixture(scope="session")
def instances():
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

    async def write(language, shape):
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
