"""The rendering is the official Qwen3 chat template's, byte for byte, and its segments say who wrote what."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.utils.chat_template_utils import _compile_jinja_template

from astra_jax.chat.format import Source, render, segments
from astra_jax.chat.template import template_message
from astra_jax.chat.tokenizer import CHAT_TEMPLATE_PATH, Tokenizer, train_tiny_tokenizer
from synthesis.records import Message, ToolCall, ToolDocument
from tests.shared_data import SHARED_DATA, shared_data

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
        expected = compiled.render(
            messages=[template_message(message) for message in messages],
            tools=[tool.to_openai() for tool in tools] or None,
            add_generation_prompt=add_generation_prompt,
            enable_thinking=enable_thinking,
        )
        assert expected == render(
            messages, tools, add_generation_prompt=add_generation_prompt, enable_thinking=enable_thinking
        )

    check()


def one_episode() -> list[Message]:
    call = ToolCall(id="1", name="rent", arguments={"flat": "Amber Falcon"})
    return [
        Message(role="user", content="What is the rent of Amber Falcon?"),
        Message(role="assistant", reasoning_content="look up the rent", tool_calls=(call,)),
        Message(role="tool", content="2150"),
        Message(role="assistant", reasoning_content="done", content="It is 2150."),
    ]


def test_only_what_the_model_says_is_marked_as_the_models():
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


@pytest.fixture(scope="module", params=["official", "tiny"])
def tokenizer(request) -> Tokenizer:
    if request.param == "official":
        if not SHARED_DATA.exists():
            pytest.skip("needs qwen_tokenizer of the shared data; set ASTRA_SHARED_DATA to where it lies")
        return Tokenizer.load(shared_data("qwen_tokenizer"))
    return train_tiny_tokenizer([render(one_episode())] * 3, vocab_size=400)


def test_tokens_decode_to_the_rendered_text_and_carry_their_writer(tokenizer):
    encoded = tokenizer.encode_segments(segments(one_episode()))
    assert tokenizer.decode(encoded.ids) == render(one_episode())
    assert list(encoded.ids) == tokenizer.encode(render(one_episode()))
    by_model = tokenizer.decode(encoded.ids[encoded.sources == Source.MODEL])
    assert by_model == "".join(s.text for s in segments(one_episode()) if s.source is Source.MODEL)


def test_a_name_has_the_same_tokens_in_a_question_and_in_a_call():
    tokenizer = train_tiny_tokenizer([render(one_episode())] * 3, vocab_size=400)
    name = tokenizer.encode("Quartz Heron")
    in_question, in_call = tokenizer.encode("owned by Quartz Heron?"), tokenizer.encode('{"owner": "Quartz Heron"}')
    for ids in (in_question, in_call):
        assert any(ids[i : i + len(name)] == name for i in range(len(ids)))


def test_a_number_is_read_in_pairs_of_digits():
    tokenizer = train_tiny_tokenizer(["the phone is 7410229"] * 3, vocab_size=400)
    assert [tokenizer.decode([i]) for i in tokenizer.encode("7410229")] == ["74", "10", "22", "9"]


def test_a_word_is_cut_alike_in_a_question_a_document_and_a_tools_name():
    texts = ["the building permit of", "get_building_permit", '"building": "permit"'] * 20
    tokenizer = train_tiny_tokenizer(texts, vocab_size=400)
    for text in texts[:3]:
        pieces = [tokenizer.decode([id_]) for id_ in tokenizer.encode(text)]
        assert {"building", "permit"} < set(pieces), pieces
