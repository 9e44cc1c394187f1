"""The loop of agent and tools: ids, limits, bad calls, questions back."""

import asyncio
import json

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.agent_turn import AgentMessage, RequestedCall, TakeTurn
from synthesis.prompts.simulated_user import AnswerAsUser
from synthesis.teacher.scripted import ScriptedTeacher
from synthesis.tools.backends import Emulator, ToolResponse
from synthesis.trajectories.collection import collect_conversation, offered_tools
from tests.synthesis.trajectories.servers import HOTELS, task

DONE = AgentMessage(reasoning="enough", content="It is 21 degrees.")


def calls(*names_and_arguments) -> AgentMessage:
    requested = tuple(RequestedCall(name=name, arguments=arguments) for name, arguments in names_and_arguments)
    return AgentMessage(reasoning="look", tool_calls=requested)


async def converse(replies, *, task_=None, backend=None, max_turns=6, deadline_seconds=10.0, user=()):
    teacher = ScriptedTeacher({TakeTurn: replies, AnswerAsUser: user}, otherwise=ProceduralTeacher())
    backend = backend or Emulator(ProceduralTeacher(), language="en", seed=0, failure_rate=0.0)
    conversation = await collect_conversation(
        task_ or task("find_hotel", "book_hotel"),
        HOTELS.tools,
        backend,
        teacher,
        seed=0,
        max_turns=max_turns,
        deadline_seconds=deadline_seconds,
    )
    return conversation, teacher


async def test_an_unknown_tool_or_bad_arguments_never_reach_the_server():
    class Untouchable:
        kind = "mcp"
        injected_failures = ()

        async def call(self, *_):
            raise AssertionError("the server was called")

    bad = calls(("fly", {}), ("get_weather", {"town": "Oslo"}), ("get_weather", {"city": 3}))
    conversation, _ = await converse([bad, DONE], backend=Untouchable())
    responses = [message for message in conversation.messages if message.role == "tool"]
    assert all(message.is_error for message in responses)
    assert [json.loads(message.content)["error"].split(":")[0] for message in responses] == [
        "unknown tool",
        "invalid arguments",
        "invalid arguments",
    ]


async def test_an_agent_that_never_stops_is_marked_and_not_passed_as_whole():
    conversation, _ = await converse([calls(("get_weather", {"city": "Oslo"}))] * 4, max_turns=4)
    assert conversation.stop_reason == "max_turns"


async def test_a_tool_that_hangs_ends_the_conversation_at_its_deadline():
    class Hanging:
        kind = "mcp"
        injected_failures = ()

        async def call(self, *_) -> ToolResponse:
            await asyncio.Event().wait()
            raise AssertionError

    conversation, _ = await converse(
        [calls(("get_weather", {"city": "Oslo"}))], backend=Hanging(), deadline_seconds=0.05
    )
    assert conversation.stop_reason == "deadline"


def test_the_tools_of_a_chain_are_offered_and_the_last_one_withheld_where_the_task_must_be_refused():
    def names(task_, limit: int, seed: int = 0) -> list[str]:
        return [tool.name for tool in offered_tools(HOTELS, task_, limit, seed)]

    asked = task("find_hotel", "book_hotel")
    assert names(asked, 2) == names(asked, 1) == ["find_hotel", "book_hotel"]
    assert names(asked, 9) == [tool.name for tool in HOTELS.tools]
    assert len({tuple(names(asked, 3, seed)) for seed in range(20)}) == 2
    refused = task("find_hotel", "book_hotel", expectation="refuse")
    assert names(refused, 9) == ["find_hotel", "cancel_booking", "get_weather"]
