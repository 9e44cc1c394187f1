"""Unreliable tools: some replies are bad, the same call once more has the answer, and the gold episode shows both.

    state["unreliable"]: [rent]     rent(…) ─► {"error": "timed out, try again"}     state["unreliable"]: []
                            []      rent(…) ─► 950                                                        []

Which replies are bad stands in the episode's state, so that the same calls have the same replies, bytes and all.
Without a state a tool is reliable: so it is proven as every other one is, and its bad replies are proven here.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandbox.client import ExecuteReply, ExecuteRequest
from synthesis.answers.same_answer import same_answer
from synthesis.answers.tool_response import tool_response
from synthesis.environments.call_batches import Sandbox
from synthesis.environments.proof import PROOF_LIMITS
from synthesis.environments.qa_instances import ways_to_answer
from synthesis.records import UNRELIABLE, Environment, JsonObject, JsonValue, SubQuestion, ToolCall
from synthesis.stage import Rejected


async def bad_replies_of(environment: Environment, sandbox: Sandbox) -> dict[str, tuple[JsonValue, ...]]:
    """Run the gold episode, each call until it has its answer; return by id of the sub-question what came before it.

    Raises:
        Rejected: a call fails, or has no answer when no bad reply is left.
        SandboxUnavailable: the sandbox gives no answer.
    """
    state = environment.state or {}
    most = len(state[UNRELIABLE])
    found: dict[str, tuple[JsonValue, ...]] = {}
    for level in environment.gold_levels():
        waiting: Sequence[SubQuestion] = level
        while waiting:
            unanswered = []
            for task in waiting:
                assert task.call is not None
                reply = await _run(environment, sandbox, task.call, state)
                state = reply.state or {}
                if same_answer(task.answer, reply.value, task.aliases):
                    continue
                found[task.id] = (*found.get(task.id, ()), reply.value)
                if len(found[task.id]) > most:
                    raise Rejected("retry mends nothing", f"{task.call.name}({task.call.arguments}): {reply.value!r}")
                unanswered.append(task)
            waiting = unanswered
    return found


async def prove_bad_replies(environment: Environment, sandbox: Sandbox) -> None:
    """Replay the gold episode on the state: each reply is the one that it has, some are bad, none is left in the end.

    Raises:
        Rejected: the first promise that is broken.
        SandboxUnavailable: the sandbox gives no answer.
    """
    state = environment.state or {}
    golds = [way for task in environment.sub_tasks for way in ways_to_answer(task)]
    for task in environment.sub_tasks:
        for bad in task.bad_replies:
            if any(same_answer(gold, bad) for gold in golds):
                raise Rejected("bad reply answers", f"{task.id}: {bad!r}")
    messages = environment.gold_messages()
    told = {message.tool_call_id: message.content for message in messages if message.role == "tool"}
    for call in (call for message in messages for call in message.tool_calls):
        reply, again = [await _run(environment, sandbox, call, state, seed=seed) for seed in (0, 1)]
        state = reply.state or {}
        if (found := tool_response(reply)) != told[call.id]:
            raise Rejected(
                "other reply than in the gold episode", f"{call.name}: expected {told[call.id]}, found {found}"
            )
        if (tool_response(again), again.state) != (found, reply.state):
            raise Rejected("not deterministic", f"{call.name}({call.arguments})")
    if not any(task.bad_replies for task in environment.sub_tasks):
        raise Rejected("no bad reply", environment.id)
    if state.get(UNRELIABLE) != []:
        raise Rejected("bad replies are left", f"{state}")


async def _run(
    environment: Environment, sandbox: Sandbox, call: ToolCall, state: JsonObject, *, seed: int = 0
) -> ExecuteReply:
    tool = next(tool for tool in environment.tools if tool.document.name == call.name)
    request = ExecuteRequest(
        source=tool.module_source(),
        function=call.name,
        arguments=call.arguments,
        state=state,
        seed=seed,
        limits=PROOF_LIMITS,
    )
    (reply,) = await sandbox.execute_batch([request])
    if reply.error is not None:
        raise Rejected(f"call ends in {reply.error.kind.value}", f"{call.name}: {reply.error.message}")
    return reply
