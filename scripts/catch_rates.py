"""Whether the checks of synthesis catch faults: some are planted into finished records, and counted.

    python scripts/catch_rates.py [--environments 24] [--trajectories 400] [--seed 0] [--at-most 20]

Environments (plain, hard, stateful, unanswerable) and trajectories are made offline by the embedded teacher. Into at
most so many of them one fault of each kind is planted (`planted_faults.py`), and the checks that are meant to see it
are run on what came of it: rules and quality scores of decompositions, the proof of tools, `records verify`, the seven
reward axes. A score catches a fault if it is lower than that of the sound record. `kept or not` asks whether the record
would have been rejected. What no check is meant to see stands there, too, and the sound records themselves, whose
share is one of false alarms. One line per check and kind of fault, then one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from planted_faults import (
    TOOL_FAULTS,
    Fault,
    Proven,
    answers_swapped,
    as_environment,
    bystander_dropped,
    conversation_faults,
    dependency_added,
    dependency_dropped,
    dependency_reversed,
    distractor_answers,
    distractor_constant,
    distractor_does_not_run,
    in_other_words,
    instance_of,
    missing_value_said,
    own_tool_dropped,
    question_of,
    sub_question_doubled,
    sub_question_dropped,
    sub_questions_joined,
    unrelated_inserted,
    withheld_tool_back,
    wrong_all_through,
    wrong_computation,
    wrong_final_state,
    wrong_main_answer,
)
from pydantic import ValidationError

from sandbox.client import AsyncSandboxClient
from sandbox.local import local_sandbox
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.environments.proving.call_batches import CallBatches, Sandbox
from synthesis.environments.proving.proof import prove
from synthesis.environments.questions.qa_instances import check_structure
from synthesis.environments.questions.quality import check_dependencies
from synthesis.environments.verification import ExecutableTools, verify_environment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decomposition_quality import JudgeDecomposition
from synthesis.prompts.qa_instance import WriteQAInstance
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.record_io import RecordDirectoryError, RecordSource, check_shards
from synthesis.records import Environment, QualityScore, RewardAxes, Trajectory, record_id
from synthesis.stage import Rejected
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.reward_axes import RewardThresholds, check_thresholds, judge_axes

KEPT, ANY = "kept or not", "any of the scores"
SOUND = "none: the record as it was made"
AT_ONCE = 8
"""Records whose calls travel to the sandbox in one request."""
LEAST_QUALITY = EnvironmentsConfig.model_fields["quality_threshold"].default
"""The threshold of QS(τ) in `EnvironmentsConfig`."""


class CatchRate(NamedTuple):
    """How many planted faults of one kind one check has caught."""

    where: str
    check: str
    fault: str
    planted: int
    caught: int

    @property
    def share(self) -> float | None:
        """Caught of planted; None where there was no place for the fault."""
        return self.caught / self.planted if self.planted else None


def rates(where: str, fault: Fault, seen_by: Sequence[Mapping[str, bool]], *checks: str) -> Iterator[CatchRate]:
    """Count for each of the checks in how many records it saw the fault."""
    for check in checks:
        yield CatchRate(where, check, fault.name, len(seen_by), sum(seen[check] for seen in seen_by))


def planted(fault: Fault, records: Iterable[Any], seed: int, at_most: int) -> list[tuple[Any, Any]]:
    """Plant a fault into the first records that have a place for it; return each record with what came of it."""
    found = []
    for index, record in enumerate(records):
        broken = fault.plant(record, Random(f"{seed}/{fault.name}/{index}"))
        if broken is not None and broken != record:
            found.append((record, broken))
        if len(found) == at_most:
            break
    return found


# --- decompositions -------------------------------------------------------------------------------------------------

SCORES = {name: name.replace("_", " ") for name in QualityScore.model_fields}
DEPENDENCY, ATOMICITY, SEQUENCE, COMPLETENESS = SCORES.values()
RULES = "rules of structure"
DECOMPOSITION_FAULTS = (
    Fault("a sub-question is left out", sub_question_dropped, (COMPLETENESS,)),
    Fault("a dependency is left out", dependency_dropped, (DEPENDENCY, SEQUENCE)),
    Fault("a dependency is turned round", dependency_reversed, (DEPENDENCY, SEQUENCE)),
    Fault("a dependency that is not needed", dependency_added, (DEPENDENCY,)),
    Fault("a sub-question stands twice", sub_question_doubled, (COMPLETENESS,)),
    Fault("two sub-questions are one", sub_questions_joined, (ATOMICITY,)),
    Fault("two answers are swapped", answers_swapped, (ATOMICITY,)),
    Fault("a wrong answer, and all that follows from it", wrong_all_through, (ATOMICITY,)),
    Fault("the main answer is another one", wrong_main_answer, (COMPLETENESS,)),
    Fault("the computation has another answer", wrong_computation, (ATOMICITY, COMPLETENESS)),
    Fault("none: a sub-question in other words", in_other_words, (ATOMICITY,)),
)


def knowledge_of(environment: Environment) -> Knowledge:
    """Return the knowledge that an environment of a domain alone was made from, as its record names it."""
    fields = {"difficulty": environment.difficulty, "seed": environment.provenance.seed}
    knowledge = Knowledge(domain=environment.domain, language=environment.language, **fields)
    assert environment.provenance.parents == (record_id("knowledge", knowledge.model_dump(mode="json")),)
    return knowledge


async def strangers_of(environment: Environment, teacher: ProceduralTeacher) -> list[Any]:
    """Return lookups of other questions about an environment's world."""
    request = WriteQAInstance(
        knowledge=knowledge_of(environment),
        scenario="parallel_single_hop",
        num_lookups=3,
        with_computation=False,
        max_hops=1,
    )
    return list((await teacher.ask(request, seed=environment.provenance.seed + 1)).nodes)


async def look_at_decomposition(
    sound: QualityScore, knowledge: Knowledge, instance: QAInstance, teacher: ProceduralTeacher
) -> dict[str, bool]:
    """Return which of the checks of a decomposition see a fault: the rules, each score, and all together."""
    try:
        check_structure(instance)
        check_dependencies(instance)
        broken = False
    except Rejected:
        broken = True
    judged = await teacher.ask(JudgeDecomposition(knowledge=knowledge, instance=instance), seed=0)
    seen = {name: getattr(judged, field) < getattr(sound, field) for field, name in SCORES.items()}
    seen[ANY] = any(seen.values())
    return {**seen, RULES: broken, KEPT: broken or judged.quality.mean < LEAST_QUALITY}


async def decompositions(
    environments: Sequence[Environment], seed: int, at_most: int, teacher: ProceduralTeacher
) -> list[CatchRate]:
    """Plant faults into what environments were taken apart into."""
    where = "decompositions"
    answered = [each for each in environments if each.expectation == "answer" and each.state is None]
    by_question = {each.question: each for each in answered}
    found: list[CatchRate] = []

    async def look(fault: Fault, pairs: Iterable[tuple[QAInstance, QAInstance]]) -> list[CatchRate]:
        seen = []
        for sound, broken in pairs:
            environment = by_question[sound.question]
            seen.append(await look_at_decomposition(environment.quality, knowledge_of(environment), broken, teacher))
        checks = fault.meant_for or (ANY,)
        return list(rates(where, fault, seen, *checks, RULES, KEPT))

    instances = [instance_of(each) for each in answered]
    found += await look(Fault(SOUND, lambda each, rng: None), [(each, each) for each in instances])
    for fault in DECOMPOSITION_FAULTS:
        found += await look(fault, planted(fault, instances, seed, at_most))
    unrelated = Fault("a sub-question that leads nowhere", lambda each, rng: None, (COMPLETENESS,))
    pairs = []
    for environment, instance in list(zip(answered, instances, strict=True))[:at_most]:
        fault = unrelated._replace(plant=unrelated_inserted(await strangers_of(environment, teacher)))
        pairs += planted(fault, [instance], seed, 1)
    return found + await look(unrelated, pairs)


# --- tools and environments -----------------------------------------------------------------------------------------


async def tools(environments: Sequence[Environment], seed: int, at_most: int, sandbox: Sandbox) -> list[CatchRate]:
    """Plant faults into tools and what they are asked, and prove them."""
    proofs = []
    for environment in environments:
        if environment.expectation == "answer" and environment.state is None:
            rng = Random(f"{seed}/{environment.id}")
            asked = rng.choice(environment.sub_tasks)
            tasks = tuple(
                task for task in environment.sub_tasks if task.call and asked.call and task.call.name == asked.call.name
            )
            (tool,) = (each for each in environment.tools if asked.call and each.document.name == asked.call.name)
            others = tuple(each for each in environment.all_tools if each is not tool)
            proofs.append(Proven(tool, tasks, tasks.index(asked), others))

    async def is_caught(proven: Proven) -> bool:
        try:
            await prove(sandbox, [(proven.tool, proven.tasks)])
        except Rejected:
            return True
        return False

    return await _counted("tools", "proof", TOOL_FAULTS, proofs, is_caught, seed, at_most)


async def finished(environments: Sequence[Environment], seed: int, at_most: int, sandbox: Sandbox) -> list[CatchRate]:
    """Plant faults into finished environments, and verify them as `records verify` does."""
    faults = (
        Fault("the main answer is another one", as_environment(wrong_main_answer)),
        Fault("a sub-question is left out", as_environment(sub_question_dropped)),
        Fault("a dependency is left out", as_environment(dependency_dropped)),
        Fault("a dependency is turned round", as_environment(dependency_reversed)),
        Fault("a dependency that is not needed", as_environment(dependency_added)),
        Fault("two answers are swapped", as_environment(answers_swapped)),
        Fault("two sub-questions are one", as_environment(sub_questions_joined)),
        Fault("the main question is another environment's", question_of(environments)),
        Fault("a tool that is needed is left out", own_tool_dropped),
        Fault("a distractor is left out", bystander_dropped),
        Fault("a distractor does not run", distractor_does_not_run),
        Fault("a distractor gives one answer to all it knows", distractor_constant),
        Fault("a withheld tool's name is back", withheld_tool_back),
        Fault("what is to be asked back for is said", missing_value_said),
        Fault("the final state is the initial one", wrong_final_state),
    )

    async def is_caught(environment: Environment) -> bool:
        try:
            await verify_environment(
                Environment.model_validate_json(environment.model_dump_json()), sandbox, ExecutableTools(sandbox)
            )
        except (Rejected, ValidationError):
            return True
        return False

    found = await _counted("environments", "records verify", faults, environments, is_caught, seed, at_most)
    for difficulty in ("plain", "hard"):
        fault = Fault(f"a distractor gives an answer ({difficulty})", distractor_answers)
        chosen = [each for each in environments if each.difficulty == difficulty]
        found += (await _counted("environments", "records verify", [fault], chosen, is_caught, seed, at_most))[1:]
    return found


async def _counted(
    where: str,
    check: str,
    faults: Iterable[Fault],
    records: Sequence[Any],
    is_caught: Callable[[Any], Awaitable[bool]],
    seed: int,
    at_most: int,
) -> list[CatchRate]:
    found = []
    for fault in (Fault(SOUND, lambda each, rng: None), *faults):
        pairs = [(each, each) for each in records] if fault.name == SOUND else planted(fault, records, seed, at_most)
        seen = []
        for start in range(0, len(pairs), AT_ONCE):
            together = [is_caught(broken) for _, broken in pairs[start : start + AT_ONCE]]
            seen += [{check: caught} for caught in await asyncio.gather(*together)]
        found += rates(where, fault, seen, check)
    return found


def bytes_of_shards(directory: Path, seed: int, count: int) -> CatchRate:
    """Change one byte of a directory's shards at a time, and compare them with their card."""
    rng, caught = Random(f"{seed}/bytes"), 0
    for _ in range(count):
        shard = rng.choice(sorted(directory.glob("*.array_record")))
        content = shard.read_bytes()
        at = rng.randrange(len(content))
        shard.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        try:
            check_shards(directory)
        except RecordDirectoryError:
            caught += 1
        shard.write_bytes(content)
    return CatchRate("environments", "records verify", "one byte of a shard is another", count, caught)


# --- trajectories ---------------------------------------------------------------------------------------------------

AXES = {name: name.replace("_", " ") for name in RewardAxes.AXES}


async def look_at_conversation(
    sound: RewardAxes, trajectory: Trajectory, teacher: ProceduralTeacher
) -> dict[str, bool]:
    """Return which axes are lower than `sound`, and whether the trajectory would be rejected."""
    try:
        reward = await judge_axes(trajectory.task, trajectory.tools, trajectory.messages, teacher, seed=0)
    except Rejected:
        return {**dict.fromkeys(AXES.values(), False), ANY: False, KEPT: True}  # before any axis was judged
    seen = {}
    for axis, name in AXES.items():
        before, after = getattr(sound, axis), getattr(reward, axis)
        seen[name] = before is not None and after is not None and after < before - 1e-9
    seen[ANY] = any(seen.values())
    try:
        check_thresholds(reward, RewardThresholds())
        seen[KEPT] = False
    except Rejected:
        seen[KEPT] = True
    return seen


async def conversations(
    trajectories: Sequence[Trajectory], seed: int, at_most: int, teacher: ProceduralTeacher
) -> list[CatchRate]:
    """Plant faults into conversations, and judge them again."""
    found: list[CatchRate] = []
    for fault in (Fault(SOUND, lambda each, rng: None), *conversation_faults(trajectories)):
        pairs = planted(fault, trajectories, seed, at_most)
        if fault.name == SOUND:
            pairs = [(each, each) for each in trajectories]
        seen = [await look_at_conversation(sound.reward, broken, teacher) for sound, broken in pairs]
        found += rates("trajectories", fault, seen, *(fault.meant_for or (ANY,)), KEPT)
    return found


# --- all of it ------------------------------------------------------------------------------------------------------


async def made_environments(folder: Path, count: int, seed: int, url: str) -> list[Environment]:
    """Synthesise environments: plain ones, hard ones, and the varieties beyond the paper."""
    common: dict[str, Any] = {"seed": seed, "scaled_documents": 0.5}
    varieties = {"stateful": 0.25, "withheld_tool": 0.375, "missing_parameter": 0.375}
    found: list[Environment] = []
    for name, changes in {
        "plain": {"count": count},
        "hard": {"count": count, "difficulty": "hard"},
        "varieties": {"count": max(4, count * 2 // 3), "varieties": varieties},
    }.items():
        config = EnvironmentsConfig(out=folder / name, **common, **changes)
        await synthesize_environments(config, ProceduralTeacher(), url)
        found += RecordSource(config.out, Environment)
    return found


async def made_trajectories(folder: Path, count: int, seed: int) -> list[Trajectory]:
    """Synthesise trajectories over the shipped tool documents."""
    config = TrajectoriesConfig(
        seed=seed, count=count, out=folder / "trajectories", max_offered_tools=8, follow_up_share=0.2
    )
    await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
    return list(RecordSource(config.out, Trajectory))


async def catch_rates(
    folder: Path, num_environments: int, num_trajectories: int, seed: int, at_most: int
) -> list[CatchRate]:
    """Make the records, plant the faults, count."""
    teacher = ProceduralTeacher()
    trajectories = await made_trajectories(folder, num_trajectories, seed)
    found = await conversations(trajectories, seed, at_most, teacher)
    with local_sandbox(workers=2) as url:
        environments = await made_environments(folder, num_environments, seed, url)
        # Hard and plain ones in turn, so that the first with a place for a fault are of both kinds.
        Random(f"{seed}/order").shuffle(environments)
        found += await decompositions(environments, seed, at_most, teacher)
        async with AsyncSandboxClient(url) as client:
            sandbox = CallBatches(client)
            found += await tools(environments, seed, at_most, sandbox)
            found += await finished(environments, seed, at_most, sandbox)
    found.append(bytes_of_shards(folder / "plain", seed, at_most))
    return found


def table(found: Sequence[CatchRate]) -> str:
    """Return the rates as lines of text.

    >>> print(table([CatchRate("tools", "proof", "the gold answer is another one", 4, 3)]))
    tools: check                        kind of fault                                   planted caught share
    proof                               the gold answer is another one                        4      3  0.75
    """
    lines: list[str] = []
    for where, section in groupby(found, key=lambda rate: rate.where):
        lines.append(f"{f'{where}: check':36}{'kind of fault':48}{'planted':>7}{'caught':>7}{'share':>6}")
        for rate in section:
            share = "–" if rate.share is None else f"{rate.share:.2f}"
            lines.append(f"{rate.check:36}{rate.fault:48}{rate.planted:>7}{rate.caught:>7}{share:>6}")
    return "\n".join(lines)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", type=int, default=24, help="plain ones, and as many hard ones")
    parser.add_argument("--trajectories", type=int, default=400)
    parser.add_argument("--at-most", type=int, default=20, help="records that a kind of fault is planted into")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    started = time.monotonic()
    with TemporaryDirectory() as folder:
        found = asyncio.run(
            catch_rates(Path(folder), options.environments, options.trajectories, options.seed, options.at_most)
        )
    print(table(found))
    rows = [{**rate._asdict(), "share": rate.share} for rate in found]
    print(json.dumps({"seed": options.seed, "seconds": round(time.monotonic() - started, 1), "catch_rates": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
