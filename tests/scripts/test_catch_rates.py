"""The catch rates are counted on the records: a fault changes a record, and a check that is blind counts nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from astra_jax.testing import tiny_environment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts import judges
from synthesis.prompts.qa_instance import WriteQAInstance
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Trajectory
from synthesis.teacher.protocol import Reply, Request
from tests.synthesis.environments.in_this_process import InThisProcess

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(SCRIPTS))
    try:
        import catch_rates

        yield catch_rates
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in ("catch_rates", "planted_faults"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def trajectories(script: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Trajectory]:
    return asyncio.run(script.made_trajectories(tmp_path_factory.mktemp("made"), 120, 0))


def counted(script: Any, trajectories: list[Trajectory], teacher: ProceduralTeacher) -> dict[tuple[str, str], Any]:
    found = asyncio.run(script.conversations(trajectories, 0, 3, teacher))
    return {(rate.fault, rate.check): rate for rate in found}


def test_sound_conversations_raise_no_alarm_and_every_fault_finds_a_place(
    script: Any, trajectories: list[Trajectory]
) -> None:
    found = counted(script, trajectories, ProceduralTeacher())
    assert found[script.SOUND, script.ANY].planted == 120
    assert found[script.SOUND, script.ANY].caught == 0
    assert min(rate.planted for rate in found.values()) > 0
    for fault, check in (
        ("first call: two arguments swapped", "query understanding"),
        ("later call: not the response's value", "tool response conditioned planning"),
        ("failed call not made again, said to be done", "tool response understanding"),
        ("a task to refuse is said to be done", "final answer"),
    ):
        assert found[fault, check].share == 1
    # What no axis looks at is counted as it is.
    assert found["the reasoning is missing", script.ANY].share == 0


def test_a_judge_that_approves_whatever_it_sees_catches_nothing(script: Any, trajectories: list[Trajectory]) -> None:
    class Approving(ProceduralTeacher):
        async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
            if isinstance(request, judges.JudgePlanning):
                return judges.Judgement(score=1.0, reason="as it says itself")  # type: ignore[return-value]
            return await super().ask(request, seed=seed)

    caught = [
        rate.caught for (_, check), rate in counted(script, trajectories, Approving()).items() if check == "planning"
    ]
    assert len(caught) >= 5
    assert sum(caught) == 0


def test_faults_change_the_messages_and_nothing_else(script: Any, trajectories: list[Trajectory]) -> None:
    for fault in script.conversation_faults(trajectories):
        for sound, broken in script.planted(fault, trajectories, 0, 3):
            assert broken.messages != sound.messages
            assert broken.model_copy(update={"messages": sound.messages}) == sound


def instances() -> list[tuple[Knowledge, QAInstance]]:
    async def write(seed: int) -> tuple[Knowledge, QAInstance]:
        knowledge = Knowledge(domain="library", language="zh" if seed % 2 else "en", seed=seed)
        request = WriteQAInstance(
            knowledge=knowledge,
            scenario="parallel_multi_hop",
            num_lookups=4,
            with_computation=seed % 3 == 0,
            max_hops=4,
        )
        return knowledge, await ProceduralTeacher().ask(request, seed=seed)

    return [asyncio.run(write(seed)) for seed in range(12)]


def test_every_fault_of_a_decomposition_is_seen_by_a_rule_or_a_score_that_is_meant_to(script: Any) -> None:
    teacher, drawn = ProceduralTeacher(), instances()
    perfect = tiny_environment().quality

    def seen(knowledge: Knowledge, instance: QAInstance) -> dict[str, bool]:
        return asyncio.run(script.look_at_decomposition(perfect, knowledge, instance, teacher))

    for knowledge, instance in drawn:
        assert not any(seen(knowledge, instance).values())
    for fault in script.DECOMPOSITION_FAULTS:
        places = [(knowledge, fault.plant(instance, Random(0))) for knowledge, instance in drawn]
        looked = [seen(knowledge, broken) for knowledge, broken in places if broken is not None]
        assert looked, fault.name
        if fault.name == "the computation has another answer":  # the rules see it, no score does
            assert all(each[script.RULES] and not each[script.ANY] for each in looked)
        elif fault.name == "a dependency that is not needed":  # the main question may need both
            assert all(each[script.RULES] and each[script.DEPENDENCY] for each in looked)
        else:
            assert all(any(each[check] for check in fault.meant_for) for each in looked), fault.name


def test_tools_and_environments_are_caught_by_what_runs_them(script: Any) -> None:
    environments = [tiny_environment(), tiny_environment(owner="Pale Ibis", flat="Red Gate", rent=7)]
    sandbox = InThisProcess()
    proven = {rate.fault: rate for rate in asyncio.run(script.tools(environments, 0, 2, sandbox))}
    assert proven[script.SOUND].share == 0
    for fault in (
        "the gold answer is another one",
        "the tool gives a gold answer to a stranger",
        "the gold answer stands in the code",
        "a required argument can be left out",
    ):
        assert proven[fault].share == 1, fault
    # The proof asks that a stranger gets no gold answer, not that he gets none.
    assert proven["the tool gives a stranger somebody else's row"].share == 0
    assert proven["an optional parameter has no effect"].share is None
    verified = {rate.fault: rate for rate in asyncio.run(script.finished(environments, 0, 2, sandbox))}
    assert verified[script.SOUND].share == 0
    assert verified["the main answer is another one"].share == 1
    assert verified["a tool that is needed is left out"].share == 1
    assert verified["the main question is another environment's"].share == 0
    assert verified["a distractor gives an answer (plain)"].share == 0
