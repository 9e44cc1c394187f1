"""Refusal environments: a needed tool is withheld, or the question leaves a needed value out.

The right behaviour is to say so at once, or to ask; every call is in vain. `answers.expectation` judges the
episode's last words by rule.
"""

from __future__ import annotations

import random

from synthesis.environments.qa_instances import mentions
from synthesis.prompts.parameter_omission import OmitParameter
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, Expectation
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher


def withhold_tool(environment: Environment, rng: random.Random) -> Environment:
    """Take one needed tool away; what is left cannot answer the question."""
    withheld = rng.choice(environment.tools).document.name
    tools = tuple(tool for tool in environment.tools if tool.document.name != withheld)
    return _unanswerable(environment, "refuse", withheld).model_copy(update={"tools": tools})


async def omit_parameter(teacher: Teacher, knowledge: Knowledge, environment: Environment, *, seed: int) -> Environment:
    """Leave out of the question a value that a first call needs and that no tool can tell.

    Raises:
        BadReply: the teacher has no such question.
        Rejected: the new question still tells the value, or the value is no argument of the call; or it tells an answer
            that the old one did not tell.
        TeacherUnavailable: the teacher cannot be asked.
    """
    first = environment.sub_tasks[0]
    if first.call is None:
        raise ValueError(f"expected a sub-task with a call, found none on {first.id}")
    reply = await teacher.ask(
        OmitParameter(knowledge=knowledge, question=environment.question, call=first.call), seed=seed
    )
    if first.call.arguments.get(reply.argument) != reply.value or mentions(reply.question, reply.value):
        raise Rejected("nothing left out", f"{reply.argument}={reply.value!r} in {reply.question!r}")
    # Without the value nothing can be looked up, so no new word may give an answer away.
    for sub_question in environment.sub_questions:
        if mentions(reply.question, sub_question.answer) and not mentions(environment.question, sub_question.answer):
            raise Rejected("leaked answer", reply.question)
    return _unanswerable(environment, "ask_back", reply.argument).model_copy(update={"question": reply.question})


def _unanswerable(environment: Environment, expectation: Expectation, missing: str) -> Environment:
    # Without calls there are no sub-tasks: only the ending of the episode is counted.
    sub_questions = tuple(sub_question.model_copy(update={"call": None}) for sub_question in environment.sub_questions)
    return environment.model_copy(
        update={"sub_questions": sub_questions, "expectation": expectation, "missing": missing}
    )
