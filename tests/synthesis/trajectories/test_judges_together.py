"""Judges of a message are asked in one call; each judgement is kept by itself, and none is given in sight of more."""

from itertools import pairwise

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.teacher.usage import metered_usage
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
