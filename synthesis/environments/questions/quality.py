"""The quality score QS(τ) of a decomposition: rules first, then the teacher's judgement."""

from __future__ import annotations

from synthesis.environments.questions.qa_instances import mentions, ways_to_answer
from synthesis.prompts.decompositions import JudgeDecomposition
from synthesis.questions.decomposition import QAInstance
from synthesis.questions.knowledge import Knowledge
from synthesis.records import QualityScore
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher


async def score_quality(teacher: Teacher, knowledge: Knowledge, instance: QAInstance, *, seed: int) -> QualityScore:
    """Return QS(τ) of an instance that breaks no rule; there is no score without a judgement."""
    check_dependencies(instance)
    return (await teacher.ask(JudgeDecomposition(knowledge=knowledge, instance=instance), seed=seed)).quality


def check_dependencies(instance: QAInstance) -> None:
    """Check that each sub-question uses the answers it depends on, and names nothing before it is known.

    Raises:
        Rejected: a dependency whose answer the question does not use, or a name that is used before it was found.
    """
    answers = {node.id: ways_to_answer(node) for node in instance.nodes}
    for node in instance.nodes:
        for parent in node.depends_on:
            if not mentions(node.question, answers[parent]):
                detail = f"{node.id} does not use {parent}'s answer {answers[parent][0]!r}"
                raise Rejected("dependency not needed", detail)
        if node.kind == "computation":  # it looks nothing up, so a name gives it no fact too early
            continue
        for name in instance.entities:
            known = mentions(instance.question, name) or any(mentions(str(answers[p]), name) for p in node.depends_on)
            if mentions(node.question, name) and not known:
                raise Rejected("name used before it was found", f"{node.id} names {name!r}")
