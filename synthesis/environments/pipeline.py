"""The environments track in stage order: knowledge in, a record directory of proven environments out.

    quotas ─► knowledge ─► QA instance ─► quality ─► sub-environments ─► merging      one item of the first stage
           ─► irrelevant tools ─► every gold call replayed on the final artefact      one item of the second stage
           ─► record directory

An item's outcome depends on the config, its index and the teacher's replies alone, so a run that was killed and started
again writes the same bytes. `disjoint_from` names record directories whose entities and answers must not occur here:
an instance that shares one is drawn again, and after `MAX_DRAWS` draws the item is rejected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from sandbox.client import AsyncSandboxClient
from synthesis.environments.call_batches import CallBatches, Sandbox
from synthesis.environments.decomposition import QAInstance
from synthesis.environments.embeddings import EmbeddingEndpoint
from synthesis.environments.irrelevant_tools import ToolPool
from synthesis.environments.knowledge import Knowledge, read_knowledge
from synthesis.environments.merging import merge_sub_environments
from synthesis.environments.qa_instances import write_qa_instance
from synthesis.environments.quality import score_quality
from synthesis.environments.quotas import EnvironmentPlan, Variety, plan_environments
from synthesis.environments.refusals import omit_parameter, withhold_tool
from synthesis.environments.stateful import write_stateful_task
from synthesis.environments.sub_environments import build_sub_environments
from synthesis.environments.verification import ExecutableTools, replay_environment
from synthesis.prompts.decomposition_quality import JudgeDecomposition
from synthesis.prompts.parameter_omission import OmitParameter
from synthesis.prompts.qa_instance import WriteQAInstance
from synthesis.prompts.stateful_task_writing import WriteStatefulTask
from synthesis.prompts.tool_call_writing import WriteToolCall
from synthesis.prompts.tool_document_writing import WriteToolDocument
from synthesis.prompts.tool_implementation_writing import WriteToolImplementation
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_necessity import JudgeToolNecessity
from synthesis.record_io import RecordSource, read_card, write_records
from synthesis.records import (
    Environment,
    JsonValue,
    Language,
    Provenance,
    QualityScore,
    Scenario,
    SimilarityBand,
    canonical_json,
    record_id,
)
from synthesis.stage import Journal, Rejected, StageReport, StageResults, run_stage
from synthesis.teacher import BadReply, Teacher
from synthesis.teacher.openai import OpenAITeacherConfig
from synthesis.teacher.usage import metered_usage

MAX_DRAWS: Final = 40

PROVEN_QUALITY: Final = QualityScore(
    dependency_consistency=1, atomicity=1, sequential_rationality=1, task_completeness=1
)
"""QS(τ) of a stateful task, whose proof executes each indicator: a dependent call fails on the initial state, each
sub-question is one call, the calls succeed in order, and Φ gives the main answer."""

PROMPT_VERSION: Final = " ".join(
    request.prompt_version
    for request in (
        WriteQAInstance,
        JudgeDecomposition,
        JudgeToolNecessity,
        WriteToolDocument,
        WriteToolCall,
        WriteToolImplementation,
        MergeTools,
        WriteStatefulTask,
        OmitParameter,
    )
)


class EnvironmentsConfig(BaseModel):
    """What to synthesise; by default with the paper's shares of languages, domains and parallel multi-hop questions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int
    count: int = Field(ge=1)
    out: Path
    teacher: OpenAITeacherConfig | None = None
    """A language model as the teacher; without one the embedded teacher answers."""
    knowledge: tuple[Path, ...] = ()
    """Files and folders that questions are made from, in turn; without, the names of `domains` are the knowledge."""
    disjoint_from: tuple[Path, ...] = ()
    """Record directories of environments with which no entity and no answer may be shared."""
    scenarios: dict[Scenario, float] = {
        "single_hop": 0.174,
        "parallel_single_hop": 0.174,
        "multi_hop": 0.174,
        "parallel_multi_hop": 0.478,
    }
    languages: dict[Language, float] = {"en": 0.712, "zh": 0.288}
    domains: dict[str, float] = {
        "real_estate": 0.156,
        "ecommerce": 0.106,
        "healthcare": 0.081,
        "travel": 0.094,
        "education": 0.094,
        "library": 0.094,
        "logistics": 0.094,
        "finance": 0.094,
        "dining": 0.0935,
        "employment": 0.0935,
    }
    lookups: dict[Scenario, dict[int, float]] = {
        "single_hop": {1: 1.0},
        "parallel_single_hop": {2: 0.2, 3: 0.3, 4: 0.3, 5: 0.2},
        "multi_hop": {2: 0.1, 3: 0.3, 4: 0.4, 5: 0.2},
        "parallel_multi_hop": {3: 0.10, 4: 0.30, 5: 0.16, 6: 0.24, 8: 0.20},
    }
    """Tool calls per environment of each scenario."""
    computations: float = Field(default=0.59, ge=0, le=1)
    """Share of the parallel environments that end in a sub-question that needs no tool."""
    name_parts: dict[Language, int] = {}
    """How many first and second parts entity names are made of, where it is to be fewer than there are."""
    varieties: dict[Variety, float] = {"plain": 1.0}
    """Shares of stateful environments, and of those where a tool is withheld or a parameter is left out."""
    max_hops: int = Field(default=5, ge=1)
    quality_threshold: float = Field(default=0.9, ge=0, le=1)
    irrelevant_per_band: dict[SimilarityBand, int] = {"high": 2, "medium": 2, "low": 2}
    """At most so many distractors of each band (K)."""
    embedding: EmbeddingEndpoint | None = None
    """Who says how similar tools are; None for the local embedding."""
    concurrency: int = Field(default=16, ge=1)


async def synthesize_environments(config: EnvironmentsConfig, teacher: Teacher, sandbox_url: str) -> StageReport:
    """Synthesise environments into a record directory; run again after an interruption, it goes on where it was.

    Raises:
        TeacherUnavailable, SandboxUnavailable: the run stops; what is finished is kept for the next one.
        RecordDirectoryError: a directory of `disjoint_from` is missing or damaged.
    """
    started = time.monotonic()
    fingerprint = config_fingerprint(config)
    paths = [config.out.with_name(f"{config.out.name}.{stage}.journal") for stage in ("proven", "mixed")]
    report = StageReport("environments", out=str(config.out))
    async with AsyncSandboxClient(sandbox_url) as client:
        with (
            closing(Journal(paths[0], f"proven {fingerprint} {teacher.name}")) as proven_journal,
            closing(Journal(paths[1], f"mixed {fingerprint} {teacher.name}")) as mixed_journal,
        ):
            sandbox = CallBatches(client)
            proven = await _prove_all(config, teacher, sandbox, report, proven_journal)
            mixed = await _mix_all(config, proven, sandbox, report, mixed_journal)
            write_records(
                config.out,
                (Environment.model_validate(result) for result in mixed),
                kind="environment",
                config_hash=fingerprint,
                rejected=report.rejected,
            )
    for path in paths:
        path.unlink()
    report.seconds = time.monotonic() - started
    return report


async def _prove_all(
    config: EnvironmentsConfig, teacher: Teacher, sandbox: Sandbox, report: StageReport, journal: Journal
) -> list[tuple[Environment, Variety]]:
    taken = TakenValues(config.disjoint_from)
    sources = read_knowledge(config.knowledge) if config.knowledge else []
    plans = plan_environments(
        config.count,
        config.seed,
        scenarios=config.scenarios,
        languages=config.languages,
        domains=config.domains,
        lookups=config.lookups,
        computations=config.computations,
        varieties=config.varieties,
    )

    async def prove(plan: EnvironmentPlan) -> JsonValue:
        source = sources[plan.index % len(sources)] if sources else _domain_alone(config, plan)
        try:
            with metered_usage() as usage:
                environment = await synthesize_environment(config, plan, source, taken, teacher, sandbox)
        except BadReply as error:
            raise Rejected("unusable reply", str(error)) from error
        provenance = environment.provenance.model_copy(update=asdict(usage))
        paid = environment.model_copy(update={"provenance": provenance})
        return {"environment": paid.model_dump(mode="json"), "variety": plan.variety}

    results = await run_stage(report, plans, prove, journal=journal, concurrency=config.concurrency)
    return [(Environment.model_validate(result["environment"]), result["variety"]) for result in results]


def _domain_alone(config: EnvironmentsConfig, plan: EnvironmentPlan) -> Knowledge:
    return Knowledge(domain=plan.domain, language=plan.language, name_parts=config.name_parts.get(plan.language))


async def _mix_all(
    config: EnvironmentsConfig,
    proven: Sequence[tuple[Environment, Variety]],
    sandbox: Sandbox,
    report: StageReport,
    journal: Journal,
) -> StageResults[tuple[Environment, Variety]]:
    """Draw distractors for each environment, withhold a tool where that is planned, replay the result.

    What fails only now is counted into `report`.
    """
    executable = ExecutableTools(sandbox)
    pools = {
        language: ToolPool(
            [environment for environment, _ in proven if environment.language == language], config.embedding
        )
        for language in sorted({environment.language for environment, _ in proven})
    }

    async def mix(item: tuple[Environment, Variety]) -> JsonValue:
        environment, variety = item
        rng = random.Random(f"irrelevant/{config.seed}/{environment.id}")
        drawn = pools[environment.language].draw(environment, config.irrelevant_per_band, rng)
        mixed = environment.model_copy(update={"irrelevant_tools": drawn})
        if variety == "withheld_tool":
            mixed = withhold_tool(mixed, rng)
        await replay_environment(mixed, sandbox, executable)
        return mixed.model_dump(mode="json")

    mixing = StageReport("irrelevant tools")
    results = await run_stage(mixing, proven, mix, journal=journal, concurrency=config.concurrency)
    report.kept = mixing.kept
    report.rejected += mixing.rejected
    return results


async def synthesize_environment(
    config: EnvironmentsConfig,
    plan: EnvironmentPlan,
    source: Knowledge,
    taken: TakenValues,
    teacher: Teacher,
    sandbox: Sandbox,
) -> Environment:
    """Synthesise one environment from a source of knowledge, proven and merged, without distractors.

    Raises:
        BadReply: a question to the teacher got no usable answer.
        Rejected: the environment did not pass one of the stages.
    """
    for draw in range(MAX_DRAWS):
        seed = int.from_bytes(sha256(f"{config.seed}/{plan.index}/{draw}".encode()).digest()[:6])
        knowledge = source.model_copy(update={"seed": seed})
        if plan.variety == "stateful":
            task, sub_questions, final_state = await write_stateful_task(teacher, sandbox, knowledge, plan, seed=seed)
            if not taken.shared_with(task.instance):
                environment = _environment(plan, teacher, knowledge, seed, task.instance, PROVEN_QUALITY)
                stateful = {"sub_questions": sub_questions, "tools": task.tools, "state": task.state}
                return environment.model_copy(update={**stateful, "final_state": final_state})
            continue
        instance = await write_qa_instance(teacher, knowledge, plan, max_hops=config.max_hops, seed=seed)
        if taken.shared_with(instance):
            continue
        quality = await score_quality(teacher, knowledge, instance, threshold=config.quality_threshold, seed=seed)
        sub_environments = await build_sub_environments(teacher, sandbox, knowledge, instance, seed=seed)
        sub_questions, tools = await merge_sub_environments(teacher, sandbox, sub_environments, seed=seed)
        environment = _environment(plan, teacher, knowledge, seed, instance, quality).model_copy(
            update={"sub_questions": sub_questions, "tools": tools}
        )
        if plan.variety == "missing_parameter":
            return await omit_parameter(teacher, knowledge, environment, seed=seed)
        return environment
    raise Rejected("entity or answer of another split", f"after {MAX_DRAWS} draws")


def _environment(
    plan: EnvironmentPlan,
    teacher: Teacher,
    knowledge: Knowledge,
    seed: int,
    instance: QAInstance,
    quality: QualityScore,
) -> Environment:
    """An environment that has its question and answer, but not yet its sub-questions and tools."""
    knowledge_id = record_id("knowledge", knowledge.model_dump(mode="json"))
    return Environment(
        id=record_id("environment", knowledge_id, PROMPT_VERSION, teacher.name, plan.index, seed),
        domain=knowledge.domain,
        language=knowledge.language,
        scenario=instance.scenario,
        hops=instance.hops,
        question=instance.question,
        answer=instance.answer,
        composition=instance.composition,
        sub_questions=(),
        tools=(),
        quality=quality,
        entities=instance.entities,
        provenance=Provenance(teacher=teacher.name, prompt_version=PROMPT_VERSION, seed=seed, parents=(knowledge_id,)),
    )


class TakenValues:
    """The entities and answers of other splits."""

    def __init__(self, directories: Sequence[Path]):
        self._taken: set[str] = set()
        for directory in directories:
            for environment in RecordSource(directory, Environment):
                answers = [environment.answer, *(item.answer for item in environment.sub_questions)]
                self._taken |= _value_keys(environment.entities, answers)

    def shared_with(self, instance: QAInstance) -> set[str]:
        """Return which of an instance's entities and answers are taken."""
        answers = [instance.answer, *(node.answer for node in instance.nodes)]
        return self._taken & _value_keys(instance.entities, answers)


def _value_keys(entities: Sequence[str], answers: Sequence[JsonValue]) -> set[str]:
    values: list[JsonValue] = [*entities]
    for answer in answers:
        values += answer if isinstance(answer, list | tuple) else [answer]
    return {str(value).casefold() for value in values if not isinstance(value, bool)}


def config_fingerprint(config: EnvironmentsConfig) -> str:
    """Hash what decides the records: the config, what its paths hold, and not where they lie."""
    decisive = config.model_dump(mode="json", exclude={"out", "concurrency", "teacher", "disjoint_from", "knowledge"})
    sources = [item.model_dump(mode="json") for item in read_knowledge(config.knowledge)] if config.knowledge else []
    apart = [sorted(read_card(directory).shards.values()) for directory in config.disjoint_from]
    return sha256(canonical_json([decisive, sources, apart]).encode()).hexdigest()
