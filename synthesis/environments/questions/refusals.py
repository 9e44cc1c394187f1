"""Refusal environments: a needed tool is withheld, or the question leaves a needed value out.

If a tool is withheld, the right behaviour is to use the other tools as far as they lead, and to refuse the rest. If a
value is left out, it is to ask for the value; the user tells it, and the episode goes on with the calls of before.
"""

from __future__ import annotations

import random

from synthesis.environments.questions.qa_instances import mentions
from synthesis.prompts.decompositions import OmitParameter, OmittedParameter
from synthesis.questions.decomposition import ways_to_answer
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Environment, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Teacher
from synthesis.track.replies import accepted_reply
from synthesis.written_language import require_language


def withhold_tool(environment: Environment, rng: random.Random) -> Environment:
    """Take one needed tool away; sub-questions that need it, or the answer of one that does, have no call any more."""
    withheld = rng.choice(environment.tools).document.name
    tools = tuple(tool for tool in environment.tools if tool.document.name != withheld)
    lost: set[str] = set()
    for sub_question in environment.sub_questions:  # in an order in which they can be answered
        needs_it = sub_question.call is not None and sub_question.call.name == withheld
        if needs_it or lost.intersection(sub_question.depends_on):
            lost.add(sub_question.id)
    # The sub-questions that keep their call still count, and so does the refusal.
    sub_questions = tuple(
        sub_question.model_copy(update={"call": None, "path": (), "reply": None})
        if sub_question.id in lost
        else sub_question
        for sub_question in environment.sub_questions
    )
    return environment.model_copy(
        update={"tools": tools, "sub_questions": sub_questions, "expectation": "refuse", "missing": withheld}
    )


async def omit_parameter(teacher: Teacher, knowledge: Knowledge, environment: Environment, *, seed: int) -> Environment:
    """Leave out of the question a value that a first call needs, which the user tells when asked for it.

    Raises:
        Rejected: the new question still tells the value, or the value is no argument of the call; or it leaves out
            more than that, or tells an answer that the old one did not tell.
    """
    first = [task.call for task in environment.sub_tasks if task.call and not task.depends_on]
    if not first:
        raise ValueError(f"{environment.id} has no first call; take an environment that has one")

    # A value that other first calls have for an argument of the same name would be taken for the one that is left out.
    def others(call: ToolCall) -> int:
        return sum(bool(call.arguments.keys() & other.arguments.keys()) for other in first if other != call)

    call = min(first, key=others)
    arguments = call.arguments
    given = [value for task in environment.sub_tasks if task.call for value in task.call.arguments.values()]
    told = [each for each in (*environment.entities, *given) if mentions(environment.question, each)]

    def checked(reply: OmittedParameter) -> OmittedParameter:
        if arguments.get(reply.argument) != reply.value or mentions(reply.question, reply.value):
            raise Rejected("nothing left out", f"{reply.argument}={reply.value!r} in {reply.question!r}")
        # The user tells this one value: no other that a call needs may be lost with it.
        if lost := [each for each in told if not mentions(reply.value, each) and not mentions(reply.question, each)]:
            raise Rejected("more left out than one value", f"{lost} not in {reply.question!r}")
        # Without the value nothing can be looked up, so no new word may give an answer away.
        for asked in environment.sub_questions:
            ways = ways_to_answer(asked)
            if mentions(reply.question, ways) and not mentions(environment.question, ways):
                raise Rejected("leaked answer", reply.question)
        given, where = list(environment.entities), f" in {reply.question!r}"
        require_language(reply.question, environment.language, given, what="question", where=where)
        return reply

    request = OmitParameter(knowledge=knowledge, question=environment.question, call=call)
    reply = await accepted_reply(teacher, request, checked, seed=seed)
    left_out = {"missing": reply.argument, "left_out": reply.value}
    return environment.model_copy(update={"question": reply.question, "expectation": "ask_back", **left_out})
