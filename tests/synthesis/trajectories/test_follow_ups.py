"""Tasks in several requests: written with their facts, said when their time has come, judged request by request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts import judges
from synthesis.prompts.agent_turn import AgentMessage, RequestedCall, TakeTurn
from synthesis.prompts.simulated_user import AnswerAsUser, ContinueAsUser, UserTurn
from synthesis.prompts.tasks import WriteFollowUp, WrittenFollowUp
from synthesis.record_io import RecordSource
from synthesis.records import FollowUp, Task, Trajectory
from synthesis.stage import Rejected
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.backends import Emulator
from synthesis.track.seeds import derived_random
from synthesis.trajectories.chains import bind_chain
from synthesis.trajectories.collection import collect_conversation
from synthesis.trajectories.follow_ups import calls_per_request, request_positions, task_so_far, write_follow_ups
from synthesis.trajectories.reward_axes import judge_axes
from synthesis.trajectories.statistics import trajectory_statistics
from tests.synthesis.altered import altered
from tests.synthesis.trajectories.servers import HOTELS, task
from tests.synthesis.trajectories.test_pipeline import synthesize

CHAIN = bind_chain(HOTELS, ["find_hotel", "book_hotel"])
FIRST = task("find_hotel", slots={"city": "Oslo"}, text="Find a hotel in Oslo.")
WHOLE = altered(
    task("find_hotel", "book_hotel", text="Find a hotel in Oslo."),
    follow_ups=(FollowUp(text="Book it for Ana.", num_calls=1),),
)
SEARCH = AgentMessage(reasoning="look", tool_calls=(RequestedCall(name="find_hotel", arguments={"city": "Oslo"}),))
FOUND = AgentMessage(reasoning="enough", content="There is one.")
BOOK = AgentMessage(
    reasoning="book", tool_calls=(RequestedCall(name="book_hotel", arguments={"hotel_id": "H1", "guest": "Ana"}),)
)
BOOKED = AgentMessage(reasoning="enough", content="It is booked.")


async def converse(*turns: AgentMessage, user=(), task_: Task = WHOLE):
    teacher = ScriptedTeacher({TakeTurn: turns, ContinueAsUser: user}, otherwise=ProceduralTeacher())
    backend = Emulator(ProceduralTeacher(), language="en", seed=0, failure_rate=0.0)
    limits = {"max_turns": 8, "deadline_seconds": 10.0}
    conversation = await collect_conversation(task_, HOTELS.tools, backend, teacher, seed=0, **limits)
    return conversation, teacher


@given(st.integers(2, 5), st.integers())
def test_every_call_of_a_chain_is_asked_for_in_two_or_three_requests(num_calls, seed):
    calls = calls_per_request(num_calls, derived_random(seed))
    assert sum(calls) == num_calls
    assert 2 <= len(calls) <= 3
    assert min(calls) >= 1


async def followed(text: str, slots: dict) -> Task:
    teacher = ScriptedTeacher({WriteFollowUp: [WrittenFollowUp(text=text, slots=slots)] * 2})
    return await write_follow_ups(FIRST, CHAIN, (1,), HOTELS, teacher, seed=0)


async def test_a_follow_up_extends_the_task_by_its_calls_and_its_new_facts():
    written = await followed("Book it for Ana.", {"guest": "Ana", "city": "Bergen"})
    assert written == WHOLE


@pytest.mark.parametrize(
    ("text", "slots", "reason"),
    [
        ("Book it.", {"guest": "Ana"}, "fact is not in the task's text"),
        ("Book it for Ana.", {}, "task without a needed fact"),
        ("Call book_hotel for Ana.", {"guest": "Ana"}, "tool name in the task"),
        ("Book H77 for Ana.", {"guest": "Ana", "hotel_id": "H77"}, "value that a tool gives out stands in the task"),
        (
            "Cancel B77 for Ana.",
            {"guest": "Ana", "booking_id": "B77"},
            "value that a tool gives out stands in the task",
        ),
    ],
)
async def test_a_follow_up_with_a_fault_is_rejected_with_its_reason(text, slots, reason):
    with pytest.raises(Rejected) as rejected:
        await followed(text, slots)
    assert rejected.value.reason == reason


async def test_the_user_goes_on_after_an_answer_and_the_agent_knows_only_the_request_so_far():
    conversation, teacher = await converse(
        SEARCH, FOUND, BOOK, BOOKED, user=[UserTurn(continues=True, text="Great, book it for Ana then.")]
    )
    assert [message.role for message in conversation.messages] == [
        "user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert conversation.stop_reason == "no_tool_call"
    assert [call.id for message in conversation.messages for call in message.tool_calls] == ["call_1", "call_2"]
    known = [request.task.chain.tools for request in teacher.asked if isinstance(request, TakeTurn)]
    assert known == [("find_hotel",)] * 2 + [("find_hotel", "book_hotel")] * 2
    assert task_so_far(WHOLE, conversation.messages) == WHOLE


async def test_the_user_hears_the_agents_words_and_not_its_thoughts():
    _, teacher = await converse(SEARCH, FOUND, user=[UserTurn(continues=False)])
    (goes_on,) = (request for request in teacher.asked if isinstance(request, ContinueAsUser))
    asks_back = AnswerAsUser(task=WHOLE, conversation=goes_on.conversation)
    assert goes_on.conversation[-1].reasoning_content == "enough"
    for request in (goes_on, asks_back):
        shown = request.messages()[1]["content"]
        assert "There is one." in shown
        assert "enough" not in shown
        assert "reasoning" not in shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("Now book it.", "simulated user left a fact out"),
        ("Use book_hotel for Ana.", "simulated user out of role"),
        ("请为 Ana 预订。", "task in another language"),
    ],
)
async def test_a_users_lost_fact_or_named_tool_rejects_the_trajectory(text, reason):
    with pytest.raises(Rejected) as rejected:
        await converse(SEARCH, FOUND, user=[UserTurn(continues=True, text=text)] * 2)
    assert rejected.value.reason == reason


async def test_each_request_is_judged_and_no_judge_knows_of_a_request_that_was_not_made_yet():
    conversation, _ = await converse(
        SEARCH, FOUND, BOOK, BOOKED, user=[UserTurn(continues=True, text="Book it for Ana.")]
    )
    messages = conversation.messages
    scores = {
        judges.JudgeQueryUnderstanding: (1.0, 0.5),
        judges.JudgePlanning: (1.0,),
        judges.JudgeResponseUnderstanding: (1.0, 1.0),
        judges.JudgeResponsePlanning: (1.0, 1.0),
        judges.JudgeAnswerRelevance: (1.0, 0.0),
        judges.JudgeAnswerSummary: (1.0, 0.5),
    }
    script = {kind: [judges.Judgement(score=score, reason="so") for score in given] for kind, given in scores.items()}
    teacher = ScriptedTeacher(script)
    reward = await judge_axes(WHOLE, HOTELS.tools, messages, teacher, seed=0)
    assert reward.query_understanding == 0.5
    assert reward.final_answer == 0.25  # the lower of the two answers'
    shown = {
        kind: [len(request.conversation) for request in teacher.asked if isinstance(request, kind)] for kind in scores
    }
    assert shown[judges.JudgeQueryUnderstanding] == [2, 6]
    assert shown[judges.JudgeAnswerRelevance] == shown[judges.JudgeAnswerSummary] == [4, 8]
    assert shown[judges.JudgeResponsePlanning] == [4, 8]
    for request in teacher.asked:
        assert len(request.task.chain.tools) == (1 if len(request.conversation) <= 4 else 2)


@pytest.fixture(scope="module")
def several_requests(tmp_path_factory) -> list[Trajectory]:
    import asyncio

    out = tmp_path_factory.mktemp("follow_ups") / "out"
    report = asyncio.run(synthesize(out, count=175, follow_up_share=1.0, max_offered_tools=24))
    assert report.kept == 175
    found = trajectory_statistics(out).requests_by_number
    records = list(RecordSource(out, Trajectory))
    assert found == {
        number: sum(len(record.task.follow_ups) + 1 == number for record in records) for number in (1, 2, 3)
    }
    return [record for record in records if record.task.follow_ups]


def test_in_a_synthesised_set_no_call_comes_before_the_request_for_it(several_requests):
    assert len(several_requests) > 80
    assert {record.language for record in several_requests} == {"en", "zh"}
    for record in several_requests:
        task_, messages = record.task, record.messages
        starts = request_positions(task_, messages)
        assert len(starts) == sum(message.role == "user" for message in messages) == 1 + len(task_.follow_ups)
        assert messages[starts[0]].content == task_.text
        for start, end in zip(starts, [*starts[1:], len(messages)], strict=True):
            asked_for = task_so_far(task_, messages[: start + 1]).chain.tools
            assert {call.name for message in messages[start:end] for call in message.tool_calls} <= set(asked_for)
            assert messages[end - 1].role == "assistant"
            assert not messages[end - 1].tool_calls
        assert record.reward.mean > 0.8
