"""Derived argument: the question has a part of a name alone, and one tool more tells the whole name.

    What is the rent of flat Amber Fox?      get_rent(Amber Fox)                             gold 900
    What is the rent of flat Amber?          find_flat(Amber) ─► Amber Fox ─► get_rent(…)    gold 900

The name was an argument that the question stated; now it is the answer of a sub-question, so that its proof is that of
any other tool. The names that the tool knows are rows of the one whose argument it is.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.other_rows import calls_for_other_rows
from synthesis.environments.proving.proof import PROOF_LIMITS
from synthesis.environments.questions.qa_instances import mentions, ways_to_answer
from synthesis.questions.decomposition import depths, scenario_of
from synthesis.records import (
    LEGAL_TOOL_NAME,
    Environment,
    EnvironmentTool,
    JsonObject,
    JsonValue,
    SubQuestion,
    ToolCall,
    ToolDocument,
)
from synthesis.stage import Rejected
from synthesis.written_language import texts_in

_PARAMETER: Final = "known_part"
_DESCRIPTION: Final = {
    "en": "Full name of a {kind}, from the part of it that is known",
    "zh": "由名称中已知的一部分查出全名（{kind}）",
}
_QUESTION: Final = {"en": "Which {kind} is meant by {part}?", "zh": "{part}指的是哪一个（{kind}）？"}


async def derive_argument(environment: Environment, sandbox: Sandbox, rng: random.Random) -> Environment:
    """Leave a part of a name out of the question, and add the tool that tells the whole name.

    Raises:
        Rejected: it has a state or something is missing; no name in it can be shortened; or the part is enough.
        SandboxUnavailable: the sandbox gives no answer.
    """
    if environment.state is not None or environment.expectation != "answer":
        raise Rejected("has a state, or lacks something", environment.id)
    candidates = list(dict.fromkeys(_candidates(environment)))
    if not candidates:
        raise Rejected("no name to shorten", environment.question)
    argument, name, names = rng.choice(candidates)
    part = name_part(name)
    question = environment.question.replace(name, part)
    tool = _finder(environment, argument, names)
    kind = argument.replace("_", " ")
    sub_question = SubQuestion(
        id=_free("q0", {each.id for each in environment.sub_questions}),
        question=_QUESTION[environment.language].format(kind=kind, part=part),
        answer=name,
        call=ToolCall(id="call_name", name=tool.document.name, arguments={_PARAMETER: part}),
    )
    dependents = [task for task in environment.sub_tasks if task.call and name in task.call.arguments.values()]
    await _require_not_enough(environment, dependents, name, part, sandbox)
    sub_questions = (
        sub_question,
        *(
            each.model_copy(update={"depends_on": (sub_question.id, *each.depends_on)}) if each in dependents else each
            for each in environment.sub_questions
        ),
    )
    tasks = [each for each in sub_questions if each.call is not None]
    return environment.model_copy(
        update={
            "question": question,
            "sub_questions": sub_questions,
            "tools": (*environment.tools, tool),
            "hops": max(depths(tasks).values()),
            "scenario": scenario_of(tasks),
        }
    )


def name_part(name: str) -> str:
    """Return the first word of a name, or the first half of one that has no words.

    >>> name_part("Amber Fox"), name_part("青山明月"), name_part("Oak")
    ('Amber', '青山', 'O')
    """
    first, *rest = name.split()
    return first if rest else name[: len(name) // 2]


def _candidates(environment: Environment) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield arguments that the question states: the parameter, the name, and the names that its part is told from."""
    answers = [
        *ways_to_answer(environment),
        *(way for each in environment.sub_questions for way in ways_to_answer(each)),
    ]
    choices = environment.composition.choices if environment.composition is not None else ()
    for task in environment.sub_tasks:
        assert task.call is not None
        tool = next(tool for tool in environment.tools if tool.document.name == task.call.name)
        for argument, calls in calls_for_other_rows(tool, task.call.arguments).items():
            name = task.call.arguments[argument]
            if not isinstance(name, str) or name not in environment.question or name in choices:
                continue
            part = name_part(name)
            others = [call[argument] for call in calls if isinstance(call[argument], str)]
            names = tuple(sorted(other for other in others if name_part(other) != part and name_part(other)))
            without = environment.question.replace(name, "")
            told = texts_in([each.document.model_dump(mode="json") for each in environment.all_tools])
            is_clear = (
                len(part) > 1
                and bool(names)
                and part.casefold() not in without.casefold()
                and not any(mentions(other, part) for other in _names_in(tool.tables) if other != name)
                and not any(mentions(text, name) for text in told)  # an enum would tell it to who asks no tool
                and not any(part.casefold() in entity.casefold() for entity in environment.entities if entity != name)
                and not any(same_answer(name, answer) for answer in answers)
                and not any(mentions(part, answer) for answer in answers)
                and not mentions(without + part, name)
            )
            # Two of them with one part would leave it open which is meant; so of each part the first.
            if is_clear:
                yield argument, name, tuple(sorted({name_part(other): other for other in (*names, name)}.values()))


def _names_in(node: JsonValue) -> Iterator[str]:
    """Yield all keys and texts of a tool's data, rows with the same data and unasked ones too."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, dict):
        yield from node
    for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _names_in(inner)


def _finder(environment: Environment, argument: str, names: tuple[str, ...]) -> EnvironmentTool:
    taken = {tool.document.name for tool in environment.all_tools}
    name = _free(f"find_{argument}", taken)
    if not LEGAL_TOOL_NAME.fullmatch(name):
        raise Rejected("no legal tool name", name)
    document = ToolDocument(
        name=name,
        description=_DESCRIPTION[environment.language].format(kind=argument.replace("_", " ")),
        parameters={"type": "object", "properties": {_PARAMETER: {"type": "string"}}, "required": [_PARAMETER]},
    )
    source = (
        f"def {name}({_PARAMETER}: str) -> str:\n"
        f'    """{document.description}."""\n'
        '    names = TABLES["names"]\n'
        f"    if {_PARAMETER} not in names:\n"
        f'        raise ValueError(f"no such name, or several: {{{_PARAMETER}}}")\n'
        f"    return names[{_PARAMETER}]\n"
    )
    return EnvironmentTool(
        document=document, source=source, tables={"names": {name_part(each): each for each in names}}
    )


def _free(name: str, taken: set[str]) -> str:
    return next(
        each for each in (name, *(f"{name}_{number}" for number in range(2, len(taken) + 3))) if each not in taken
    )


async def _require_not_enough(
    environment: Environment, dependents: list[SubQuestion], name: str, part: str, sandbox: Sandbox
) -> None:
    """Require that no call gives its answer with the part of the name that the question still has."""
    by_name = {tool.document.name: tool for tool in environment.tools}
    requests = []
    for task in dependents:
        assert task.call is not None
        arguments: JsonObject = {key: part if value == name else value for key, value in task.call.arguments.items()}
        tool = by_name[task.call.name]
        requests.append(
            ExecuteRequest(
                source=tool.module_source(), function=task.call.name, arguments=arguments, limits=PROOF_LIMITS
            )
        )
    replies = await sandbox.execute_batch(requests)
    for task, reply in zip(dependents, replies, strict=True):
        if reply.ok and same_answer(task.answer, reply.value, task.aliases):
            raise Rejected("the part is enough", f"{task.id}: {part!r} gives {reply.value!r}")
