"""Seven axes: rules if rules can decide, judges that see only earlier messages, and no default anywhere."""

import pytest

from synthesis.prompts import judges
from synthesis.records import Message, RewardAxes, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.trajectories.reward_axes import (
    RewardThresholds,
    check_thresholds,
    judge_axes,
    tool_conciseness,
)
from tests.synthesis.altered import altered
from tests.synthesis.trajectories.servers import HOTELS, task

TASK = task("find_hotel", "book_hotel")


def call(ordinal: int, name: str, **arguments) -> Message:
    requested = ToolCall(id=f"call_{ordinal}", name=name, arguments=arguments)
    return Message(role="assistant", reasoning_content="next", tool_calls=(requested,))


def response(ordinal: int, content: str, is_error: bool = False) -> Message:
    return Message(role="tool", content=content, tool_call_id=f"call_{ordinal}", is_error=is_error)


GOOD = (
    Message(role="user", content=TASK.text),
    call(1, "find_hotel", city="Oslo"),
    response(1, '{"hotel_id": "H1", "stars": 4}'),
    call(2, "book_hotel", hotel_id="H1", guest="Ana"),
    response(2, '{"error": "503"}', is_error=True),
    call(3, "book_hotel", hotel_id="H1", guest="Ana"),
    response(3, '{"booking_id": "B7", "price": 91.5}'),
    Message(role="assistant", reasoning_content="all there", content="Done: booking id B7, price 91.5."),
)


def judged_by(score: float, **changes) -> ScriptedTeacher:
    script = {judge: [judges.Judgement(score=score, reason="so")] * 9 for judge in judges.JUDGES}
    return ScriptedTeacher(script | changes.get("script", {}))


def test_a_call_made_again_after_success_or_to_nowhere_is_not_concise_but_a_retry_is():
    assert tool_conciseness(GOOD, HOTELS.tools) == 1
    again = (*GOOD[:3], call(9, "find_hotel", city="Oslo"), response(9, "{}"))
    assert tool_conciseness(again, HOTELS.tools) == 0.5
    assert tool_conciseness((call(1, "fly"), response(1, "unknown", is_error=True)), HOTELS.tools) == 0


@pytest.mark.parametrize("judge", judges.JUDGES)
async def test_a_judge_that_fails_never_scores(judge):
    teacher = judged_by(1.0, script={judge: [BadReply("cannot be parsed")]})
    with pytest.raises(BadReply):
        await judge_axes(TASK, HOTELS.tools, GOOD, teacher, seed=0)


async def test_response_judges_see_the_judged_message_last_and_nothing_after_it():
    teacher = judged_by(0.8)
    await judge_axes(TASK, HOTELS.tools, GOOD, teacher, seed=0)
    for judge in (judges.JudgeResponseUnderstanding, judges.JudgeResponsePlanning):
        seen = [request.conversation for request in teacher.asked if isinstance(request, judge)]
        assert seen == [GOOD[:4], GOOD[:6], GOOD[:8]]
    (first,) = (request for request in teacher.asked if isinstance(request, judges.JudgeQueryUnderstanding))
    assert first.conversation == GOOD[:2]


async def test_numbers_that_no_response_holds_cap_the_summary():
    invented = (*GOOD[:-1], altered(GOOD[-1], content="Price 91.5, rated 9.9 of 10 at https://x.org/y."))
    reward = await judge_axes(TASK, HOTELS.tools, invented, judged_by(1.0), seed=0)
    assert reward.final_answer == pytest.approx((1.0 + 0.25) / 2)


@pytest.mark.parametrize(
    ("language", "answer", "is_right"),
    [
        ("zh", "Done: booking id B7, price 91.5.", False),
        ("zh", "办好了：订单 B7，价格 91.5。", True),
        ("zh", "B7, 91.5 USD。", False),
        ("en", "Done: booking id B7, price 91.5.", True),
        ("en", "已完成: booking id B7, price 91.5.", False),
        ("en", "Done: booking id B7 for 李伟, price 91.5.", False),
    ],
)
async def test_an_answer_in_another_language_is_worth_nothing_by_rule(language, answer, is_right):
    messages = (*GOOD[:-1], altered(GOOD[-1], content=answer))
    asked = task("find_hotel", "book_hotel", language=language)
    reward = await judge_axes(asked, HOTELS.tools, messages, judged_by(1.0), seed=0)
    assert reward.final_answer == float(is_right)


async def test_of_several_judgements_on_an_axis_the_lowest_counts():
    given = [judges.Judgement(score=score, reason="so") for score in (1.0, 0.25, 1.0)]
    teacher = judged_by(1.0, script={judges.JudgeResponsePlanning: given})
    reward = await judge_axes(TASK, HOTELS.tools, GOOD, teacher, seed=0)
    assert reward.tool_response_conditioned_planning == 0.25
    assert reward.tool_response_understanding == 1.0


async def test_a_task_that_needs_tools_and_got_none_is_rejected_and_a_right_refusal_is_not():
    silent = (GOOD[0], Message(role="assistant", reasoning_content="no", content="I cannot do that."))
    with pytest.raises(Rejected, match="answered without a tool call"):
        await judge_axes(TASK, HOTELS.tools, silent, judged_by(1.0), seed=0)
    refusal = task("find_hotel", expectation="refuse")
    reward = await judge_axes(refusal, HOTELS.tools, silent, judged_by(1.0), seed=0)
    assert reward.tool_call_status is None
    assert reward.mean == 1.0


def test_a_low_axis_or_mean_rejects_and_scores_at_the_threshold_are_kept():
    thresholds = RewardThresholds(mean=0.5, every_axis=0.25)

    def axes(**changes: float) -> RewardAxes:
        return RewardAxes(**(dict.fromkeys(RewardAxes.AXES, 0.5) | changes))

    check_thresholds(axes(), thresholds)
    check_thresholds(axes(planning=0.25, final_answer=0.75), thresholds)
    with pytest.raises(Rejected, match=r"^low planning: 0\.24$"):
        check_thresholds(axes(planning=0.24, final_answer=1.0), thresholds)
    check_thresholds(axes(tool_call_status=0.2, final_answer=0.9), thresholds)
    with pytest.raises(Rejected, match=r"^low tool call status: 0\.19$"):
        check_thresholds(axes(tool_call_status=0.19, final_answer=1.0), thresholds)
    with pytest.raises(Rejected, match=r"^low mean reward: 0\.49$"):
        check_thresholds(axes(planning=0.4), thresholds)
