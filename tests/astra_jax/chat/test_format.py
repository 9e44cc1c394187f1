"""The rendering is the official Qwen3 chat template's, byte for byte, and each segment names its author."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from astra_jax.chat.format import Source, render, segments
from astra_jax.chat.template import template_message
from astra_jax.chat.tokenizer import CHAT_TEMPLATE_PATH, train_tiny_tokenizer
from synthesis.records import Message, ToolCall, ToolDocument
from tests.shared_data import shared_data

pieces = st.sampled_from(
    ["What", " is ", "房价", "\n", "\n\n", "{}", '"', "<think>", "</think>", "<tool_call>", "<tool_response>",
     "</tool_response>", "<|im_end|>", "ü", "  ", "\\n", "0"]
)  # fmt: skip
texts = st.lists(pieces, max_size=5).map("".join)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda v: st.lists(v, max_size=2), max_leaves=4
)
calls = st.builds(
    ToolCall,
    id=st.just("c"),
    name=st.sampled_from(["rent", "find"]),
    arguments=st.dictionaries(texts, json_values, max_size=2),
)
messages_strategy = st.lists(
    st.one_of(
        st.builds(Message, role=st.just("system"), content=texts),
        st.builds(
            Message, role=st.just("user"), content=texts | texts.map(lambda t: f"<tool_response>{t}</tool_response>")
        ),
        st.builds(
            Message,
            role=st.just("assistant"),
            content=texts,
            reasoning_content=st.none() | texts,
            tool_calls=st.lists(calls, max_size=2).map(tuple),
        ),
        st.builds(Message, role=st.just("tool"), content=texts),
    ),
    min_size=1,
    max_size=7,
)
documents = st.builds(
    ToolDocument,
    name=st.sampled_from(["rent", "find"]),
    description=texts,
    parameters=st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(texts, st.just({"type": "string"}))}
    ),
)


def official_template() -> str:
    return json.loads(shared_data("qwen_tokenizer", "tokenizer_config.json").read_text())["chat_template"]


@pytest.mark.parametrize("template", ["official", "ours"])
def test_rendering_equals_the_chat_template(template):
    text = official_template() if template == "official" else CHAT_TEMPLATE_PATH.read_text()
    compiled = _compile_jinja_template(text)

    @settings(max_examples=300, deadline=None, derandomize=True)
    @given(messages_strategy, st.lists(documents, max_size=2), st.booleans(), st.booleans())
    def check(messages, tools, add_generation_prompt, enable_thinking):
        options = {"add_generation_prompt": add_generation_prompt, "enable_thinking": enable_thinking}
        given = {"messages": [template_message(message) for message in messages]}
        given["tools"] = [tool.to_openai() for tool in tools] or None
        found = render(messages, tools, **options)
        assert compiled.render(**given, **options) == found

    check()


def one_episode() -> list[Message]:
    call = ToolCall(id="1", name="rent", arguments={"flat": "Amber Falcon"})
    return [
        Message(role="user", content="What is the rent of Amber Falcon?"),
        Message(role="assistant", reasoning_content="look up the rent", tool_calls=(call,)),
        Message(role="tool", content="2150"),
        Message(role="assistant", reasoning_content="done", content="It is 2150."),
    ]


def test_the_models_words_alone_are_marked_as_the_models():
    spoken = [segment.text for segment in segments(one_episode()) if segment.source is Source.MODEL]
    assert spoken == [
        '<think>\nlook up the rent\n</think>\n\n<tool_call>\n{"name": "rent", "arguments": {"flat": "Amber Falcon"}}'
        + "\n</tool_call><|im_end|>",
        "<think>\ndone\n</think>\n\nIt is 2150.<|im_end|>",
    ]


def test_rendering_is_append_only_inside_one_user_turn():
    messages = one_episode()
    for length in range(1, len(messages)):
        assert render(messages).startswith(render(messages[:length]))


def test_tokens_decode_to_the_rendered_text_and_carry_their_writer(either):
    encoded = either.encode_segments(segments(one_episode()))
    assert either.decode(encoded.ids) == render(one_episode())
    assert list(encoded.ids) == either.encode(render(one_episode()))
    by_model = either.decode(encoded.ids[encoded.sources == Source.MODEL])
    assert by_model == "".join(s.text for s in segments(one_episode()) if s.source is Source.MODEL)


def test_words_and_pairs_of_digits_are_cut_alike_everywhere():
    texts = ["the building permit of", "get_building_permit", '"building": "permit"', "the phone is 7410229"]
    tokenizer = train_tiny_tokenizer(texts * 20, vocab_size=400)

    def pieces(text: str) -> list[str]:
        return [tokenizer.decode([id_]) for id_ in tokenizer.encode(text)]

    assert pieces("7410229") == ["74", "10", "22", "9"]
    for text in texts[:3]:
        assert {"building", "permit"} < set(pieces(text))
    name = pieces("Quartz Heron")
    for cut in (pieces("owned by Quartz Heron?"), pieces('{"owner": "Quartz Heron"}')):
        assert any(cut[i : i + len(name)] == name for i in range(len(cut)))
