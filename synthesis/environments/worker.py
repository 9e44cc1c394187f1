"""Work on one item of the environments track: a draft, its proof, a finished environment."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.distractors.siblings import write_siblings
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.long_documents import lengthened
from synthesis.environments.proving.merging import merge_sub_environments
from synthesis.environments.proving.sub_environments import build_sub_environments
from synthesis.environments.questions.drafts import ENTITY_OR_ANSWER, MAX_DRAWS, TOOL, Draft, draw_seeds, write_draft
from synthesis.environments.questions.refusals import omit_parameter
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.selection.splits import TakenValues
from synthesis.environments.state import write_stateful_task
from synthesis.environments.verification import ExecutableTools, replay_environment
from synthesis.prompts.additions import HARD_WORDING_VERSION, PACKAGES_VERSION, UNSEEN_TOOLS_VERSION
from synthesis.prompts.decompositions import (
    JudgeDecomposition,
    JudgeNaturalness,
    JudgeToolNecessity,
    OmitParameter,
    WriteQAInstance,
)
from synthesis.prompts.rendering import version_of
from synthesis.prompts.stateful import WriteStateConditions, WriteStatefulTask
from synthesis.prompts.tool_merging import FindHomogeneousTool, MergeTools
from synthesis.prompts.tool_writing import (
    ScaleToolDocument,
    WriteSiblingTools,
    WriteToolCall,
    WriteToolDocument,
    WriteToolImplementation,
)
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, NeededPackage, Provenance, QualityScore, record_id
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Request, Teacher, reads_prompts
from synthesis.track.replies import metered_item

PROVEN_QUALITY: Final = QualityScore(
    dependency_consistency=1, atomicity=1, sequential_rationality=1, task_completeness=1
)
"""QS(τ) of a stateful task, whose proof executes each indicator: a dependent call fails on the initial state, each
sub-question is one call, the calls succeed in order, and Φ gives the main answer."""

PROMPTS: Final[tuple[type[Request[Any]], ...]] = (
    WriteQAInstance, JudgeDecomposition, JudgeToolNecessity, WriteToolDocument, WriteToolCall, WriteToolImplementation,
    FindHomogeneousTool, MergeTools, WriteStatefulTask, OmitParameter,
)  # fmt: skip
"""Every question that any run of the track may ask."""
_EMBEDDED_VERSION: Final = (
    "qa-instance-1 decomposition-quality-1 tool-necessity-1 tool-document-1 tool-call-1 tool-implementation-1 "
    "tool-merging-1 stateful-task-1 parameter-omission-1"
)
"""Version of prompts in records of the embedded teacher; their ids do not depend on wording."""


def prompt_version_of(config: EnvironmentsConfig, plan: EnvironmentPlan, teacher: Teacher, knowledge: Knowledge) -> str:
    """Name the wording of every question that an environment may rest on.

    A feature's prompts are named only in records that use it: other records keep their version, and their id.
    """
    embedded = not reads_prompts(teacher)

    def named(name: str, prompt: type[Request[Any]]) -> str:
        return f"{name}-{1 if embedded else prompt.prompt_version}"

    names = [_EMBEDDED_VERSION if embedded else version_of(*(prompt.prompt_version for prompt in PROMPTS))]
    if config.scaled_documents:
        names.append(named("tool-document-scaling", ScaleToolDocument))
    if knowledge.difficulty != "plain":
        wording = HARD_WORDING_VERSION if knowledge.difficulty == "hard" else "reworded-1"
        names += [wording, named("sibling-tools", WriteSiblingTools)]
    if config.naturalness_threshold:
        names.append(named("naturalness", JudgeNaturalness))
    if knowledge.packages:
        names.append(PACKAGES_VERSION)
    if knowledge.unseen != "worlds":
        names.append(UNSEEN_TOOLS_VERSION)
    if plan.variety.startswith("stateful"):
        names.append(named("state-conditions", WriteStateConditions))
    if plan.variety == "stateful_database":
        names.append("database-1")
    return " ".join(names)


class EnvironmentsWorker:
    """Worker on items of the track; a result depends on the configuration, its seed and the item alone.

    Its environments share nothing with `taken`; their tools may import `packages`.
    """

    def __init__(
        self,
        config: EnvironmentsConfig,
        taken: TakenValues,
        sandbox: Sandbox,
        teacher: Teacher,
        packages: tuple[NeededPackage, ...] = (),
    ):
        self._config, self._taken, self._sandbox, self._teacher = config, taken, sandbox, teacher
        self._packages = packages
        self._seen_to_run = ExecutableTools(sandbox)

    async def draft(self, plan: EnvironmentPlan, source: Knowledge) -> Draft:
        """Have a question of the planned shape written and scored."""
        source = self._checked(source)
        async with metered_item():  # makes a reply without use a rejection; the draft meters itself
            return await write_draft(self._teacher, source, plan, self._taken, self._config)

    async def prove(self, plan: EnvironmentPlan, draft: Draft | None, source: Knowledge) -> Environment:
        """Give a draft its tools, or have a stateful task written; the result is proven and has its cost.

        It has no distractors yet, except the siblings of a hard environment's tools.
        """
        source = self._checked(source)
        async with metered_item() as usage:
            if draft is None:
                environment = await self._stateful(plan, source)
            else:
                usage.add(draft.usage)  # it was spent in an earlier stage
                environment = await self._executable(plan, draft, source)
        if self._config.long_documents:
            environment = self._with_long_documents(environment)
        self._check_tools(environment)
        provenance = environment.provenance.model_copy(update=asdict(usage))
        return environment.model_copy(update={"provenance": provenance})

    def _with_long_documents(self, environment: Environment) -> Environment:
        language, seed = environment.language, self._config.seed
        tools = tuple(lengthened(tool, language, seed) for tool in environment.tools)
        siblings = tuple(
            each.model_copy(update={"tool": lengthened(each.tool, language, seed)})
            for each in environment.irrelevant_tools
        )
        return environment.model_copy(update={"tools": tools, "irrelevant_tools": siblings})

    async def replay(self, environment: Environment) -> None:
        """Replay every gold call of an environment that has its distractors."""
        self._check_tools(environment)  # again, now with the distractors
        await replay_environment(environment, self._sandbox, self._seen_to_run)

    async def _executable(self, plan: EnvironmentPlan, draft: Draft, source: Knowledge) -> Environment:
        teacher, sandbox = self._teacher, self._sandbox
        seed, instance = draft.seed, draft.instance
        knowledge = source.model_copy(update={"seed": seed})
        scaled, embedding = self._config.scaled_documents, self._config.embedding
        sub_environments = await build_sub_environments(
            teacher, sandbox, knowledge, instance, seed=seed, scaled_documents=scaled, documents=draft.documents
        )
        sub_questions, tools = await merge_sub_environments(
            teacher, sandbox, sub_environments, seed=seed, embedding=embedding, packages=knowledge.packages
        )
        environment = self._without_tools(plan, knowledge, seed, instance, draft.quality).model_copy(
            update={"sub_questions": sub_questions, "tools": tools, "naturalness": draft.naturalness}
        )
        if (difficulty := self._config.difficulty) != "plain":
            siblings = await write_siblings(teacher, sandbox, knowledge, environment, seed=seed)
            environment = environment.model_copy(update={"difficulty": difficulty, "irrelevant_tools": siblings})
        if plan.variety == "missing_parameter":
            return await omit_parameter(teacher, knowledge, environment, seed=seed)
        return environment

    async def _stateful(self, plan: EnvironmentPlan, source: Knowledge) -> Environment:
        """Have a task that changes a state written and proven that shares nothing with other splits."""
        shared = ""
        for seed in draw_seeds(self._config.seed, plan):
            knowledge = source.model_copy(update={"seed": seed})
            task = await write_stateful_task(self._teacher, self._sandbox, knowledge, plan, seed=seed)
            if self._taken.shared_with(task.instance):
                shared = ENTITY_OR_ANSWER
            elif self._taken.shared_tools(tool.document for tool in task.tools):
                shared = TOOL
            else:
                environment = self._without_tools(plan, knowledge, seed, task.instance, PROVEN_QUALITY)
                own = {field.name: getattr(task, field.name) for field in fields(task) if field.name != "instance"}
                environment = environment.model_copy(update=own)
                if knowledge.difficulty == "plain":
                    return environment
                # The last tool alone has siblings: they answer without a state, as a tool that reads may.
                last = environment.model_copy(update={"sub_questions": environment.sub_questions[-1:]})
                siblings = await write_siblings(self._teacher, self._sandbox, knowledge, last, seed=seed)
                return environment.model_copy(update={"difficulty": "hard", "irrelevant_tools": siblings})
        raise Rejected(shared, f"after {MAX_DRAWS} draws")

    def _checked(self, source: Knowledge) -> Knowledge:
        """Return knowledge that names the packages of the config; its domain must not be another split's."""
        if self._taken.has_domain(source.domain):
            raise Rejected("domain of another split", source.domain)
        return source.model_copy(update={"packages": self._packages}) if self._packages else source

    def _check_tools(self, environment: Environment) -> None:
        if shared := sorted(self._taken.shared_tools(tool.document for tool in environment.all_tools)):
            raise Rejected(TOOL, f"{environment.id} shares {shared[:3]}")

    def _without_tools(
        self, plan: EnvironmentPlan, knowledge: Knowledge, seed: int, instance: QAInstance, quality: QualityScore
    ) -> Environment:
        """Return an environment that has its question and answer, but not yet its sub-questions and tools."""
        teacher = self._teacher.name
        knowledge_id = record_id("knowledge", knowledge.model_dump(mode="json"))
        prompt_version = prompt_version_of(self._config, plan, self._teacher, knowledge)
        return Environment(
            id=record_id("environment", knowledge_id, prompt_version, teacher, plan.index, seed),
            domain=knowledge.domain,
            language=knowledge.language,
            scenario=instance.scenario,
            hops=instance.hops,
            question=instance.question,
            answer=instance.answer,
            aliases=instance.aliases,
            composition=instance.composition,
            sub_questions=(),
            tools=(),
            quality=quality,
            entities=instance.entities,
            provenance=Provenance(teacher=teacher, prompt_version=prompt_version, seed=seed, parents=(knowledge_id,)),
        )
