"""A second opinion of tool calls and of the next turn's tokens: Prime Intellect's `renderers`.

That whole conversations are rendered alike, `test_format.py` proves against the official template.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from astra_jax.chat.template import template_message
from astra_jax.chat.tool_calls import ParsedToolCall, parse_turn
from astra_jax.episodes.rollout import Start
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.records import Message
from tests.astra_jax.episodes.scripted_policy import run_scripted

pytest.importorskip("renderers", reason="needs renderers of the extra `dev`", exc_type=ImportError)
from renderers.base import ToolCallParseStatus
from renderers.configs import Qwen3RendererConfig
from renderers.qwen3 import Qwen3Renderer

ENVIRONMENT = tiny_environment()
# Composed characters and no tag of the format, which no message of a record has either.
words = st.sampled_from(["look", " up", "房价", "é", "\n", "  ", "\n\n", '"', "{", "\\", "2150", "<", "|im_end|", "🏠"])
texts = st.lists(words, max_size=5).map("".join)


@pytest.fixture(scope="module")
def both(either, tokenizer_folder):
    """Our tokenizer, and theirs of the same files, for a renderer that thinks or does not."""
    theirs = PreTrainedTokenizerFast.from_pretrained(tokenizer_folder, local_files_only=True)
    return either, lambda thinks: Qwen3Renderer(theirs, Qwen3RendererConfig(enable_thinking=thinks))


def rendered_by(renderer, messages, tools=(), **options):
    documents = [tool.to_openai() for tool in tools] or None
    return renderer.render([template_message(message) for message in messages], tools=documents, **options)


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
"""Texts that the renderers take for calls, though no tool can be given them."""
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
