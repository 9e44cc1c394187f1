"""The environments track in stage order: knowledge in, a record directory of proven environments out.

    quotas ─► knowledge ─► QA instance ─► quality score                               one item of the first stage
           ─► quality threshold
           ─► sub-environments ─► merging                                             one item of the second stage
           ─► irrelevant tools ─► every gold call replayed on the final artefact      one item of the third stage
           ─► record directory

An item's outcome depends on the config, its index and the teacher's replies alone, so a run that was killed and started
again writes the same bytes. `disjoint_from` names record directories whose entities and answers must not occur here:
an instance that shares one is drawn again, and after `MAX_DRAWS` draws the item is rejected.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from sandbox.client import AsyncSandboxClient
from synthesis.environments.call_batches import CallBatches, Sandbox
from synthesis.environments.decomposition import QAInstance
from synthesis.environments.drafts import MAX_DRAWS, Draft, draw_seeds, write_draft
from synthesis.environments.embeddings import EmbeddingEndpoint
from synthesis.environments.irrelevant_tools import ToolPool
from synthesis.environments.knowledge import Knowledge, read_knowledge
from synthesis.environments.merging import merge_sub_environments
from synthesis.environments.quality import Percentile, least_quality
from synthesis.environments.quotas import EnvironmentPlan, Variety, plan_environments
from synthesis.environments.refusals import omit_parameter, withhold_tool
from synthesis.environments.splits import TakenValues
from synthesis.environments.stateful import write_stateful_task
from synthesis.environments.sub_environments import build_sub_environments
from synthesis.environments.verification import ExecutableTools, replay_environment
from synthesis.prompts.decomposition_quality import JudgeDecomposition
from synthesis.prompts.parameter_omission import OmitParameter
from synthesis.prompts.qa_instance import WriteQAInstance
from synthesis.prompts.stateful_task_writing import WriteStatefulTask
from synthesis.prompts.tool_call_writing import WriteToolCall
from synthesis.prompts.tool_document_scaling import ScaleToolDocument
from synthesis.prompts.tool_document_writing import WriteToolDocument
from synthesis.prompts.tool_implementation_writing import WriteToolImplementation
from synthesis.prompts.tool_merging import MergeTools
from synthesis.prompts.tool_necessity import JudgeToolNecessity
from synthesis.record_io import read_card, write_records
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

Made = TypeVar("Made")

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
    quality_threshold: Annotated[float, Field(ge=0, le=1)] | Percentile = 0.9
    """The least QS(τ) that is kept: a value, or `{ percentile = 10 }`, below which lies a tenth of what was scored."""
    scaled_documents: float = Field(default=0.0, ge=0, le=1)
    """Share of the tools whose documents get optional parameters, such as units and pages."""
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
    journals = {
        stage: config.out.with_name(f"{config.out.name}.{stage}.journal") for stage in ("drafted", "proven", "mixed")
    }
    report = StageReport("environments", out=str(config.out))
    async with AsyncSandboxClient(sandbox_url) as client:
        with ExitStack() as stack:
            drafted_journal, proven_journal, mixed_journal = (
                stack.enter_context(closing(Journal(path, f"{stage} {fingerprint} {teacher.name}")))
                for stage, path in journals.items()
            )
            sandbox = CallBatches(client)
            sources = read_knowledge(config.knowledge) if config.knowledge else []
            drafts = await _draft_all(config, sources, teacher, report, drafted_journal)
            proven = await _prove_all(config, sources, drafts, teacher, sandbox, report, proven_journal)
            mixed = await _mix_all(config, proven, sandbox, report, mixed_journal)
            write_records(
                config.out,
                (Environment.model_validate(result) for result in mixed),
                kind="environment",
                config_hash=fingerprint,
                rejected=report.rejected,
            )
    for path in journals.values():
        path.unlink()
    report.seconds = time.monotonic() - started
    return report


async def _draft_all(
    config: EnvironmentsConfig, sources: Sequence[Knowledge], teacher: Teacher, report: StageReport, journal: Journal
) -> list[tuple[EnvironmentPlan, Draft | None]]:
    """Have every question written and scored, and keep those of sufficient quality; a stateful task has no draft."""
    taken = TakenValues(config.disjoint_from)
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

    async def write(plan: EnvironmentPlan) -> JsonValue:
        if plan.variety == "stateful":
            return {"index": plan.index, "draft": None}
        source = _source(config, sources, plan)
        work = write_draft(teacher, source, plan, taken, max_hops=config.max_hops, seed=config.seed)
        draft = await _closed(work)
        return {"index": plan.index, "draft": draft.model_dump(mode="json")}

    results = await run_stage(report, plans, write, journal=journal, concurrency=config.concurrency)
    drafts = [(plans[result["index"]], result["draft"] and Draft.model_validate(result["draft"])) for result in results]
    scores = [draft.quality.mean for _, draft in drafts if draft is not None]
    least = least_quality(scores, config.quality_threshold)
    good = [(plan, draft) for plan, draft in drafts if draft is None or draft.quality.mean >= least]
    if len(good) < len(drafts):
        report.rejected["quality below threshold"] += len(drafts) - len(good)
    return good


async def _prove_all(
    config: EnvironmentsConfig,
    sources: Sequence[Knowledge],
    drafts: Sequence[tuple[EnvironmentPlan, Draft | None]],
    teacher: Teacher,
    sandbox: Sandbox,
    report: StageReport,
    journal: Journal,
) -> list[tuple[Environment, Variety]]:
    """Make each draft executable; what fails only now is counted into `report`."""
    taken = TakenValues(config.disjoint_from)

    async def prove(item: tuple[EnvironmentPlan, Draft | None]) -> JsonValue:
        plan, draft = item
        source = _source(config, sources, plan)
        with metered_usage() as usage:
            if draft is None:
                work = make_stateful(config, plan, source, taken, teacher, sandbox)
            else:
                usage.add(**asdict(draft.usage))
                work = make_executable(config, plan, draft, source, teacher, sandbox)
            environment = await _closed(work)
        provenance = environment.provenance.model_copy(update=asdict(usage))
        paid = environment.model_copy(update={"provenance": provenance})
        return {"environment": paid.model_dump(mode="json"), "variety": plan.variety}

    proving = StageReport("proofs")
    results = await run_stage(proving, drafts, prove, journal=journal, concurrency=config.concurrency)
    report.rejected += proving.rejected
    return [(Environment.model_validate(result["environment"]), result["variety"]) for result in results]


async def _closed(work: Awaitable[Made]) -> Made:
    """Await work that a reply without use ends; the item it was for is rejected."""
    try:
        return await work
    except BadReply as error:
        raise Rejected("unusable reply", str(error)) from error


def _source(config: EnvironmentsConfig, sources: Sequence[Knowledge], plan: EnvironmentPlan) -> Knowledge:
    return sources[plan.index % len(sources)] if sources else _domain_alone(config, plan)


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


async def make_executable(
    config: EnvironmentsConfig,
    plan: EnvironmentPlan,
    draft: Draft,
    source: Knowledge,
    teacher: Teacher,
    sandbox: Sandbox,
) -> Environment:
    """Give a draft its tools, proven and merged, without distractors.

    Raises:
        BadReply: a question to the teacher got no usable answer.
        Rejected: the environment did not pass one of the stages.
    """
    seed, instance = draft.seed, draft.instance
    knowledge = source.model_copy(update={"seed": seed})
    sub_environments = await build_sub_environments(
        teacher, sandbox, knowledge, instance, seed=seed, scaled_documents=config.scaled_documents
    )
    sub_questions, tools = await merge_sub_environments(teacher, sandbox, sub_environments, seed=seed)
    environment = _environment(config, plan, teacher, knowledge, seed, instance, draft.quality).model_copy(
        update={"sub_questions": sub_questions, "tools": tools}
    )
    if plan.variety == "missing_parameter":
        return await omit_parameter(teacher, knowledge, environment, seed=seed)
    return environment


async def make_stateful(
    config: EnvironmentsConfig,
    plan: EnvironmentPlan,
    source: Knowledge,
    taken: TakenValues,
    teacher: Teacher,
    sandbox: Sandbox,
) -> Environment:
    """Have a task that changes a state written and proven that shares nothing with other splits.

    Raises:
        BadReply, Rejected: as `make_executable`.
    """
    for seed in draw_seeds(config.seed, plan):
        knowledge = source.model_copy(update={"seed": seed})
        task, sub_questions, final_state = await write_stateful_task(teacher, sandbox, knowledge, plan, seed=seed)
        if not taken.shared_with(task.instance):
            environment = _environment(config, plan, teacher, knowledge, seed, task.instance, PROVEN_QUALITY)
            stateful = {"sub_questions": sub_questions, "tools": task.tools, "state": task.state}
            return environment.model_copy(update={**stateful, "final_state": final_state})
    raise Rejected("entity or answer of another split", f"after {MAX_DRAWS} draws")


def _environment(
    config: EnvironmentsConfig,
    plan: EnvironmentPlan,
    teacher: Teacher,
    knowledge: Knowledge,
    seed: int,
    instance: QAInstance,
    quality: QualityScore,
) -> Environment:
    """An environment that has its question and answer, but not yet its sub-questions and tools."""
    knowledge_id = record_id("knowledge", knowledge.model_dump(mode="json"))
    prompt_version = (
        f"{PROMPT_VERSION} {ScaleToolDocument.prompt_version}" if config.scaled_documents else PROMPT_VERSION
    )
    return Environment(
        id=record_id("environment", knowledge_id, prompt_version, teacher.name, plan.index, seed),
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
        provenance=Provenance(teacher=teacher.name, prompt_version=prompt_version, seed=seed, parents=(knowledge_id,)),
    )


def config_fingerprint(config: EnvironmentsConfig) -> str:
    """Hash what decides the records: the config, what its paths hold, and not where they lie."""
    decisive = config.model_dump(mode="json", exclude={"out", "concurrency", "teacher", "disjoint_from", "knowledge"})
    sources = [item.model_dump(mode="json") for item in read_knowledge(config.knowledge)] if config.knowledge else []
    apart = [sorted(read_card(directory).shards.values()) for directory in config.disjoint_from]
    return sha256(canonical_json([decisive, sources, apart]).encode()).hexdigest()
