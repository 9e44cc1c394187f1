"""The agent's turns are a model's own: real messages, real tools, its whole reasoning, several calls at once."""

import json

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from synthesis.prompts.agent_turn import AgentMessage, TakeTurn
from synthesis.records import Message, Task, TaskScores, ToolCall
from synthesis.stage import Rejected
from synthesis.teacher.calls import Completion, turn_of
from synthesis.teacher.protocol import BadReply
from synthesis.teacher.reading import require_keepable
from synthesis.tools.backends import ToolResponse
from synthesis.trajectories.collection import collect_conversation
from synthesis.trajectories.selection import SampleLength, TokenizerMissing
from tests.synthesis.teacher.asking import asking
from tests.synthesis.trajectories.servers import HOTELS

TASK = Task(
    id="t", text="Rooms in Oslo and Rome?", language="en", mode="server",
    scores=TaskScores(clarity=1, realism=1, tool_necessity=1),
)  # fmt: skip
THOUGHTS = "\nTwo cities, so two searches.\n\n  Neither needs the other.  \n"
TOOL = HOTELS.tools[0]
ARGUMENTS = dict.fromkeys(TOOL.parameters["properties"], "Oslo")


HI = {"type": "text", "text": "Hi."}


def call_of(name: str = TOOL.name, arguments: object = "{}") -> dict:
    return {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}


def turn(conversation=()) -> TakeTurn:
    said = (Message(role="user", content=TASK.text), *conversation)
    return TakeTurn(language="en", tools=HOTELS.tools, conversation=said, task=TASK)


EARLIER = (
    Message(
        role="assistant",
        reasoning_content=THOUGHTS,
        tool_calls=(ToolCall(id="call_1", name=TOOL.name, arguments={"city": "罗马"}),),
    ),
    Message(role="tool", content='{"rooms": 3}', tool_call_id="call_1", is_error=True),
)


async def said_by(message: dict, request=None):
    async with asking(lambda _: message, request_seconds=5) as (endpoint, teacher):
        reply = await teacher.ask(request or turn(), seed=0)
    return reply, endpoint.bodies, teacher


class Rooms:
    kind = "emulator"
    injected_failures = ()

    async def call(self, call_id, tool, arguments):
        return ToolResponse('{"rooms": 3}')


async def test_a_conversation_is_asked_for_in_real_messages_and_kept_word_for_word():
    turns = iter(
        [
            {"content": None, "reasoning_content": THOUGHTS, "tool_calls": [call_of(), call_of(arguments='{"a": 1}')]},
            {"content": "Three each.", "reasoning": "Both are there."},
        ]
    )
    async with asking(lambda _: next(turns), request_seconds=5) as (endpoint, teacher):
        conversation = await collect_conversation(
            TASK, HOTELS.tools, Rooms(), teacher, seed=0, max_turns=4, deadline_seconds=30
        )
    first, second = endpoint.bodies
    assert first["tools"] == [tool.to_openai() for tool in HOTELS.tools]
    assert "response_format" not in first
    assert [message["role"] for message in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert first["messages"] == second["messages"][:2]  # the conversation grows, and its beginning stays
    assert first["messages"][1] == {"role": "user", "content": TASK.text}
    assert [call["id"] for call in second["messages"][2]["tool_calls"]] == ["call_1", "call_2"]
    _, agent, *_, answer = conversation.messages
    assert agent.reasoning_content == THOUGHTS
    assert [call.arguments for call in agent.tool_calls] == [{}, {"a": 1}]
    assert (answer.reasoning_content, answer.content) == ("Both are there.", "Three each.")


def read(message: dict) -> tuple[AgentMessage, dict]:
    fields, mended = turn_of(Completion(message=message))
    reply = AgentMessage.model_validate(fields)
    require_keepable(reply)
    return reply, dict(mended)


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "Hi.", "reasoning_content": THOUGHTS}, THOUGHTS, "Hi."),
        ({"content": f"<think>{THOUGHTS}</think>\n\nHi."}, THOUGHTS, "Hi."),
        ({"content": [{"type": "text", "text": "Hi."}]}, "", "Hi."),
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": THOUGHTS}]}, HI]}, THOUGHTS, "Hi."),
        ({"content": f"<think>{THOUGHTS}</think>\n\nHi.", "reasoning": THOUGHTS.strip()}, THOUGHTS.strip(), "Hi."),
    ],
)
def test_reasoning_is_taken_from_wherever_the_server_puts_it(message, reasoning, content):
    reply, _ = read(message)
    assert (reply.reasoning, reply.content) == (reasoning, content)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"city": "Oslo"}', {"city": "Oslo"}), ("{'city': 'Oslo',}", {"city": "Oslo"}),
        ({"city": "Oslo"}, {"city": "Oslo"}), ('"{\\"city\\": null}"', {"city": None}), ("", {}), (None, {}),
    ],
)  # fmt: skip
def test_arguments_are_read_as_servers_write_them(arguments, expected):
    reply, _ = read({"content": None, "tool_calls": [call_of(arguments=arguments)]})
    assert reply == AgentMessage(tool_calls=[{"name": TOOL.name, "arguments": expected}])


def test_calls_that_a_server_leaves_in_the_text_are_taken_out_and_counted():
    text = 'One moment.\n<tool_call>\n{"name": "a", "arguments": {"x": 1}}\n</tool_call>\n'
    reply, mended = read({"content": text + '<tool_call>{"name": "b"}</tool_call>'})
    assert reply.content == "One moment."
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("a", {"x": 1}), ("b", {})]
    assert mended == {"calls in the text": 1}


@pytest.mark.parametrize(
    "message",
    [
        {"content": ""}, {"content": None, "reasoning_content": THOUGHTS}, {"content": "<think>no end"},
        {"content": None, "tool_calls": [call_of(arguments='{"city": "Os')]},
        {"content": None, "tool_calls": [call_of(arguments="[1]")]},
        {"content": None, "tool_calls": [call_of(name="")]}, {"content": 'Yes. <tool_call>{"name": "a"'},
        {"content": '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b", "argum'},
        {"content": "Here.", "tool_calls": [call_of(), "find"]}, {"content": "Here.", "tool_calls": {"a": call_of()}},
        {"content": "Hi.", "reasoning": "So.", "reasoning_content": "No."},
        {"content": [{"type": "image_url", "image_url": {}}, HI]},
        {"content": '<tool_call>{"name": "a", "arguments": {}}</tool_call>', "tool_calls": [call_of()]},
        {"content": "Hi.</tool_call>", "tool_calls": [call_of()]}, {"content": "<tool_response>Hi.</tool_response>"},
        {"content": None, "tool_calls": [{"function": {"name": TOOL.name, "parameters": ARGUMENTS}}]},
        {"content": None, "tool_calls": [{"function": {"name": TOOL.name, "arguments": "", "args": '{"a": 1}'}}]},
        {"content": '<tool_call>{"name": "a", "parameters": {"x": 1}}</tool_call>'},
        {"content": None, "tool_calls": [call_of(name='a", "b": "')]},
        {"content": None, "tool_calls": [call_of(arguments='{"city": NaN}')]},
        {"content": None, "tool_calls": [call_of(arguments=f'{{"city": {"[" * 150 + "]" * 150}}}')]},
        {"content": None, "tool_calls": [call_of(arguments=f'{{"city": {"[" * 200 + "]" * 200}}}')]},
        {"content": None, "tool_calls": [call_of(arguments={"city": float("inf")})]},
        {"content": None, "tool_calls": [call_of(arguments={"city": 10**400})]},
    ],
)  # fmt: skip
def test_a_turn_that_would_need_another_meaning_cannot_be_read(message):
    with pytest.raises(ValueError):
        read(message)


async def test_a_turn_that_cannot_be_read_is_drawn_anew_without_a_complaint_and_then_rejects():
    async with asking(lambda _: {"content": "<think>no end"}, request_seconds=5) as (endpoint, teacher):
        with pytest.raises(BadReply, match="after 2 repairs"):
            await teacher.ask(turn(), seed=7)
    assert [body["seed"] for body in endpoint.bodies] == [7, 8, 9]
    assert len({json.dumps(body["messages"]) for body in endpoint.bodies}) == 1


async def test_earlier_turns_are_shown_without_their_reasoning_and_without_marks_of_failures():
    _, (body,), _ = await said_by({"content": "Hi."}, turn(EARLIER))
    assert body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"city": "罗马"}'
    assert "Two cities" not in json.dumps(body)
    assert "is_error" not in json.dumps(body)  # whether a call failed must be read from its response


async def test_a_reply_cut_at_the_limit_is_asked_for_once_more_with_a_larger_one_and_then_rejects():
    cut = {"content": "x", "cut": True}
    async with asking(lambda _: cut, request_seconds=5, max_completion_tokens=100) as (endpoint, teacher):
        with pytest.raises(BadReply, match="cut off at the token limit, also at 200 tokens"):
            await teacher.ask(turn(), seed=0)
        assert [body["max_completion_tokens"] for body in endpoint.bodies] == [100, 200]
        assert teacher.ledger.of("TakeTurn").cut_off == 2
        endpoint.answer = lambda body: {"content": "Hi.", "cut": body["max_completion_tokens"] == 100}
        assert (await teacher.ask(turn(), seed=1)).content == "Hi."


def student(folder):
    """Save a tokenizer of words with a chat template."""
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    tokenizer.chat_template = (
        "{% for tool in tools %}{{ tool.function.name }} {% endfor %}"
        "{% for message in messages %}{{ message.role }} {{ message.reasoning_content }} {{ message.content }} "
        "{% endfor %}"
    )
    tokenizer.save_pretrained(folder)
    return folder


def test_a_sample_that_is_longer_in_the_students_tokens_than_it_may_be_is_rejected(tmp_path):
    messages = (Message(role="user", content="one two three"), Message(role="assistant", content="four"))
    exactly = len(HOTELS.tools) + 2 + 3 + 1
    SampleLength(student(tmp_path), exactly).require_fits(messages, HOTELS.tools)
    with pytest.raises(Rejected, match=f"sample too long: {exactly} tokens of the student, at most {exactly - 1}"):
        SampleLength(tmp_path, exactly - 1).require_fits(messages, HOTELS.tools)


async def test_reasoning_has_its_token_count_from_the_endpoint_or_else_from_the_students_tokenizer(tmp_path):
    length = SampleLength(student(tmp_path), 100)
    thought = Message(role="assistant", content="Hi.", reasoning_content="one two three")
    assert length.with_reasoning_counted(thought).reasoning_tokens == 3
    told = thought.model_copy(update={"reasoning_tokens": 7})
    assert length.with_reasoning_counted(told) is told
    reply, _, _ = await said_by({"content": "Hi.", "reasoning_content": "one two", "reasoning_tokens": 5})
    assert reply.reasoning_tokens == 5


def test_a_student_without_a_tokenizer_or_template_is_told_of_in_one_line(tmp_path):
    with pytest.raises(TokenizerMissing, match=r"the student's tokenizer in .* cannot be read"):
        SampleLength(tmp_path / "nowhere", 10)
    folder = student(tmp_path)
    for path in folder.glob("chat_template*"):
        path.unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(TokenizerMissing, match="has no chat template beside it"):
        SampleLength(folder, 10)
