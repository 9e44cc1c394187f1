"""Drafts: questions that are written and scored, before anything is made executable."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from synthesis.environments.decomposition import QAInstance
from synthesis.environments.knowledge import Knowledge
from synthesis.environments.qa_instances import write_qa_instance
from synthesis.environments.quality import score_quality
from synthesis.environments.quotas import EnvironmentPlan
from synthesis.environments.splits import TakenValues
from synthesis.records import QualityScore, Record
from synthesis.stage import Rejected
from synthesis.teacher import Teacher
from synthesis.teacher.usage import Usage, metered_usage

MAX_DRAWS: Final = 40


class Draft(Record):
    """A question with its decomposition, its score, and what both have cost."""

    seed: int
    instance: QAInstance
    quality: QualityScore
    usage: Usage


async def write_draft(
    teacher: Teacher, source: Knowledge, plan: EnvironmentPlan, taken: TakenValues, *, max_hops: int, seed: int
) -> Draft:
    """Have a question of the planned shape written and scored that shares nothing with other splits.

    Raises:
        BadReply: a question to the teacher got no usable answer.
        Rejected: its structure or its dependencies break a rule, or every draw shares something.
    """
    with metered_usage() as usage:
        for drawn in draw_seeds(seed, plan):
            knowledge = source.model_copy(update={"seed": drawn})
            instance = await write_qa_instance(teacher, knowledge, plan, max_hops=max_hops, seed=drawn)
            if not taken.shared_with(instance):
                quality = await score_quality(teacher, knowledge, instance, seed=drawn)
                return Draft(seed=drawn, instance=instance, quality=quality, usage=usage)
    raise Rejected("entity or answer of another split", f"after {MAX_DRAWS} draws")


def draw_seeds(seed: int, plan: EnvironmentPlan) -> Iterator[int]:
    """Yield the seed of each draw of one environment."""
    for draw in range(MAX_DRAWS):
        yield int.from_bytes(sha256(f"{seed}/{plan.index}/{draw}".encode()).digest()[:6])
