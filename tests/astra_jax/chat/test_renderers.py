"""A second opinion of the chat format: Prime Intellect's `renderers`, which render and extend without a template."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from astra_jax.chat.format import Source, render, segments
from astra_jax.chat.template import PROBES, template_message
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.chat.tool_calls import ParsedToolCall, parse_turn
from astra_jax.episodes.rollout import Start
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.records import Message, ToolCall, ToolDocument
from tests.astra_jax.episodes.scripted_policy import run_scripted
from tests.shared_data import shared_data

pytest.importorskip("renderers", reason="needs renderers of the extra `dev`", exc_type=ImportError)
from renderers.base import ToolCallParseStatus
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

ENVIRONMENT = tiny_environment()
# Composed characters and no tag of the format, which no message of a record has either.
words = st.sampled_from(["look", " up", "房价", "é", "\n", "  ", "\n\n", '"', "{", "\\", "2150", "<", "|im_end|", "🏠"])
texts = st.lists(words, max_size=5).map("".join)
arguments = st.dictionaries(texts, st.recursive(texts | st.integers() | st.none(), st.lists, max_leaves=3), max_size=2)
calls = st.builds(ToolCall, id=st.just("c"), name=st.sampled_from(["find_flat", "get_rent", "x"]), arguments=arguments)
documents = st.builds(
    ToolDocument,
    name=st.sampled_from(["find_flat", "get_rent"]),
    description=texts,
    parameters=st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(texts, st.just({"type": "string"}), max_size=2)}
    ),
)
turns = st.builds(
    lambda said, responses: [said, *(Message(role="tool", content=response) for response in responses)],
    st.builds(
        Message,
        role=st.just("assistant"),
        content=texts.map(str.lstrip),  # blanks would be one token with the line end before them: a test of its own
        reasoning_content=st.none() | texts,
        tool_calls=st.lists(calls, max_size=3).map(tuple),
    ),
    st.lists(texts, max_size=3),
)
conversations = st.builds(
    lambda system, queries: [*system, *(message for query in queries for message in query)],
    st.lists(st.builds(Message, role=st.just("system"), content=texts), max_size=1),
    st.lists(
        st.builds(
            lambda asked, answered: [asked, *(message for turn in answered for message in turn)],
            st.builds(Message, role=st.just("user"), content=texts),
            st.lists(turns, max_size=3),
        ),
        min_size=1,
        max_size=2,
    ),
)


@pytest.fixture(scope="module", params=["official", "tiny"])
def both(request, tokenizer, tmp_path_factory):
    """Our tokenizer, and theirs of the same files, for a renderer that thinks or does not."""
    if request.param == "official":
        folder = shared_data("qwen_tokenizer", "tokenizer_config.json").parent
    else:
        folder = tmp_path_factory.mktemp("tiny")
        tokenizer.save(folder, model_max_length=1024)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    return Tokenizer.load(folder), lambda thinks: Qwen3Renderer(theirs, Qwen3RendererConfig(enable_thinking=thinks))


def rendered_by(renderer, messages, tools=(), **options):
    documents = [tool.to_openai() for tool in tools] or None
    return renderer.render([template_message(message) for message in messages], tools=documents, **options)


def test_conversations_are_theirs_token_by_token_and_so_is_who_wrote_them(both):
    tokenizer, renderer = both

    @settings(max_examples=60)
    @given(conversations, st.lists(documents, max_size=2), st.booleans())
    def check(messages, tools, add_generation_prompt):
        theirs = rendered_by(renderer(True), messages, tools, add_generation_prompt=add_generation_prompt)
        assert (
            tokenizer.encode(render(messages, tools, add_generation_prompt=add_generation_prompt)) == theirs.token_ids
        )
        encoded = tokenizer.encode_segments(segments(messages, tools))
        sampled = (encoded.sources == Source.MODEL).tolist()
        assert sampled == theirs.sampled_mask[: len(sampled)]

    check()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
def test_the_conversations_that_checkpoints_are_asked_are_theirs(both, probe):
    tokenizer, renderer = both
    options = {"add_generation_prompt": probe.add_generation_prompt}
    theirs = rendered_by(renderer(probe.enable_thinking), probe.messages, probe.tools, **options)
    text = render(probe.messages, probe.tools, enable_thinking=probe.enable_thinking, **options)
    assert tokenizer.encode(text) == theirs.token_ids


def test_a_blank_at_the_beginning_of_a_message_is_the_one_difference(both):
    """The template's text is tokenised whole, and so is ours; they cut it where the policy's tokens begin."""
    tokenizer, renderer = both
    messages = [
        Message(role="user", content="?"),
        Message(role="assistant", content="\nyes"),
        Message(role="user", content="?"),
    ]
    theirs, ours = rendered_by(renderer(True), messages).token_ids, tokenizer.encode(render(messages))
    assert tokenizer.decode(ours) == tokenizer.decode(theirs)
    assert len(ours) == len(theirs) - 1


GOOD = [
    '{"name": "find_flat", "arguments": {"owner": "Quartz Heron"}}',
    '{"name": "find_flat", "arguments": {"owner": "nobody </think> <tool_call>"}}',
    '{"name": "x", "arguments": {}}',
]
MALFORMED = ["f(1)", '{"name": "f"} and more', "[1]", '{"arguments": {}}', '{"name": "f", "argum', ""]
STRICTER = [
    *('{"name": 3}', '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": null}'),
    *('{"name": "f"}', '{"name": "f", "parameters": {"a": 1}}', '{"name": "f", "arguments": {}, "id": "c"}'),
    *('{"name": "f", "arguments": {"a": NaN}}', '{"name": "f", "arguments": {"a": "\\ud800"}}'),
]
"""What they take for calls, though no tool can be given it."""
blocks = st.lists(st.sampled_from([*GOOD, *MALFORMED, *STRICTER]), max_size=4)


def message_of(reasoning: str, content: str, of_calls: list[str]) -> str:
    said = "\n".join([content, *(f"<tool_call>\n{block}\n</tool_call>" for block in of_calls)])
    return f"<think>\n{reasoning}\n</think>\n\n{said}"


def test_calls_good_and_bad_are_found_where_they_find_them(both):
    tokenizer, renderer = both

    @settings(max_examples=60)
    @given(texts, texts, blocks)
    def check(reasoning, content, of_calls):
        ids = [*tokenizer.encode(message_of(reasoning, content, of_calls)), tokenizer.end_id]
        theirs, ours = renderer(True).parse_response(ids).tool_calls, parse_turn(tokenizer.decode(ids)).tool_calls
        assert len(theirs) == len(ours) == len(of_calls)
        for block, they, we in zip(of_calls, theirs, ours, strict=True):
            assert isinstance(we, ParsedToolCall) == (block in GOOD)
            assert (they.status is ToolCallParseStatus.OK) == (block in GOOD + STRICTER)
            if block in GOOD:
                assert (we.name, we.arguments) == (they.name, they.arguments)

    check()


@pytest.mark.parametrize(
    ("text", "num_ours", "num_theirs"),
    [
        # Only we look whether a tag stands inside the JSON of a call.
        ('<tool_call>\n{"name": "f", "arguments": {"a": "</tool_call>"}}\n</tool_call>', 1, 0),
        # A whole call is one, also where the policy stopped before its last tag.
        ('<tool_call>\n{"name": "f", "arguments": {}}', 1, 0),
        # To them a call ends the thoughts; to us thoughts that never end call nothing.
        ('<think>\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', 0, 1),
    ],
)
def test_what_else_is_read_another_way(both, text, num_ours, num_theirs):
    tokenizer, renderer = both
    ids = [*tokenizer.encode(text), tokenizer.end_id]
    theirs, ours = renderer(True).parse_response(ids).tool_calls, parse_turn(tokenizer.decode(ids)).tool_calls
    assert sum(isinstance(call, ParsedToolCall) for call in ours) == num_ours
    assert sum(call.status is ToolCallParseStatus.OK for call in theirs) == num_theirs


def test_an_episode_goes_on_with_the_tokens_that_they_would_go_on_with(both):
    """Turn by turn, from what was sampled and what the tools said, bad calls included; nothing is tokenised again."""
    tokenizer, renderer = both

    @settings(max_examples=25)
    @given(st.lists(st.tuples(texts, texts, blocks.filter(len)), min_size=1, max_size=3), st.integers(0, 40))
    def check(turns, cut):
        said = [message_of(*turn) for turn in [*turns, ("", "It is 2150.", [])]]
        sampled = [[*tokenizer.encode(text[:cut]), *tokenizer.encode(text[cut:]), tokenizer.end_id] for text in said]
        scripted = run_scripted(
            Start(ENVIRONMENT, ENVIRONMENT.tools), sampled, tokenizer=tokenizer, sandbox=InProcessSandbox()
        )
        episode = asyncio.run(scripted)
        question = [Message(role="user", content=ENVIRONMENT.question)]
        tools = [tool.document for tool in ENVIRONMENT.tools]
        ids = rendered_by(renderer(True), question, tools, add_generation_prompt=True).token_ids
        responses = iter(episode.outcomes)
        for (_, _, of_calls), message in zip(turns, sampled, strict=False):
            shown = [{"role": "tool", "content": next(responses).response} for _ in of_calls]
            ids = renderer(True).bridge_to_next_turn(ids, message, shown).token_ids
        assert next(responses, None) is None
        assert episode.stop_reason == "no_tool_call"
        assert episode.ledger.ids == [*ids, *sampled[-1]]

    check()
