"""QA instances: a main question with its decomposition, its structure checked by rule.

The structural validator asks no language model. Each rule has a name; an instance that breaks one is rejected under it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from synthesis.answers.same_answer import same_answer
from synthesis.environments.selection.quotas import EnvironmentPlan
from synthesis.nfkc import nfkc
from synthesis.prompts.decompositions import WriteQAInstance
from synthesis.questions.decomposition import (
    CompositionError,
    DecompositionNode,
    QAInstance,
    compose,
    depths,
    scenario_of,
    ways_to_answer,
)
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Composition, Environment, JsonValue, Language, SubQuestion
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.track.replies import accepted_reply
from synthesis.written_language import require_language

_SCALARS: Final = (str, int, float, bool)


async def write_qa_instance(
    teacher: Teacher, knowledge: Knowledge, plan: EnvironmentPlan, *, max_hops: int, seed: int
) -> QAInstance:
    """Have a QA instance of the planned shape written, and check its structure; once more if it breaks a rule.

    Raises:
        Rejected: it breaks a rule, has another shape than planned, or is in another language.
    """
    request = WriteQAInstance(
        knowledge=knowledge,
        scenario=plan.scenario,
        num_lookups=plan.num_lookups,
        with_computation=plan.with_computation,
        max_hops=max_hops,
    )

    def checked(instance: QAInstance) -> QAInstance:
        check_structure(instance)
        if instance.scenario != plan.scenario:
            raise Rejected("other scenario than planned", f"expected {plan.scenario}, found {instance.scenario}")
        if instance.hops > max_hops:
            raise Rejected("more hops than planned", f"expected at most {max_hops}, found {instance.hops}")
        lookups = sum(node.kind == "lookup" for node in instance.nodes)
        if lookups != plan.num_lookups:
            raise Rejected("other number of lookups than planned", f"expected {plan.num_lookups}, found {lookups}")
        check_languages(instance, knowledge.language)
        return instance

    return await accepted_reply(teacher, request, checked, seed=seed)


def check_languages(instance: QAInstance, language: Language) -> None:
    """Check that every question is in its language; names and answers may be in any language."""
    given = [*instance.entities, instance.answer, *(node.answer for node in instance.nodes)]
    for asked in (instance.question, *(node.question for node in instance.nodes)):
        require_language(asked, language, given, what="question", where=f" in {asked[:80]!r}")


def check_structure(instance: QAInstance) -> None:
    """Check every structural rule that can be checked without understanding the questions."""
    _check_graph(instance)
    _check_answers(instance)
    _check_shape(instance)
    _check_composition(instance)
    _check_mentions(instance)


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


def mentions(text: str, value: JsonValue) -> bool:
    """Say whether a text tells a value: as a whole word or number, in any case and width.

    >>> mentions("Rent of 15 flats", 5), mentions("Rent is 5.", 5), mentions("the AMBER fox", "Amber Fox")
    (False, True, True)
    >>> mentions("青山明月2021年的租金", "青山明月"), mentions("one or two", ["three", "two"])
    (True, True)
    """
    if isinstance(value, list | tuple):
        return any(mentions(text, item) for item in value)
    if value is None or isinstance(value, bool):  # no words are theirs alone
        return False
    # Only ASCII letters and digits guard the value, and are guarded: Chinese puts nothing between words and numbers.
    wanted = _plain(value if isinstance(value, str) else repr(value))
    before = r"(?<![0-9a-z])(?<![0-9]\.)" if wanted[:1].isascii() else ""
    after = r"(?!\.?[0-9a-z])" if wanted[-1:].isascii() else ""
    return bool(wanted) and re.search(f"{before}{re.escape(wanted)}{after}", _plain(text)) is not None


def _plain(text: str) -> str:
    return " ".join(nfkc(text).casefold().split())


def _check_graph(instance: QAInstance) -> None:
    ids = [node.id for node in instance.nodes]
    if not ids:
        raise Rejected("no sub-question")
    if doubled := sorted({name for name in ids if ids.count(name) > 1}):
        raise Rejected("duplicated id", f"{doubled}")
    for node in instance.nodes:
        if dangling := sorted(set(node.depends_on) - set(ids)):
            raise Rejected("dangling dependency", f"{node.id} depends on {dangling}")
        if len(set(node.depends_on)) < len(node.depends_on):
            raise Rejected("duplicated dependency", f"{node.id} depends on {list(node.depends_on)}")
    # Every cycle breaks the order below as well; it is looked for first to be called by its own name.
    try:
        TopologicalSorter({node.id: node.depends_on for node in instance.nodes}).prepare()
    except CycleError as error:
        raise Rejected("cyclic dependency", f"{error.args[1]}") from error
    for position, node in enumerate(instance.nodes):
        if late := sorted(set(node.depends_on) - set(ids[:position])):
            raise Rejected("dependency listed after its dependent", f"{node.id} depends on {late}")


def _check_answers(instance: QAInstance) -> None:
    for name, question, answer in [("q0", instance.question, instance.answer)] + [
        (node.id, node.question, node.answer) for node in instance.nodes
    ]:
        if not question.strip():
            raise Rejected("empty question", name)
        values = answer if isinstance(answer, list | tuple) and answer else [answer]
        if not all(isinstance(value, _SCALARS) and str(value).strip() for value in values):
            raise Rejected(
                "untyped answer", f"expected a text, number or Boolean, or a list of them, {name} has {answer!r}"
            )
    asked_for: list[QAInstance | DecompositionNode] = [instance, *instance.nodes]
    for asked in asked_for:
        if asked.aliases and not isinstance(asked.answer, str):
            raise Rejected("alias of no text", f"{asked.aliases} for {asked.answer!r}")
        if empty := [alias for alias in asked.aliases if not _plain(alias)]:
            raise Rejected("empty alias", f"{empty} for {asked.answer!r}")
    questions = [_plain(node.question) for node in instance.nodes]
    if len(set(questions)) < len(questions):
        raise Rejected("duplicated question", f"{sorted(q for q in questions if questions.count(q) > 1)[:1]}")
    lookups = [node for node in instance.nodes if node.kind == "lookup"]
    # Were two answers equal, no call could show that a joined tool tells their questions apart.
    for index, node in enumerate(lookups):
        for other in lookups[:index]:
            if any(same_answer(one, two) for one in ways_to_answer(node) for two in ways_to_answer(other)):
                raise Rejected("answer stands twice", f"{other.id} and {node.id} are both answered {node.answer!r}")


def _check_shape(instance: QAInstance) -> None:
    used = {parent for node in instance.nodes for parent in node.depends_on}
    for node in instance.nodes:
        if node.kind == "computation" and (node.id in used or not node.depends_on):
            raise Rejected("computation not at a leaf", node.id)
    lookups = [node for node in instance.nodes if node.kind == "lookup"]
    if not lookups:
        raise Rejected("no lookup")
    hops = max(depths(lookups).values())
    if instance.hops != hops:
        raise Rejected("wrong hops", f"expected {hops}, the longest path, found {instance.hops}")
    if instance.scenario != scenario_of(lookups):
        raise Rejected("wrong scenario", f"expected {scenario_of(lookups)}, found {instance.scenario}")


def _check_composition(instance: QAInstance) -> None:
    computations = [node for node in instance.nodes if node.kind == "computation"]
    if len(computations) > 1:
        raise Rejected("several computations", f"{[node.id for node in computations]}")
    used = {parent for node in instance.nodes for parent in node.depends_on}
    if instance.composition is not None:
        if len(set(instance.composition.inputs)) < len(instance.composition.inputs):
            raise Rejected("composition fails", f"an input stands twice in {instance.composition.inputs}")
        computed = computed_answer(instance, instance.composition, instance.nodes)
        used |= set(instance.composition.inputs)
        for node in computations:
            is_same = same_answer(node.answer, computed, node.aliases)
            if set(node.depends_on) != set(instance.composition.inputs) or not is_same:
                raise Rejected("computation differs from composition", node.id)
    if idle := [node.id for node in instance.nodes if node.kind == "lookup" and node.id not in used]:
        raise Rejected("idle sub-question", f"{idle} do not lead to the answer")


def computed_answer(
    whole: QAInstance | Environment, composition: Composition, parts: Sequence[DecompositionNode | SubQuestion]
) -> JsonValue:
    """Return the result of Φ on the answers to the parts, which must be the answer to the whole question."""
    try:
        computed = compose(composition, {part.id: part.answer for part in parts})
    except CompositionError as error:
        raise Rejected("composition fails", str(error)) from error
    if not same_answer(whole.answer, computed, whole.aliases):
        raise Rejected("composition gives another answer", f"expected {whole.answer!r}, found {computed!r}")
    return computed


def _check_mentions(instance: QAInstance) -> None:
    # "Which is higher, Oak or Elm?" names its answer among the others, and tells nothing by it.
    choices = instance.composition.choices if instance.composition is not None else ()
    for node in instance.nodes:
        if node.kind == "lookup" and mentions(instance.question, ways_to_answer(node)):
            raise Rejected("leaked answer", f"the main question tells {node.id}'s answer {node.answer!r}")
        if node.kind == "lookup" and mentions(node.question, ways_to_answer(node)):
            raise Rejected("leaked answer", f"{node.id} tells its own answer {node.answer!r}")
    if mentions(instance.question, ways_to_answer(instance)) and instance.answer not in choices:
        raise Rejected("leaked answer", f"the main question tells the main answer {instance.answer!r}")
    told = " \n ".join([instance.question] + [f"{node.question} \n {node.answer}" for node in instance.nodes])
    if strange := [name for name in instance.entities if not mentions(told, name)]:
        raise Rejected("entity not mentioned", f"{strange}")
