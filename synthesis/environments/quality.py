"""The quality score QS(τ) of a decomposition: rules first, the teacher's judgement for what no rule can see."""

from __future__ import annotations

from synthesis.environments.decomposition import QAInstance
from synthesis.environments.knowledge import Knowledge
from synthesis.environments.qa_instances import mentions
from synthesis.prompts.decomposition_quality import JudgeDecomposition
from synthesis.records import QualityScore
from synthesis.stage import Rejected
from synthesis.teacher import Teacher


async def score_quality(
    teacher: Teacher, knowledge: Knowledge, instance: QAInstance, *, threshold: float, seed: int
) -> QualityScore:
    """Return QS(τ) of an instance that is good enough; there is no score without a judgement.

    Raises:
        BadReply: the teacher's judgement cannot be used.
        Rejected: a rule is broken, or the mean of the four indicators is below the threshold.
    """
    check_dependencies(instance)
    quality = await teacher.ask(JudgeDecomposition(knowledge=knowledge, instance=instance), seed=seed)
    if quality.mean < threshold:
        raise Rejected("quality below threshold", f"expected a mean of at least {threshold}, found {quality.mean:.3f}")
    return quality


def check_dependencies(instance: QAInstance) -> None:
    """Check that each sub-question needs what it depends on, and can name nothing that is not known in its turn.

    Raises:
        Rejected: a dependency whose answer the question does not use, or a name that is used before it was found.
    """
    answers = {node.id: node.answer for node in instance.nodes}
    for node in instance.nodes:
        for parent in node.depends_on:
            if not mentions(node.question, answers[parent]):
                raise Rejected("dependency not needed", f"{node.id} does not use {parent}'s answer {answers[parent]!r}")
        if node.kind == "computation":
            continue
        for name in instance.entities:
            known = mentions(instance.question, name) or any(mentions(str(answers[p]), name) for p in node.depends_on)
            if mentions(node.question, name) and not known:
                raise Rejected("name used before it was found", f"{node.id} names {name!r}")
