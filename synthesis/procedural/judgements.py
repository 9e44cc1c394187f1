"""The embedded teacher as judge: each score is computed from the conversation it is shown."""

from __future__ import annotations

from collections.abc import Sequence

from synthesis.procedural.agent_turns import (
    facts_of,
    parsed,
    pointed_at,
    read_progress,
    since_last_request,
    take_turn,
)
from synthesis.prompts import judges
from synthesis.prompts.agent_turn import TakeTurn
from synthesis.records import Message, canonical_json
from synthesis.trajectories.reward_axes import ungrounded_share


def judge_query_understanding(request: judges.JudgeQueryUnderstanding, seed: int) -> judges.Judgement:
    """Score half for the right first step, half for the share of its arguments that the user or a result states."""
    first, task = request.conversation[-1], request.task
    if task.expectation != "answer":
        noticed = not first.tool_calls and bool(first.content)
        return judges.Judgement(
            score=1.0 if noticed else 0.1, reason="noticed what is missing" if noticed else "called anyway"
        )
    if not first.tool_calls or task.chain is None:
        return judges.Judgement(score=0.0, reason="no call where one is needed")
    call, chain = first.tool_calls[0], task.chain
    # The chain ends with the calls of the request at hand, for the task is cut off after it.
    position = len(chain.tools) - task.follow_ups[-1].num_calls if task.follow_ups else 0
    responses = read_progress(chain.tools, request.conversation).responses
    known = {canonical_json(value) for value in (task.slots | task.hidden_parameters).values()}
    known |= {canonical_json(binding.constant) for binding in chain.bindings if binding.source == "constant"}
    known |= {
        canonical_json(pointed_at(responses, binding)[1])
        for binding in chain.bindings
        if binding.tool_index == position and binding.source == "earlier_output"
    }
    stated = [canonical_json(value) in known for value in call.arguments.values()]
    share = sum(stated) / len(stated) if stated else 1.0
    right = call.name == chain.tools[position]
    return judges.Judgement(score=0.5 * right + 0.5 * share, reason=f"{share:.0%} of the arguments are the user's")


def judge_planning(request: judges.JudgePlanning, seed: int) -> judges.Judgement:
    """Score the longest common subsequence of the calls made and the calls expected, over the longer of the two."""
    if request.task.chain is None or request.task.expectation == "refuse":
        called = any(message.tool_calls for message in request.conversation)
        return judges.Judgement(score=0.0 if called else 1.0, reason="no tool fits")
    errors = {message.tool_call_id: message.is_error for message in request.conversation if message.role == "tool"}
    calls = [call for message in request.conversation for call in message.tool_calls]
    made = [call.name for call in calls if not errors.get(call.id, True)]
    expected = request.task.chain.tools
    common = _longest_common_subsequence(made, expected)
    return judges.Judgement(
        score=common / max(len(made), len(expected)), reason=f"{common} of {len(expected)} in order"
    )


def judge_response_understanding(request: judges.JudgeResponseUnderstanding, seed: int) -> judges.Judgement:
    """Score 1 if a failure was reacted to; after successes, the share of what is said that stands in a response."""
    last = request.conversation[-1]
    failed = [message for message in _responses_before(request.conversation) if message.is_error]
    if failed:
        recovered = bool(last.tool_calls) or bool(last.content)
        return judges.Judgement(score=1.0 if recovered else 0.2, reason="the failure was seen")
    said = last.content or " ".join(str(value) for call in last.tool_calls for value in call.arguments.values())
    told = [message.content for message in request.conversation[:-1] if message.role in ("tool", "user")]
    share = 1.0 - ungrounded_share(said, told)
    return judges.Judgement(score=share, reason=f"{share:.0%} of what it says stands in the responses")


def judge_response_planning(request: judges.JudgeResponsePlanning, seed: int) -> judges.Judgement:
    """Score 1 if the step is the one that the embedded agent would take at this point, else 0.3."""
    last = request.conversation[-1]
    turn = TakeTurn(
        language=request.task.language, tools=request.tools, conversation=request.conversation[:-1], task=request.task
    )
    expected = take_turn(turn, seed)
    right = {call.name for call in last.tool_calls} == {call.name for call in expected.tool_calls}
    return judges.Judgement(score=1.0 if right else 0.3, reason="the right next step" if right else "not the next step")


def judge_answer_relevance(request: judges.JudgeAnswerRelevance, seed: int) -> judges.Judgement:
    """Score from 0.3 to 1 by the share of the expected calls that succeeded; 1 where a refusal is expected."""
    task = request.task
    if task.chain is None or task.expectation == "refuse":
        return judges.Judgement(score=1.0, reason="says that it cannot be done")
    done = len(read_progress(task.chain.tools, request.conversation).responses) / len(task.chain.tools)
    return judges.Judgement(score=0.3 + 0.7 * done, reason=f"{done:.0%} of what was asked was done")


def judge_answer_summary(request: judges.JudgeAnswerSummary, seed: int) -> judges.Judgement:
    """Score the share of the last two responses of which the answer tells at least one value."""
    answer, task = request.conversation[-1].content, request.task
    documents = {tool.name: tool for tool in request.tools}
    names = {call.id: call.name for message in request.conversation for call in message.tool_calls}
    recent = since_last_request(request.conversation)
    good = [message for message in recent if message.role == "tool" and not message.is_error][-2:]
    tellable = [
        facts
        for message in good
        if (facts := facts_of(parsed(message.content), documents[names[str(message.tool_call_id)]], task.language))
    ]
    if not tellable:
        return judges.Judgement(score=1.0, reason="there was nothing to tell")
    asked = " ".join(message.content for message in request.conversation if message.role == "user")
    told = [any(value in answer or value in asked for _, value in facts) for facts in tellable]
    return judges.Judgement(score=sum(told) / len(told), reason=f"{sum(told)} of {len(told)} responses are told")


def _responses_before(conversation: Sequence[Message]) -> list[Message]:
    """Return the tool messages that stand directly before the last message."""
    found = []
    for message in reversed(conversation[:-1]):
        if message.role != "tool":
            break
        found.append(message)
    return found


def _longest_common_subsequence(made: Sequence[str], expected: Sequence[str]) -> int:
    lengths = [0] * (len(expected) + 1)  # one row of the usual table; `previous` is its upper left cell
    for name in made:
        previous = 0
        for position, wanted in enumerate(expected, 1):
            previous, lengths[position] = (
                lengths[position],
                previous + 1 if name == wanted else max(lengths[position], lengths[position - 1]),
            )
    return lengths[-1]
