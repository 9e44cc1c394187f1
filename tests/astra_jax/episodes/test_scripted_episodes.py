"""The ledger of any episode is the official rendering of the conversation, token by token as it happened."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import IM_END, Source, assistant_body
from astra_jax.chat.template import _their_tokenizer
from astra_jax.chat.tokenizer import FORMAT_TOKENS, SPECIAL_TOKENS, Tokenizer
from astra_jax.chat.tool_calls import parse_turn
from astra_jax.episodes.episode import MODEL_ERRORS
from astra_jax.episodes.log import episode_to_json
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Start
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.records import Message
from tests.astra_jax.episodes.scripted_policy import LOGPROB, run_scripted
from tests.shared_data import shared_data

ENVIRONMENT = tiny_environment()
START = Start(ENVIRONMENT, ENVIRONMENT.tools)

# Composed characters and no control tags: a tokenizer gives them back unchanged, and no parser mistakes them.
words = st.sampled_from(["look", " up", "房价", "é", "\n", "  ", "\n\n", '"', "{", "\\", "2150", "<", "|im_end|", "🏠"])


def spoken(message: Message, tokenizer) -> list[int]:
    return [*tokenizer.encode(assistant_body(message, is_last=True)), tokenizer.end_id]


def run(messages, tokenizer, **limits):
    scripted = run_scripted(START, messages, tokenizer=tokenizer, sandbox=InProcessSandbox(), **limits)
    return asyncio.run(scripted)


GOLD = [message for message in ENVIRONMENT.gold_messages() if message.role == "assistant"]


def test_truncation_cuts_sampled_tokens_and_neither_a_tool_response_nor_a_special_token(tokenizer):
    sampled = [spoken(message, tokenizer) for message in GOLD]
    whole = run(sampled, tokenizer)
    controls = [tokenizer.backend.token_to_id(token) for token in SPECIAL_TOKENS + FORMAT_TOKENS]
    for limit in range(1, whole.ledger.num_response_tokens):
        episode = run(sampled, tokenizer, max_response_tokens=limit)
        ledger = episode.ledger
        assert episode.stop_reason == "max_response_tokens"
        assert 0 < ledger.num_response_tokens <= limit
        assert ledger.ids == whole.ledger.ids[: len(ledger)]
        assert ledger.sources[-1] == Source.MODEL
        # The response alone: the prompt quotes the tags, and a tiny tokenizer has the quotation as one token.
        response = ledger.ids[ledger.num_prompt_tokens :]
        text, texts = tokenizer.decode(response), [*SPECIAL_TOKENS, *FORMAT_TOKENS]
        assert [text.count(control) for control in texts] == [response.count(control) for control in controls]
        assert not any(text.endswith(control[:length]) for control in texts for length in range(2, len(control)))


def test_an_episode_stops_at_the_turn_limit_after_its_tools_have_run(tokenizer):
    episode = run([spoken(message, tokenizer) for message in GOLD], tokenizer, max_turns=2)
    assert (episode.stop_reason, episode.num_turns, episode.counts.num_solved) == ("max_turns", 2, 2)
    assert episode.ledger.sources[-1] == Source.MODEL


def test_a_message_that_was_cut_calls_no_tool(tokenizer):
    ids = spoken(GOLD[0], tokenizer)
    episode = run([ids], tokenizer, max_response_tokens=len(ids) - 1)
    assert (episode.stop_reason, len(episode.outcomes)) == ("max_response_tokens", 0)


def test_only_the_end_token_ends_a_message_not_its_spelling(tokenizer):
    """A model can write the characters of the end token one by one; that is text."""
    spelled = [i for character in IM_END for i in tokenizer.encode(character)]
    ids = tokenizer.encode(assistant_body(GOLD[0])) + spelled
    assert tokenizer.decode(ids).endswith(IM_END)
    episode = run([ids], tokenizer, max_response_tokens=len(ids))
    assert (episode.stop_reason, len(episode.outcomes)) == ("max_response_tokens", 0)


def test_the_end_of_the_text_ends_the_message_and_the_episode_after_its_tools_have_run(tokenizer):
    ids = [*spoken(GOLD[0], tokenizer)[:-1], tokenizer.end_of_text_id]
    episode = run([ids, spoken(GOLD[1], tokenizer)], tokenizer)
    assert (episode.stop_reason, episode.num_turns, episode.counts.num_solved) == ("end_of_text", 1, 1)
    assert episode.ledger.ids[-1] == tokenizer.end_of_text_id
    answer = [*spoken(GOLD[-1], tokenizer)[:-1], tokenizer.end_of_text_id]
    episode = run([answer], tokenizer)
    assert (episode.stop_reason, episode.final_text) == ("no_tool_call", GOLD[-1].content)


# Calls as a model may write them: right, wrong in every way, nested, unfinished; tags where none belongs.
bodies = st.sampled_from(
    ['{"name": "find_flat", "arguments": {"owner": "Quartz Heron"}}',
     '{"name": "find_flat", "arguments": {"owner": "</think>"}}',
     '{"name": "get_rent", "arguments": {"flat": "<tool_call></tool_call>"}}',
     '{"name": "get_rent", "arguments": {"wrong": 1}}', '{"name": "get_rent", "arguments": {"flat": NaN}}',
     '{"name": "no_such_tool", "arguments": {"a": {}}}', '{"name": "get_rent", "arguments": {"flat": {"房": null}}}',
     '{"name": "get_rent", "arguments": "flat"}', '{"name": 3}', "[1]", '{"name": "find_flat", "argum', ""]
)  # fmt: skip
tags = st.sampled_from(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
scribbles = st.lists(tags | words | bodies, max_size=8).map("".join)
attempts = st.lists(bodies.map("<tool_call>\n{}\n</tool_call>".format), min_size=1, max_size=4).map("\n".join)
raw_messages = st.one_of(attempts, attempts.map("<think>\nSo\n</think>\n\n{}".format), scribbles)


@pytest.fixture(scope="module", params=["official", "tiny"])
def with_its_template(request, tokenizer, tmp_path_factory):
    """A tokenizer of ours, and its files as `transformers` reads them, with their chat template."""
    if request.param == "official":
        folder = shared_data("qwen_tokenizer", "tokenizer_config.json").parent
    else:
        folder = tmp_path_factory.mktemp("tiny")
        tokenizer.save(folder, model_max_length=1024)
    return Tokenizer.load(folder), _their_tokenizer(folder)


def test_each_call_has_a_response_and_the_ledger_goes_on_as_the_template_has_it(
    with_its_template,
):
    tokenizer, theirs = with_its_template
    end_ids, seen = (tokenizer.end_id, tokenizer.end_of_text_id), set()
    question = {"role": "user", "content": ENVIRONMENT.question}
    tools = [tool.document.to_openai() for tool in ENVIRONMENT.tools]
    prompt = theirs.apply_chat_template([question], tools=tools, add_generation_prompt=True, tokenize=False)

    def given_after_a_message(responses: list[str]) -> str:
        told = [{"role": "tool", "content": response} for response in responses]
        conversation = [question, {"role": "assistant", "content": "said"}, *told]
        text = theirs.apply_chat_template(conversation, tools=tools, add_generation_prompt=True, tokenize=False)
        return text.partition("said" + IM_END)[2]

    @settings(max_examples=70, deadline=None, derandomize=True)
    @given(
        st.lists(raw_messages, min_size=1, max_size=4),
        st.integers(40, 2000),
        st.integers(0, 60),
        st.integers(0, 8),
    )
    def check(messages, max_response_tokens, cut, end_of_text_at):
        sampled = [
            [*tokenizer.encode(text[:cut]), *tokenizer.encode(text[cut:]), end_ids[turn == end_of_text_at]]
            for turn, text in enumerate([*messages, "Done."], start=1)
        ]
        episode = run(sampled, tokenizer, max_response_tokens=max_response_tokens)
        ledger, responses = episode.ledger, [outcome.response for outcome in episode.outcomes]
        assert episode.stop_reason is not None
        seen.update([episode.stop_reason, episode.num_turns, *(outcome.error_kind for outcome in episode.outcomes)])
        expected = prompt
        for turn in range(1, episode.num_turns + 1):
            of_turn = [i for i, of, source in zip(ledger.ids, ledger.turns, ledger.sources, strict=True)
                       if of == turn and source == Source.MODEL]  # fmt: skip
            assert of_turn == sampled[turn - 1][: len(of_turn)]
            until = [i for i, of in zip(ledger.ids, ledger.turns, strict=True) if of < turn]
            assert ledger.ids[: len(until)] == until
            assert tokenizer.decode(until) == expected
            said = tokenizer.decode(of_turn)
            is_whole = len(of_turn) == len(sampled[turn - 1])
            found = parse_turn(said).tool_calls if is_whole else ()
            shown, responses = responses[: len(found)], responses[len(found) :]
            assert len(shown) == len(found)
            assert is_whole or turn == episode.num_turns
            expected += said + (given_after_a_message(shown) if turn < episode.num_turns else "")
        assert responses == []
        assert tokenizer.decode(ledger.ids) == expected
        assert all((logprob == LOGPROB) == (source == Source.MODEL)
                   for logprob, source in zip(ledger.sampled_logprobs, ledger.sources, strict=True))  # fmt: skip
        assert LOGPROB * ledger.loss_mask.sum() == pytest.approx(sum(ledger.sampled_logprobs))
        # The episode can be logged, and saved with a checkpoint.
        episode_to_json(episode, tokenizer, policy="scripted", reward=episode_reward(episode))
        assert restored_episode(json.loads(json.dumps(saved_episode(episode))), ENVIRONMENT) == episode

    check()
    reasons = {"no_tool_call", "end_of_text", "max_response_tokens"}
    assert seen >= {*reasons, *MODEL_ERRORS, "exception", None, 1, 2}, "this test must see all of these"
