"""Unreliable tools: the next reply of some, or the next two, are bad; the same call once more has the answer.

    timeout   {"error": "timed out, try again"}                          as a call that failed looks like
    stale     {"note": "from a cache, out of date, ask again", "value": 870}   another row's value
    partial   {"note": "connection lost, incomplete", "received": "\\"Amb"}    the first half of the reply's text

What the tool returns is wrapped; its own code and its document stay as they are.
"""

from __future__ import annotations

import ast
import copy
import random
from typing import Final, Literal

from sandbox.client import ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.other_rows import calls_for_other_rows
from synthesis.environments.proving.proof import PROOF_LIMITS
from synthesis.environments.questions.qa_instances import ways_to_answer
from synthesis.environments.unreliable import bad_replies_of
from synthesis.python_source import tool_syntax_tree
from synthesis.records import UNRELIABLE, Environment, EnvironmentTool, JsonObject, JsonValue, Language
from synthesis.stage import Rejected

Fault = Literal["timeout", "stale", "partial"]

MOST_BAD_REPLIES: Final = 2
"""Of one tool, one after the other."""
_NOTES: Final[dict[tuple[Language, Fault], str]] = {
    ("en", "timeout"): "timed out, try again",
    ("en", "stale"): "from a cache, out of date, ask again",
    ("en", "partial"): "connection lost, incomplete",
    ("zh", "timeout"): "请求超时，请重试",
    ("zh", "stale"): "来自缓存，已过期，请再查一次",
    ("zh", "partial"): "连接中断，内容不完整",
}
_RETURNED: Final[dict[Fault, str]] = {
    "timeout": '    return {"error": _bad["note"]}\n',
    "stale": (
        '    _old = [_each for _each in _bad["values"] if _each != _value]\n'
        '    return {"note": _bad["note"], "value": _old.pop()}\n'
    ),
    "partial": (
        "    _text = json.dumps(_value, ensure_ascii=False)\n"
        '    return {"note": _bad["note"], "received": _text[: len(_text) // _bad["parts"]]}\n'
    ),
}
_HALVES: Final = 2


async def make_unreliable(environment: Environment, sandbox: Sandbox, rng: random.Random) -> Environment:
    """Make one or more of the tools that are called unreliable, each in one way.

    Raises:
        Rejected: it has a state already, nothing is called, or a tool's code cannot be wrapped.
        SandboxUnavailable: the sandbox gives no answer.
    """
    if environment.state is not None:
        raise Rejected("has a state", environment.id)
    called = sorted({task.call.name for task in environment.sub_tasks if task.call is not None})
    if not called:
        raise Rejected("no call", environment.id)
    chosen = rng.sample(called, rng.randint(1, len(called)))
    tools: list[EnvironmentTool] = []
    left: list[str] = []
    for tool in environment.tools:
        name = tool.document.name
        if name in chosen:
            old = await _old_values(environment, tool, sandbox)
            faults: list[Fault] = ["timeout", "partial", *(["stale"] if old else [])]  # type: ignore[list-item]
            tool = with_fault(tool, rng.choice(faults), environment.language, old)
            left += [name] * rng.randint(1, MOST_BAD_REPLIES)
        tools.append(tool)
    unreliable = environment.model_copy(update={"tools": tuple(tools), "state": {UNRELIABLE: left}})
    bad = await bad_replies_of(unreliable, sandbox)
    sub_questions = tuple(
        each.model_copy(update={"bad_replies": bad[each.id]}) if each.id in bad else each
        for each in environment.sub_questions
    )
    return unreliable.model_copy(update={"sub_questions": sub_questions})


def with_fault(tool: EnvironmentTool, fault: Fault, language: Language, old: list[JsonValue]) -> EnvironmentTool:
    """Return the tool with bad replies of one kind, where the state says so; `old` are values that are out of date.

    Raises:
        Rejected: its code is not one function of named parameters, takes a state already, or cannot be written anew.
    """
    name = tool.document.name
    try:
        tree = tool_syntax_tree(tool.source)
    except SyntaxError as error:
        raise Rejected("code does not parse", str(error)) from error
    function = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name), None)
    if function is None:
        raise Rejected("signature differs from document", f"expected one function {name}")
    parameters = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
    if "state" in parameters:
        raise Rejected("takes a state", name)
    inner = f"_reliable_{name}"
    if any(
        isinstance(node, ast.Name | ast.arg) and _name_of(node) in (inner, "_value", "_bad") for node in ast.walk(tree)
    ):
        raise Rejected("name is taken", inner)
    signature = copy.deepcopy(function.args)
    signature.kwonlyargs.append(ast.arg("state"))
    signature.kw_defaults.append(ast.Constant(None))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.name = inner
        elif isinstance(node, ast.Name) and node.id == name:
            node.id = inner
    passed = ", ".join(f"{each}={each}" for each in parameters)
    # The call goes first, so that arguments which the tool turns away use no bad reply up.
    wrapper = (
        f"def {name}({_written(signature)}):\n"
        f"    _value = {inner}({passed})\n"
        f'    _bad = TABLES["bad_reply"]\n'
        f'    if "{name}" not in (state or {{}}).get("{UNRELIABLE}", ()):\n'
        "        return _value\n"
        f'    state["{UNRELIABLE}"].remove("{name}")\n' + _RETURNED[fault]
    )
    bad: JsonObject = {"note": _NOTES[language, fault]}
    bad |= {"values": old} if fault == "stale" else {"parts": _HALVES} if fault == "partial" else {}
    if "bad_reply" in tool.tables:
        raise Rejected("name is taken", "bad_reply")
    return tool.model_copy(
        update={"source": f"{_written(tree)}\n\n\n{wrapper}", "tables": {**tool.tables, "bad_reply": bad}}
    )


def _written(tree: ast.AST) -> str:
    try:
        return ast.unparse(tree)
    except ValueError as error:  # a wide space in an f-string's expression, an integer of more than 4,300 digits
        raise Rejected("code cannot be wrapped", str(error)) from error


def _name_of(node: ast.Name | ast.arg) -> str:
    return node.id if isinstance(node, ast.Name) else node.arg


async def _old_values(environment: Environment, tool: EnvironmentTool, sandbox: Sandbox) -> list[JsonValue]:
    """Return what the tool tells of other rows, none of it an answer of the environment; none where too few do."""
    golds = [
        *ways_to_answer(environment),
        *(way for each in environment.sub_questions for way in ways_to_answer(each)),
    ]
    asked = [
        task.call.arguments for task in environment.sub_tasks if task.call and task.call.name == tool.document.name
    ]
    calls = [
        call for arguments in asked for others in calls_for_other_rows(tool, arguments).values() for call in others
    ]
    replies = await sandbox.execute_batch(
        [
            ExecuteRequest(
                source=tool.module_source(), function=tool.document.name, arguments=call, limits=PROOF_LIMITS
            )
            for call in calls
        ]
    )
    found: list[JsonValue] = []
    for reply in replies:
        if reply.ok and not any(same_answer(known, reply.value) for known in (*golds, *found)):
            found.append(reply.value)
    # Two: whatever is asked for, one of them is another value.
    return found if len(found) > 1 else []
