"""A turn of an episode: the policy's calls, the responses, and the counts of the reward."""

from __future__ import annotations

import asyncio
import json

import pytest

from astra_jax.chat.format import Source, render, tool_call_text
from astra_jax.episodes.episode import MODEL_ERRORS, Episode, ToolOutcome
from astra_jax.episodes.finished import finished_episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rewards import REWARDS, episode_reward
from astra_jax.testing import InProcessSandbox, tiny_environment
from sandbox.client import AsyncSandboxClient, SandboxUnavailable
from sandbox.protocol import ErrorKind, ExecuteReply, ToolError, Usage
from synthesis.answers.tool_response import tool_response
from synthesis.records import Environment, EnvironmentTool, Message, ToolCall, ToolDocument

ENVIRONMENT = tiny_environment()


def tool(name: str, source: str) -> EnvironmentTool:
    document = ToolDocument(name=name, description="", parameters={"type": "object", "properties": {}})
    return EnvironmentTool(document=document, source=source)


def an_episode(*more: EnvironmentTool, state=None) -> Episode:
    return Episode(ENVIRONMENT, (*ENVIRONMENT.tools, *more), TokenLedger(), state)


def call(name: str, **arguments) -> str:
    return tool_call_text(ToolCall(id="c", name=name, arguments=arguments))


def responses(said) -> list[str]:
    return [segment.text for segment in said if segment.source is Source.TOOL]


async def test_calls_that_cannot_be_made_are_answered_and_count_as_calls():
    episode, sandbox = an_episode(), InProcessSandbox()
    text = "\n".join(
        [
            call("find_flat", owner="Quartz Heron"),
            call("no_such_tool"),
            "<tool_call>\nfind_flat(1)\n</tool_call>",
            '<tool_call>\n{"name": "find_flat", "arguments": 3}\n</tool_call>',
            call("find_flat", owner="nobody"),
            call("get_rent", wrong_argument=1),
        ]
    )
    said = await episode.take_turn(text + "<|im_end|>", sandbox)
    flat, *errors = map(json.loads, responses(said))
    assert flat == "Amber Falcon"
    assert [next(iter(error)) for error in errors] == ["error"] * 5
    assert errors[0]["error"] == "unknown tool"
    assert "JSON" in errors[1]["error"]
    assert '"arguments"' in errors[2]["error"]
    assert "no such owner: nobody" in errors[3]["error"]
    assert "wrong_argument" in errors[4]["error"]
    assert (episode.counts, sandbox.num_calls) == ((1, 2, 6), 3)
    assert [outcome.ok for outcome in episode.outcomes] == [True] + [False] * 5
    # A call that asks for an unknown owner is valid.
    assert [outcome.is_valid for outcome in episode.outcomes] == [True, False, False, False, True, False]
    kinds = [None, "unknown_tool", "malformed_call", "malformed_call", "exception", "wrong_arguments"]
    assert [outcome.error_kind for outcome in episode.outcomes] == kinds
    assert episode.stop_reason is None


async def test_an_outcome_has_the_call_its_value_and_the_response():
    episode = an_episode(tool("weather", "def weather():\n    return 'rain'"))
    calls = [call("get_rent", flat="Amber Falcon"), call("no_such_tool", a=1), "<tool_call>\nnothing\n</tool_call>"]
    calls += [call("weather"), call("find_flat", owner="nobody")]
    await episode.take_turn("\n".join(calls), InProcessSandbox())
    rent, unknown, malformed, weather, nobody = episode.outcomes
    assert rent == ToolOutcome("get_rent", {"flat": "Amber Falcon"}, None, 2150, "2150", False)
    assert unknown == ToolOutcome("no_such_tool", {"a": 1}, "unknown_tool", None, '{"error": "unknown tool"}', False)
    assert malformed == ToolOutcome("", {}, "malformed_call", None, malformed.response, False)
    assert weather == ToolOutcome("weather", {}, None, "rain", '"rain"', True)
    error = '{"error": "ValueError: no such owner: nobody"}'
    assert nobody == ToolOutcome("find_flat", {"owner": "nobody"}, "exception", None, error, False)


async def test_a_call_that_a_tool_took_is_valid_also_if_its_document_names_nothing():
    """A tool of any arguments, whose document names none: only a call that fails is held against the policy."""
    episode = an_episode(tool("any", "def any(**given):\n    return 1 / given['count']"))
    await episode.take_turn("\n".join([call("any", count=1), call("any", count=0)]), InProcessSandbox())
    assert [(outcome.ok, outcome.is_valid) for outcome in episode.outcomes] == [(True, True), (False, False)]


async def test_an_error_in_a_tool_has_the_sandboxs_kind():
    class Fails(InProcessSandbox):
        async def execute(self, source, function, arguments, **_):
            error = ToolError(kind=arguments["owner"], message="no")
            usage = Usage(wall_seconds=0, cpu_seconds=0, max_rss_bytes=0)
            return ExecuteReply(status="error", error=error, usage=usage)

    episode = an_episode()
    await episode.take_turn("\n".join(call("find_flat", owner=kind) for kind in ErrorKind), Fails())
    assert [outcome.error_kind for outcome in episode.outcomes] == list(ErrorKind)
    assert all(outcome.is_valid and not outcome.ok for outcome in episode.outcomes)
    assert set(ErrorKind).isdisjoint(MODEL_ERRORS)


async def test_text_after_a_message_is_the_templates_and_only_responses_are_the_tools():
    calls = tuple(
        ToolCall(id=owner, name="find_flat", arguments={"owner": owner}) for owner in ("Quartz Heron", "Copper Lynx")
    )
    asked = [Message(role="user", content="?"), Message(role="assistant", reasoning_content="Who?", tool_calls=calls)]
    flats = [Message(role="tool", content=f'"{flat}"', tool_call_id="c") for flat in ("Amber Falcon", "Jade Otter")]
    said = await an_episode().take_turn("\n".join(map(tool_call_text, calls)), InProcessSandbox())
    before, whole = render(asked).removesuffix("\n"), render([*asked, *flats], add_generation_prompt=True)
    assert before + "".join(segment.text for segment in said) == whole
    assert {segment.source for segment in said} == {Source.TEMPLATE, Source.TOOL}
    assert responses(said) == [flat.content for flat in flats]


def test_an_error_without_a_message_is_shown_by_its_kind():
    usage = Usage(wall_seconds=0, cpu_seconds=0, max_rss_bytes=0)
    failed = ExecuteReply(status="error", error=ToolError(kind=ErrorKind.TIMEOUT, message=""), usage=usage)
    assert tool_response(failed) == '{"error": "timeout"}'
    assert tool_response(ExecuteReply(status="ok", value={"房": 1.5}, usage=usage)) == '{"房": 1.5}'


def asked_back(**more) -> Environment:
    """The tiny environment, whose question does not say whose flat it is."""
    asked = {"question": "What is the rent of the flat?", "expectation": "ask_back", "missing": "owner"}
    return Environment.model_validate(ENVIRONMENT.model_dump() | asked | {"left_out": "Quartz Heron"} | more)


def refusing() -> Environment:
    """The tiny environment without its second tool."""
    first, second = ENVIRONMENT.sub_questions
    left = (first, second.model_copy(update={"call": None}))
    taken = {"expectation": "refuse", "missing": "get_rent", "tools": ENVIRONMENT.tools[:1], "sub_questions": left}
    return ENVIRONMENT.model_copy(update=taken)


async def test_asked_back_the_user_answers_once_and_the_episode_goes_on_to_the_answer():
    environment, sandbox = asked_back(), InProcessSandbox()
    question, back, reply, *rest = environment.gold_messages()
    assert (question.content, back.content) == (environment.question, "Which owner do you mean?")
    assert (reply.role, reply.content) == ("user", "I mean Quartz Heron.")
    episode = Episode(environment, environment.tools, TokenLedger())
    said = await episode.take_turn(back.content + "<|im_end|>", sandbox)
    following = "\n<|im_start|>user\nI mean Quartz Heron.<|im_end|>\n<|im_start|>assistant\n"
    assert "".join(segment.text for segment in said) == following
    assert all(segment.source is not Source.MODEL for segment in said)
    assert (episode.stop_reason, episode.final_text) == (None, "")
    for message in rest:
        if message.tool_calls:
            await episode.take_turn(tool_call_text(message.tool_calls[0]), sandbox)
    assert await episode.take_turn("The answer is 2150.<|im_end|>", sandbox) == []
    assert (episode.counts, episode.is_answer_accurate) == ((3, 3, 3), True)
    assert (episode.stop_reason, episode.final_text) == ("no_tool_call", "The answer is 2150.")


async def test_only_a_first_question_back_is_answered():
    episode = Episode(asked_back(), ENVIRONMENT.tools, TokenLedger())
    assert await episode.take_turn("Which owner do you mean?", InProcessSandbox())
    assert await episode.take_turn("Which owner do you mean?", InProcessSandbox()) == []
    assert (episode.counts, episode.is_answer_accurate) == ((1, 3, 1), False)
    silent = Episode(asked_back(), ENVIRONMENT.tools, TokenLedger())
    assert await silent.take_turn("It is 2150.", InProcessSandbox()) == []
    assert silent.counts == (0, 3, 1)  # a guess solves nothing; that it is right is another figure
    assert silent.is_answer_accurate


async def test_where_the_value_is_not_kept_the_question_back_ends_the_episode():
    unsaid = tuple(each.model_copy(update={"call": None}) for each in ENVIRONMENT.sub_questions)
    episode = Episode(asked_back(left_out=None, sub_questions=unsaid), ENVIRONMENT.tools, TokenLedger())
    assert await episode.take_turn("Which owner do you mean?", InProcessSandbox()) == []
    assert (episode.counts, episode.is_answer_accurate) == ((1, 1, 1), True)


@pytest.mark.parametrize("said", ["It is 2150.", "I cannot answer: no tool gives the rent."])
async def test_a_refusal_that_is_expected_is_accurate(tokenizer, said: str):
    episode = Episode(refusing(), ENVIRONMENT.tools[:1], TokenLedger())
    await episode.take_turn(said, InProcessSandbox())
    refuses = "cannot" in said
    assert (episode.is_answer_accurate, episode.counts) == (refuses, (int(refuses), 2, 1))
    result = finished_episode(episode, tokenizer)
    assert (result.must_refuse, result.has_refused) == (True, refuses)


async def test_a_message_without_a_call_ends_the_episode():
    episode = an_episode()
    assert await episode.take_turn("It is 2150.<|im_end|>", InProcessSandbox()) == []
    assert (episode.stop_reason, episode.final_text, episode.outcomes) == ("no_tool_call", "It is 2150.", [])


class Counter(InProcessSandbox):
    """A service whose one tool counts in the episode's state; the first call is slow, and the second one fails."""

    async def execute(self, source, function, arguments, *, state=None, **_):
        self.num_calls += 1
        usage = Usage(wall_seconds=0, cpu_seconds=0, max_rss_bytes=0)
        if self.num_calls == 2:
            error = ToolError(kind=ErrorKind.EXCEPTION, message="ValueError: no")
            return ExecuteReply(status="error", error=error, usage=usage)
        await asyncio.sleep(0.05 if state["count"] == 0 else 0)
        new = {"count": state["count"] + 1}
        return ExecuteReply(status="ok", value=new["count"], state=new, usage=usage)


async def test_calls_of_a_stateful_environment_see_one_anothers_changes_and_none_of_a_call_that_failed():
    start = {"count": 0}
    episode = an_episode(state=start)
    said = await episode.take_turn("\n".join([call("find_flat", owner="x")] * 3), Counter())
    assert [response[:8] for response in responses(said)] == ["1", '{"error"', "2"]
    assert (episode.state, start) == ({"count": 2}, {"count": 0})


class Outage(InProcessSandbox):
    async def execute(self, *_, **__):
        raise SandboxUnavailable("down")


async def test_an_outage_is_neither_a_response_nor_an_outcome():
    episode = an_episode()
    with pytest.raises(SandboxUnavailable):
        await episode.take_turn(call("find_flat", owner="Quartz Heron"), Outage())
    assert (episode.outcomes, episode.stop_reason) == ([], None)


async def test_the_real_sandbox_answers_like_the_one_in_this_process(tokenizer, sandbox_url):
    """Values, errors, and the oddest arguments that a policy can write; a lone surrogate or NaN is a response."""
    echo = tool("echo", "def echo(value):\n    return value")
    odd = [{"deep": [[[[None]]]]}, 10**30, -0.0, 1e308, "房价\n\u0000🏠</tool_call>", [], True]
    calls = [call("echo", value=value) for value in odd]
    calls += [call("find_flat", owner="nobody"), call("get_rent", flat="Amber Falcon"), call("get_rent")]
    text = "\n".join(calls)
    there, here = an_episode(echo), an_episode(echo)
    async with AsyncSandboxClient(sandbox_url) as sandbox:
        said_there = await there.take_turn(text, sandbox)
        unreadable = an_episode(
            tool("said", "def said():\n    return '\\ud800'"),
            tool("raised", "def raised():\n    raise ValueError('\\ud800')"),
            tool("nan", "def nan():\n    return float('nan')"),
        )
        said = await unreadable.take_turn("\n".join(map(call, ("said", "raised", "nan"))), sandbox)
    said_here = await here.take_turn(text, InProcessSandbox())
    assert responses(said_there)[: len(odd)] == responses(said_here)[: len(odd)]
    assert [outcome.ok for outcome in there.outcomes] == [outcome.ok for outcome in here.outcomes]
    assert [outcome.value for outcome in there.outcomes] == [outcome.value for outcome in here.outcomes]
    assert "no such owner: nobody" in there.outcomes[len(odd)].response
    assert len(unreadable.outcomes) == 3
    assert len(tokenizer.encode_segments(said).ids) > 0


def changed(**fields) -> Environment:
    return Environment.model_validate({**ENVIRONMENT.model_dump(), **fields})


async def after(environment: Environment, *texts: str) -> Episode:
    episode = Episode(environment, environment.tools, TokenLedger(), environment.state)
    for text in texts:
        await episode.take_turn(text, InProcessSandbox())
    return episode


async def test_where_no_tool_fits_saying_so_is_rewarded_and_calling_in_vain_costs():
    environment = changed(sub_questions=(), composition=None, expectation="refuse", missing="get_rent")
    refusal = "<think>\nNo tool.\n</think>\n\nI cannot look that up."
    refused = await after(environment, refusal)
    tried_first = await after(environment, call("find_flat", owner="Quartz Heron"), refusal)
    made_up = await after(environment, "It is 2150.")
    only_thought = await after(environment, "<think>\nI cannot look that up.\n</think>\n\nIt is 2150.")
    assert episode_reward(refused) == pytest.approx(1.0, abs=1e-5)
    assert 0 < episode_reward(tried_first) < episode_reward(refused)
    assert episode_reward(made_up) == episode_reward(only_thought) == 0


async def test_if_a_tool_is_missing_using_the_others_and_refusing_the_rest_earns_most(tokenizer):
    find, rent = ENVIRONMENT.sub_questions
    asked = (find, rent.model_copy(update={"call": None}))
    missing = {"expectation": "refuse", "missing": "get_rent", "composition": None}
    environment = changed(sub_questions=asked, tools=ENVIRONMENT.tools[:1], **missing)
    refusal = "I found Amber Falcon. I cannot answer the rest: no tool gives the rent."
    found = call("find_flat", owner="Quartz Heron")
    episodes = [await after(environment, *said) for said in ((found, refusal), (refusal,), (found, "2150."))]
    rewards = {
        name: [REWARDS[name](finished_episode(episode, tokenizer)) for episode in episodes]
        for name in ("f1", "refusals")
    }
    assert rewards["f1"] == pytest.approx([1.0, 2 / 3, 2 / 4], abs=1e-5)
    assert rewards["refusals"] == [1.0, 0.5, 0.0]


async def test_the_state_an_episode_leaves_behind_is_a_sub_task():
    environment = changed(state={"count": 0}, final_state={"count": 1})
    gold = [call("find_flat", owner="Quartz Heron"), call("get_rent", flat="Amber Falcon")]
    right, wrong = await after(environment, *gold), await after(environment, *gold)
    right.state = {"count": 1}
    assert (right.counts, wrong.counts) == ((3, 3, 3), (2, 3, 3))
