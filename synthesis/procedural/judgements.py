"""The embedded teacher as judge: each score is computed from the conversation and the task's chain.

The agent works along the same chain, so its acts are right by construction. These scores find faults that came into a
conversation in another way; docs/results.md, “Catch rates”, has the share that they find.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import takewhile
from typing import Final

from synthesis.answers.expectation import meets_expectation
from synthesis.procedural.agent_turns import (
    arguments_of,
    due_calls,
    facts_of,
    missing_facts,
    possible_part,
    read_progress,
    since_last_request,
    worth_another_try,
)
from synthesis.procedural.grounding import mislabelled, stands_in, unsourced, words_of_documents
from synthesis.prompts import judges
from synthesis.prompts.judges import Judgement
from synthesis.records import JsonObject, Message, Task, canonical_json
from synthesis.trajectories.data_flow import parsed
from synthesis.trajectories.reward_axes import ungrounded_share

_FAILED: Final = re.compile(r"\b(?:could not|couldn't)\b|未能|没有办成|做不到", re.IGNORECASE)

FAULT: Final = 0.4
"""Best score of a conversation with a fault: below every default threshold."""


def graded(share: float) -> float:
    """Return 1 where all is right, else at most `FAULT`, by the share that is.

    >>> graded(1.0), graded(0.5)
    (1.0, 0.2)
    """
    return 1.0 if share >= 1.0 else FAULT * share


def judge_query_understanding(request: judges.JudgeQueryUnderstanding, seed: int) -> Judgement:
    """Score the first calls by tool and arguments, as the chain binds them: 1 where all are right, else a fault.

    If no call is right for the task: 1 for a first message that refuses, or asks for the missing fact, else 0.1.
    """
    first, task, chain = request.conversation[-1], request.task, possible_part(request.task)
    if task.expectation == "ask_back" or (task.expectation == "refuse" and chain is None):
        asks = chain is not None and all(fact in first.content for fact in missing_facts(task, request.tools))
        noticed = not first.tool_calls and (asks or (chain is None and says_it_cannot(first.content)))
        reason = "noticed what is missing" if noticed else "did not notice"
        return Judgement(score=1.0 if noticed else 0.1, reason=reason)
    if not first.tool_calls or chain is None:
        return Judgement(score=0.0, reason="no call where one is needed")
    # The chain ends with the calls of the request at hand, for the task is cut off after it.
    position = len(chain.tools) - task.follow_ups[-1].num_calls if task.follow_ups else 0
    progress = read_progress(chain.tools, request.conversation)
    stated: list[bool] = []
    for ordinal, call in enumerate(first.tool_calls, position):
        bound = arguments_of(task, chain, ordinal, progress) or {}
        stated += [_is_same(call.arguments, bound, name) for name in call.arguments.keys() | bound.keys()]
    share = sum(stated) / len(stated) if stated else 1.0
    names = tuple(call.name for call in first.tool_calls)
    right = names == chain.tools[position : position + len(names)]
    reason = f"{share:.0%} of the arguments are the user's"
    return Judgement(score=graded(0.5 * right + 0.5 * share), reason=reason)


def judge_planning(request: judges.JudgePlanning, seed: int) -> Judgement:
    """Score 1 for the calls expected in their order, each made until it succeeds or is hopeless; else a fault.

    The fault is graded by the longest common subsequence of both, over the longer of the two.
    """
    if (chain := possible_part(request.task)) is None:
        called = any(message.tool_calls for message in request.conversation)
        return Judgement(score=0.0 if called else 1.0, reason="no tool fits")
    tools, progress = chain.tools, read_progress(chain.tools, request.conversation)
    pending = progress.pending(chain)
    # After a hopeless failure the calls that were to follow are not missed.
    is_stuck = any(not worth_another_try(progress, position) for position in pending)
    expected = [tool for position, tool in enumerate(tools) if position not in pending or not is_stuck]
    made = _made(request.conversation)
    common = _longest_common_subsequence(made, expected)
    share = common / max(len(made), len(expected)) if made or expected else 1.0
    return Judgement(score=graded(share), reason=f"{common} of {len(expected)} in order")


def _made(conversation: Sequence[Message]) -> list[str]:
    """Return the tools that were called with success, each where it was first tried, and again if called again."""
    errors = {message.tool_call_id: message.is_error for message in conversation if message.role == "tool"}
    calls = [call for message in conversation for call in message.tool_calls]
    succeeded = Counter(call.name for call in calls if not errors.get(call.id, True))
    tried = [name for name in dict.fromkeys(call.name for call in calls) if succeeded[name]]
    return [*tried, *(succeeded - Counter(tried)).elements()]


def judge_response_understanding(request: judges.JudgeResponseUnderstanding, seed: int) -> Judgement:
    """Score 1 if the message reacts to failures, and all it says stands in a response or in the user's words.

    The reaction is to make a failed call again, or to say that it cannot be done. The numbers of a message are checked,
    and the words of an answer: an invented one is a fault, graded by how many there are.
    """
    last = request.conversation[-1]
    failed = {message.tool_call_id for message in _responses_before(request.conversation) if message.is_error}
    calls = [call for message in request.conversation for call in message.tool_calls]
    names = {call.name for call in calls if call.id in failed}
    if failed and not any(call.name in names for call in last.tool_calls) and not says_it_cannot(last.content):
        return Judgement(score=0.2, reason="the failure was not seen")
    said = last.content or " ".join(str(value) for call in last.tool_calls for value in call.arguments.values())
    told = [message.content for message in request.conversation[:-1] if message.role in ("tool", "user")]
    share = 1.0 - ungrounded_share(said, told)
    made_up = _made_up(last.content, told, request)
    reason = f"{share:.0%} of the numbers stand in the responses" + (f"; invented: {made_up[:3]}" if made_up else "")
    return Judgement(score=min(graded(share), FAULT / len(made_up) if made_up else 1.0), reason=reason)


def _made_up(answer: str, told: Sequence[str], request: judges.JudgeConversation) -> list[str]:
    """Return the invented words of an answer, and the labels that stand before another value than theirs."""
    if not answer:
        return []
    documents = {tool.name: tool for tool in request.tools}
    called = dict.fromkeys(call.name for message in request.conversation for call in message.tool_calls)
    known = [documents[name] for name in called if name in documents]
    facts = [fact for facts in _facts_of_responses(request, request.conversation) for fact in facts]
    return [*unsourced(answer, [*told, *words_of_documents(known)]), *mislabelled(answer, facts)]


def _facts_of_responses(request: judges.JudgeConversation, messages: Sequence[Message]) -> list[list[tuple[str, str]]]:
    """Return the facts of each successful response among the messages."""
    documents = {tool.name: tool for tool in request.tools}
    called = {call.id: call.name for message in request.conversation for call in message.tool_calls}
    return [
        facts_of(parsed(message.content), documents[called[str(message.tool_call_id)]], request.task.language)
        for message in messages
        if message.role == "tool" and not message.is_error and called.get(str(message.tool_call_id)) in documents
    ]


def judge_response_planning(request: judges.JudgeResponsePlanning, seed: int) -> Judgement:
    """Score 1 if the message is a next step that chain and responses allow, else 0.3.

    The next step is to make the next calls of the chain with their arguments, failed ones first; to answer when all
    have succeeded; or to apologise when one cannot succeed.
    """
    right = _is_next_step(request.task, request.conversation)
    return Judgement(score=1.0 if right else 0.3, reason="the right next step" if right else "not the next step")


def _is_next_step(task: Task, conversation: Sequence[Message]) -> bool:
    *before, last = conversation
    is_asked_back = task.expectation == "ask_back" and sum(message.role == "user" for message in before) < 2
    if (chain := possible_part(task)) is None or is_asked_back:
        return not last.tool_calls
    progress = read_progress(chain.tools, before)
    pending, due = progress.pending(chain), due_calls(task, chain, progress)
    if not pending:
        ends = says_it_cannot(last.content) if task.expectation == "refuse" else bool(last.content.strip())
        return not last.tool_calls and ends
    if not due or not all(worth_another_try(progress, position) for position in pending):
        return not last.tool_calls and says_it_cannot(last.content)
    made = [(call.name, call.arguments) for call in last.tool_calls]
    failed = [position for position in due if progress.failures[position]]
    right = [(chain.tools[position], due[position]) for position in failed or due]
    return bool(made) and canonical_json(made) == canonical_json(right[: len(made)])


def judge_answer_relevance(request: judges.JudgeAnswerRelevance, seed: int) -> Judgement:
    """Score from 0.3 to 1 by the share of the possible calls that succeeded; 0.3 without the words of a due refusal."""
    task, chain = request.task, possible_part(request.task)
    refuses = says_it_cannot(request.conversation[-1].content)
    if chain is None or (task.expectation == "refuse" and not refuses):
        reason = f"{'says' if refuses else 'does not say'} that it cannot be done"
        return Judgement(score=1.0 if refuses else 0.3, reason=reason)
    done = len(read_progress(chain.tools, request.conversation).responses) / len(chain.tools)
    return Judgement(score=0.3 + 0.7 * done, reason=f"{done:.0%} of what was asked was done")


def judge_answer_summary(request: judges.JudgeAnswerSummary, seed: int) -> Judgement:
    """Score the share of the responses to this request of which the answer tells at least one value."""
    answer = request.conversation[-1].content
    tellable = list(filter(None, _facts_of_responses(request, since_last_request(request.conversation))))
    if not tellable:
        return Judgement(score=1.0, reason="there was nothing to tell")
    asked = " ".join(message.content for message in request.conversation if message.role == "user")
    told = [any(stands_in(value, answer) or stands_in(value, asked) for _, value in facts) for facts in tellable]
    return Judgement(score=sum(told) / len(told), reason=f"{sum(told)} of {len(told)} responses are told")


def says_it_cannot(text: str) -> bool:
    """Say whether a message tells the user that something cannot be done.

    >>> says_it_cannot("Sorry, none of my tools can book."), says_it_cannot("抱歉，未能预订。"), says_it_cannot("Done.")
    (True, True, False)
    """
    return meets_expectation("refuse", text) or _FAILED.search(text) is not None


def _is_same(made: JsonObject, bound: JsonObject, name: str) -> bool:
    return name in made and name in bound and canonical_json(made[name]) == canonical_json(bound[name])


def _responses_before(conversation: Sequence[Message]) -> list[Message]:
    """Return the tool messages that stand directly before the last message."""
    return list(takewhile(lambda message: message.role == "tool", reversed(conversation[:-1])))


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
