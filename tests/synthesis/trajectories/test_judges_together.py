"""Judges of a message are asked in one call; each judgement is kept by itself, and none is given in sight of more."""

import asyncio
from itertools import pairwise

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.teacher.usage import Usage, metered_usage
from synthesis.trajectories.reward_axes import judge_axes
from tests.synthesis.teacher.asking import key, teacher_of  # noqa: F401 - a fixture
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told
from tests.synthesis.trajectories.servers import HOTELS
from tests.synthesis.trajectories.test_reward_axes import GOOD, TASK


async def judged(endpoint, tmp_path, *, at_once=False):
    replies: dict[str, dict] = {}
    endpoint.answer = lambda body: said(told(replies, body))
    teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", request_seconds=5)
    teacher.__class__ = ToldTeacher
    teacher.replies = replies
    with metered_usage() as usage:
        reward = await judge_axes(TASK, HOTELS.tools, GOOD, teacher, seed=0, judges_at_once=at_once)
    await teacher.close()
    return reward, usage


async def test_a_call_for_each_judged_message_gives_the_scores_of_a_call_for_each_judge(tmp_path):
    expected = await judge_axes(TASK, HOTELS.tools, GOOD, ProceduralTeacher(), seed=0)
    async with MockEndpoint(str).serving() as endpoint:
        reward, _ = await judged(endpoint, tmp_path)
    assert reward == expected
    assert len(endpoint.bodies) == 1 + sum(
        before.role == "tool" and after.role == "assistant" for before, after in pairwise(GOOD)
    )


async def test_no_judge_sees_later_messages_and_later_calls_begin_as_earlier_ones(tmp_path):
    async with MockEndpoint(str).serving() as endpoint:
        await judged(endpoint, tmp_path)
    prompts = [body["messages"][1]["content"] for body in endpoint.bodies]
    systems = {body["messages"][0]["content"] for body in endpoint.bodies}
    assert len(systems) == 1
    for earlier, later in pairwise(prompts):
        shared = len(earlier.split("]\n</conversation>")[0])
        assert later.startswith(earlier[:shared])
    assert GOOD[-1].content not in prompts[0]


async def test_at_once_is_one_call_which_says_where_the_conversation_ends_for_each(tmp_path):
    async with MockEndpoint(str).serving() as endpoint:
        reward, _ = await judged(endpoint, tmp_path, at_once=True)
    (body,) = endpoint.bodies
    assert "the conversation ends with message 2" in body["messages"][1]["content"]
    assert reward == await judge_axes(TASK, HOTELS.tools, GOOD, ProceduralTeacher(), seed=0)


async def test_judgements_that_are_in_flight_when_the_budget_ends_come_back_and_are_kept(tmp_path):
    replies: dict[str, dict] = {}
    async with MockEndpoint(lambda body: said(told(replies, body)), latency_seconds=0.2).serving() as endpoint:

        async def judge(**limits):
            teacher = teacher_of(endpoint, cache=tmp_path / "replies.sqlite", request_seconds=5, **limits)
            teacher.__class__ = ToldTeacher
            teacher.replies = replies
            return teacher, asyncio.create_task(
                judge_axes(TASK, HOTELS.tools, GOOD, teacher, seed=0, judges_at_once=True)
            )

        teacher, judging = await judge(max_tokens=1000)
        while not endpoint.bodies:
            await asyncio.sleep(0.01)
        teacher.budget.spend(Usage(1000, 0, 0.0))  # by another question
        judging.cancel()  # as a run that stops ends its items
        await asyncio.gather(judging, return_exceptions=True)
        await teacher.close()
        teacher, judging = await judge()
        assert await judging == await judge_axes(TASK, HOTELS.tools, GOOD, ProceduralTeacher(), seed=0)
        assert len(endpoint.bodies) == 1
        await teacher.close()
