"""The seven reward axes: decided by rule where a rule can, else by the teacher; none has a default.

    query understanding                    judge, per request; sees the assistant's reaction and nothing after it
    planning                               judge, sees the whole
    tool-response understanding            judge, per turn after tool responses; sees only messages before it
    tool-response-conditioned planning     judge, the same
    tool-call status                       rule: successful calls / calls; a failed call counts 0
    tool conciseness                       rule: calls that were needed / calls
    final answer                           per request, mean of relevance (judge) and summary (judge, rule: grounded);
                                           0 by rule where it is empty or in another language

Judges of the same message are asked together, and none sees a later message; `judges_at_once` asks all of them in
one call, with the whole conversation before them.

The lowest of several judgements on one axis counts, so that a long conversation hides no bad turn.
A judge sees a task with follow-ups only as far as the user had said it by then.
A judgement that fails raises `BadReply`, which rejects the trajectory.

Decided: docs/decisions/trajectories.md, “Reward thresholds are chosen on planted faults, and an axis takes its worst
turn”.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from synthesis.prompts import judges
from synthesis.records import Message, RewardAxes, Task, ToolDocument, canonical_json
from synthesis.stage import Rejected
from synthesis.teacher.protocol import Request, Teacher, ask_together
from synthesis.track.seeds import derived_seed
from synthesis.trajectories.follow_ups import request_positions, task_so_far
from synthesis.trajectories.tasks import stands_alone
from synthesis.written_language import foreign_passages

# Bounded and atomic, to stay fast: a list of more than 401 numbers without a space is read from its end. Python before
# 3.11.5 reads a possessive repeat of a group wrongly ("91.5," of "91.5, and"), an atomic group rightly.
_NUMBER: Final = re.compile(r"(?<![\w.])-?\d++(?>(?:[.,:]\d++){0,400})(?![\w]|[.,:]\d)")
_URL: Final = re.compile(r"https?://[^\s\"'<>)\]}，。]*[^\s\"'<>)\]}，。.,;:!?]")

Judge = type[judges.JudgeConversation]


class RewardThresholds(BaseModel):
    """The least scores of a kept trajectory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mean: float = Field(default=0.6, ge=0, le=1)
    """Minimum mean of all seven axes, from 0 to 1."""
    every_axis: float = Field(default=0.5, ge=0, le=1)
    """Minimum score on each axis that judges the agent alone."""
    tool_call_status: float = Field(default=0.2, ge=0, le=1)
    """Minimum share of calls that succeeded; low, since a failing tool is not the agent's fault."""


def tool_call_status(messages: Sequence[Message]) -> float | None:
    """Return the share of calls that succeeded; None without calls.

    >>> tool_call_status([Message(role="tool", content="1"), Message(role="tool", content="", is_error=True)])
    0.5
    """
    responses = [message for message in messages if message.role == "tool"]
    return fmean(not message.is_error for message in responses) if responses else None


def tool_conciseness(messages: Sequence[Message], tools: Sequence[ToolDocument]) -> float:
    """Return the share of calls that were needed: not of an unknown tool, not one that had succeeded before.

    Making a failed call again is needed. Without calls there was nothing to spare: 1.
    """
    # Ids are numbered through the conversation, so each names one call.
    errors = {message.tool_call_id: message.is_error for message in messages if message.role == "tool"}
    offered = {tool.name for tool in tools}
    succeeded: set[str] = set()
    needed = num_calls = 0
    for call in (call for message in messages for call in message.tool_calls):
        signature = canonical_json([call.name, call.arguments])
        num_calls += 1
        needed += call.name in offered and signature not in succeeded
        if not errors.get(call.id, True):  # a call without a response has not succeeded
            succeeded.add(signature)
    return needed / num_calls if num_calls else 1.0


def ungrounded_share(answer: str, sources: Sequence[str]) -> float:
    """Return the share of the answer's numbers and URLs that stand in none of the sources.

    >>> ungrounded_share("It is 21 degrees, see https://x.org/a", ['{"t": 21}']), ungrounded_share("Fine.", [])
    (0.5, 0.0)
    >>> ungrounded_share("See https://x.org/a, and the rest.", ['{"url": "https://x.org/a"}'])
    0.0
    """
    claims = set(_URL.findall(answer)) | set(_NUMBER.findall(_URL.sub(" ", answer)))  # digits of a URL claim nothing
    missing = [claim for claim in claims if not any(stands_alone(claim, source) for source in sources)]
    return len(missing) / len(claims) if claims else 0.0


async def judge_axes(
    task: Task,
    tools: tuple[ToolDocument, ...],
    messages: tuple[Message, ...],
    teacher: Teacher,
    *,
    seed: int,
    judges_at_once: bool = False,
) -> RewardAxes:
    """Score a whole conversation on the seven axes.

    Decided: docs/decisions/teacher.md, “Judges of one message share a call and see only the messages before it”.

    Raises:
        Rejected: a task that needs tools was answered without any.
    """
    status = tool_call_status(messages)
    if status is None and task.expectation != "refuse":
        raise Rejected("answered without a tool call", task.text[:80])
    requests = request_positions(task, messages)
    reactions = [position + 2 for position in requests]  # up to the request and the message after it
    answers = [*requests[1:], len(messages)]  # an answer is the last message before the next request, or of all
    after_responses = [
        index + 1
        for index in range(1, len(messages))
        if messages[index].role == "assistant" and messages[index - 1].role == "tool"
    ]
    told = [upto for upto in answers if _tells_something(task, messages[:upto])]  # the others are worth nothing by rule
    wanted: list[tuple[Judge, int]] = [
        *((judges.JudgeQueryUnderstanding, upto) for upto in reactions),
        *((judges.JudgeResponseUnderstanding, upto) for upto in after_responses),
        *((judges.JudgeResponsePlanning, upto) for upto in after_responses),
        (judges.JudgePlanning, len(messages)),
        *((judges.JudgeAnswerRelevance, upto) for upto in told),
        *((judges.JudgeAnswerSummary, upto) for upto in told),
    ]

    def question(judge: Judge, upto: int) -> tuple[Request[judges.Judgement], int]:
        # Cut off here, and not by the prompt: later messages cannot sway a judge.
        said = task_so_far(task, messages[:upto])
        request = judge(task=said, tools=tools, conversation=messages[:upto])
        # A judgement with the whole conversation in sight is another one, so it has another seed.
        return request, derived_seed(seed, judge.__name__, upto, *(["at once"] if judges_at_once else []))

    # The earliest message first: the prompt of a call begins with that of the call before it.
    places = [[one for one in wanted if one[1] == upto] for upto in sorted({upto for _, upto in wanted})]
    scores: dict[tuple[Judge, int], float] = {}
    for place in [wanted] if judges_at_once else places:
        judgements = await ask_together(teacher, [question(judge, upto) for judge, upto in place])
        scores |= {one: judgement.score for one, judgement in zip(place, judgements, strict=True)}

    def lowest(judge: Judge, places: Sequence[int]) -> float | None:
        return min((scores[judge, upto] for upto in places), default=None)

    def final_answer(upto: int) -> float:
        """Score an answer: relevance, and the summary, at most as good as the share of it that was said before."""
        if upto not in told:
            return 0.0
        sources = [message.content for message in messages[: upto - 1] if message.role in ("user", "tool")]
        grounded = 1.0 - ungrounded_share(messages[upto - 1].content, sources)
        summary = min(grounded, scores[judges.JudgeAnswerSummary, upto])
        return fmean([scores[judges.JudgeAnswerRelevance, upto], summary])

    return RewardAxes(
        query_understanding=min(scores[judges.JudgeQueryUnderstanding, upto] for upto in reactions),
        planning=scores[judges.JudgePlanning, len(messages)],
        tool_response_understanding=lowest(judges.JudgeResponseUnderstanding, after_responses),
        tool_response_conditioned_planning=lowest(judges.JudgeResponsePlanning, after_responses),
        tool_call_status=status,
        tool_conciseness=tool_conciseness(messages, tools),
        final_answer=min(final_answer(upto) for upto in answers),
    )


def _tells_something(task: Task, messages: Sequence[Message]) -> bool:
    """Say whether the last message is an answer to be judged: not empty, and in the task's language."""
    # Names in another language that stand in a request may stand in its answer.
    told = [message.content for message in messages[:-1] if message.role in ("user", "tool")]
    answer = messages[-1].content
    return bool(answer.strip()) and not foreign_passages(answer, task.language, given=told)


def check_thresholds(reward: RewardAxes, thresholds: RewardThresholds) -> None:
    """Check that a reward reaches every threshold.

    Raises:
        Rejected: names the axis that is furthest below its threshold.
    """
    judged = {axis: value for axis in RewardAxes.AXES if (value := getattr(reward, axis)) is not None}
    least = dict.fromkeys(judged, thresholds.every_axis) | {"tool_call_status": thresholds.tool_call_status}
    lowest = min(judged, key=lambda axis: judged[axis] - least[axis])
    if judged[lowest] < least[lowest]:
        raise Rejected(f"low {lowest.replace('_', ' ')}", f"{judged[lowest]:.2f}")
    if reward.mean < thresholds.mean:
        raise Rejected("low mean reward", f"{reward.mean:.2f}")
