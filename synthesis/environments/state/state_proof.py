"""Proofs of a stateful task: its conditions agree with the last state, and further tools use the state.

conditions     hold of the last state, not of the first one, nor of the last one with anything changed in it
further tool   has two calls on the first state that end differently, and again so under another seed;
               a changed argument changes the outcome of a call; defaults are as its document says
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence

from sandbox.client import ExecuteReply
from synthesis.answers.same_answer import same_answer
from synthesis.answers.state_conditions import meets_conditions
from synthesis.environments.proving.call_batches import Sandbox
from synthesis.environments.proving.proof import changed_argument, other_settings, request_of
from synthesis.environments.questions.tool_documents import documented_defaults
from synthesis.records import EnvironmentTool, JsonObject, JsonValue, StateCondition, ToolCall
from synthesis.stage import Rejected, all_in_order


def check_conditions(conditions: Sequence[StateCondition], state: JsonObject, final_state: JsonObject) -> None:
    """Check that conditions tell the last state from the first one, and from every one that differs in one place.

    Raises:
        Rejected: there is none, or they and the state that the gold calls left contradict each other.
    """
    if not conditions:
        raise Rejected("no condition on the state")
    if not meets_conditions(conditions, state, final_state):
        asked = [condition.model_dump(mode="json") for condition in conditions]
        raise Rejected(
            "state is not as the task asks",
            f"expected {_shown(asked)}, found {_shown(final_state)} after {_shown(state)}",
        )
    if meets_conditions(conditions, state, state):
        raise Rejected("conditions hold from the start", _shown(state))
    for tampered in tampered_states(final_state):
        if meets_conditions(conditions, state, tampered):
            raise Rejected("conditions miss a change", f"they hold of {_shown(tampered)}")


def _shown(value: JsonValue) -> str:
    try:
        return repr(value)
    except ValueError:
        return f"a value with a number of more than {sys.get_int_max_str_digits()} digits"


def tampered_states(state: JsonObject) -> Iterator[JsonObject]:
    """Yield a state with one of its values changed, one of them gone, or one more beside them, in every place.

    >>> list(tampered_states({"a": 1}))
    [{'a': -1000004}, {}, {'a': 1, 'tampered': True}]
    """
    for path in _paths(state):
        for change in ("changed", "gone"):
            tampered = copy.deepcopy(state)
            holder: JsonValue = tampered
            for key in path[:-1]:
                holder = holder[key]
            if change == "gone":
                del holder[path[-1]]
            else:
                holder[path[-1]] = _changed(holder[path[-1]])
            yield tampered
    yield {**state, "tampered": True}


def _changed(value: JsonValue) -> JsonValue:
    if isinstance(value, dict | list):  # an empty one
        return ["tampered"]
    return changed_argument(value)


def _paths(node: JsonValue) -> Iterator[tuple[str | int, ...]]:
    """Yield the paths to all scalars and to all empty lists and objects."""
    items = list(node.items()) if isinstance(node, dict) else list(enumerate(node)) if isinstance(node, list) else []
    for key, value in items:
        if isinstance(value, dict | list) and value:
            yield from ((key, *path) for path in _paths(value))
        else:
            yield (key,)


async def prove_further_tools(
    sandbox: Sandbox, tools: Sequence[EnvironmentTool], calls: Sequence[ToolCall], state: JsonObject
) -> None:
    """Prove tools that a task does not need, by two calls of each among `calls`.

    Raises:
        Rejected: the first promise that is broken.
        SandboxUnavailable: the sandbox gives no answer.
    """
    if unknown := {call.name for call in calls} - {tool.document.name for tool in tools}:
        raise Rejected("call of an unknown tool", f"{sorted(unknown)}")
    asked = [[call.arguments for call in calls if call.name == tool.document.name] for tool in tools]
    if lacking := [tool.document.name for tool, own in zip(tools, asked, strict=True) if len(own) != 2]:
        raise Rejected("further tool without two calls", f"{lacking}")
    await all_in_order(
        _prove(sandbox, tool, first, second, state) for tool, (first, second) in zip(tools, asked, strict=True)
    )


async def _prove(
    sandbox: Sandbox, tool: EnvironmentTool, arguments: JsonObject, others: JsonObject, state: JsonObject
) -> None:
    name, defaults = tool.document.name, documented_defaults(tool.document)
    given = {**defaults, **arguments}
    changed = [{**arguments, key: changed_argument(value)} for key, value in given.items()]
    for key in defaults:
        settings = other_settings(tool.document.parameters["properties"][key], given[key])
        changed += [{**arguments, key: setting} for setting in settings]
    omitted = [{key: value for key, value in arguments.items() if key != optional} for optional in defaults]
    stated = [{**arguments, key: default} for key, default in defaults.items()]
    asked = [arguments, arguments, others, *changed, *omitted, *stated]
    first, again, other, *replies = await sandbox.execute_batch(
        [request_of(tool, each, state=state, seed=int(place == 1)) for place, each in enumerate(asked)]
    )
    for reply in (first, other):
        if reply.error is not None:
            raise Rejected("further tool gives no answer", f"{name}: {reply.error.message}")
    if not _ends_alike(first, again):
        raise Rejected("not deterministic", f"{name}({arguments})")
    if _ends_alike(first, other):
        raise Rejected("further tool tells one thing alone", f"{name}: {arguments} and {others} end alike")
    for given, reply in zip(changed, replies, strict=False):
        if reply.error is not None and reply.error.kind.value != "exception":
            raise Rejected("error path fails", f"{name}({given}): {reply.error.kind.value}")
        if _ends_alike(first, reply):
            raise Rejected("ignores its arguments", f"{name}: {given} ends as {arguments}")
    by_default = replies[len(changed) :]
    for left_out, default in zip(by_default[: len(defaults)], by_default[len(defaults) :], strict=True):
        if not _ends_alike(left_out, default):
            raise Rejected("default differs from document", f"{name}: {left_out.value!r} and {default.value!r}")


def _ends_alike(one: ExecuteReply, other: ExecuteReply) -> bool:
    return one.ok and other.ok and same_answer(one.value, other.value) and same_answer(one.state, other.state)
