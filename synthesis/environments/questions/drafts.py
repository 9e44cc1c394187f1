"""Drafts: questions that are written and scored before any tool is made."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from pydantic import Field

from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.questions.qa_instances import check_dependencies, write_qa_instance
from synthesis.environments.questions.tool_documents import write_document
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.environments.selection.splits import TakenValues
from synthesis.prompts.decompositions import JudgeDecomposition, JudgeNaturalness
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import QualityScore, Record, ToolDocument
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.teacher.usage import Usage, metered_usage

MAX_DRAWS: Final = 40
ENTITY_OR_ANSWER: Final = "entity or answer of another split"
TOOL: Final = "tool of another split"


class Draft(Record):
    """A question with its decomposition, its score, and the cost of both."""

    seed: int
    instance: QAInstance
    quality: QualityScore
    naturalness: float | None = None
    """Score of the question's wording; None if it was not asked for."""
    usage: Usage
    documents: dict[str, ToolDocument] = Field(default_factory=dict)
    """Tool documents of the lookups by sub-question, if they must be unseen; else they are written with the tools."""


async def write_draft(
    teacher: Teacher,
    source: Knowledge,
    plan: EnvironmentPlan,
    taken: TakenValues,
    config: EnvironmentsConfig,
) -> Draft:
    """Have a question of the planned shape written and scored that shares nothing with other splits.

    If its tools must be unseen, their documents are written at once, since the question decides which tools it needs.

    Raises:
        Rejected: its structure or its dependencies break a rule, or every draw shares something.
    """
    shared = ""
    # Around all draws: a draw that is thrown away has a cost, too.
    with metered_usage() as usage:
        for drawn in draw_seeds(config.seed, plan):
            knowledge = source.model_copy(update={"seed": drawn})
            instance = await write_qa_instance(teacher, knowledge, plan, max_hops=config.max_hops, seed=drawn)
            if taken.shared_with(instance):
                shared = ENTITY_OR_ANSWER
                continue
            documents = {
                node.id: await write_document(
                    teacher, knowledge, node, seed=drawn + position, scaled=config.scaled_documents
                )
                for position, node in enumerate(instance.nodes)
                if taken.unseen != "worlds" and node.kind == "lookup"
            }
            if taken.shared_tools(documents.values()):
                shared = TOOL
                continue
            check_dependencies(instance)
            judge_quality = JudgeDecomposition(knowledge=knowledge, instance=instance)
            quality = (await teacher.ask(judge_quality, seed=drawn)).quality
            naturalness = None
            if config.naturalness_threshold:
                judge = JudgeNaturalness(question=instance.question, language=knowledge.language)
                naturalness = (await teacher.ask(judge, seed=drawn)).naturalness
            return Draft(
                seed=drawn,
                instance=instance,
                quality=quality,
                naturalness=naturalness,
                usage=usage,
                documents=documents,
            )
    raise Rejected(shared, f"after {MAX_DRAWS} draws")


def draw_seeds(seed: int, plan: EnvironmentPlan) -> Iterator[int]:
    """Yield the seed of each draw of one environment: at most `MAX_DRAWS`, each less than 2^48."""
    for draw in range(MAX_DRAWS):
        yield int.from_bytes(sha256(f"{seed}/{plan.index}/{draw}".encode()).digest()[:6])
