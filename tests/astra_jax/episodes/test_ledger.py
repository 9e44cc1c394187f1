"""The token ledger only grows, and has loss exactly where the policy sampled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra_jax.chat.format import Source
from astra_jax.episodes.ledger import TokenLedger

ids_strategy = st.lists(st.integers(0, 500), max_size=6)
given_sources = st.sampled_from([Source.PROMPT, Source.TEMPLATE, Source.TOOL])
entries = st.lists(st.tuples(st.booleans(), ids_strategy, given_sources, st.integers(0, 2)), max_size=10)


def columns(ledger: TokenLedger) -> list[tuple[int, int, float, int]]:
    return list(zip(ledger.ids, ledger.sources, ledger.sampled_logprobs, ledger.turns, strict=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(entries)
def test_a_ledger_only_grows_and_has_loss_only_on_sampled_tokens(entries):
    ledger, expected, turn = TokenLedger(), [], 0
    for sampled, ids, source, more_turns in entries:
        before, turn = columns(ledger), turn + more_turns
        if sampled:
            logprobs = [-0.5 - i for i in ids]
            ledger.append_sampled(ids, logprobs, turn=turn)
            expected += [(i, Source.MODEL, logprob, turn) for i, logprob in zip(ids, logprobs, strict=True)]
        else:
            ledger.append_given(ids, [source] * len(ids), turn=turn)
            expected += [(i, source, 0.0, turn) for i in ids]
        assert columns(ledger)[: len(before)] == before
    assert columns(ledger) == expected
    assert ledger.loss_mask.tolist() == [float(source == Source.MODEL) for _, source, _, _ in expected]
    assert ledger.num_prompt_tokens == sum(turn == 0 for *_, turn in expected)
    assert ledger.num_prompt_tokens + ledger.num_response_tokens == len(ledger) == len(expected)


def test_tokens_of_the_model_cannot_enter_without_their_logprobs():
    with pytest.raises(ValueError, match="append_sampled"):
        TokenLedger().append_given([1], [Source.MODEL], turn=0)


def test_columns_of_different_lengths_are_refused_and_leave_nothing_behind():
    ledger = TokenLedger()
    with pytest.raises(ValueError, match="one length"):
        ledger.append_sampled([1, 2], [-0.5], turn=1)
    assert columns(ledger) == []


def test_an_earlier_turn_cannot_be_written_again():
    ledger = TokenLedger()
    ledger.append_sampled([1], [-0.5], turn=2)
    with pytest.raises(ValueError, match="only grows"):
        ledger.append_given([2], [Source.TOOL], turn=1)


def test_a_ledger_holds_plain_numbers():
    """So that it can be written as JSON, whatever arrays it was filled from."""
    ledger = TokenLedger()
    ledger.append_sampled(np.array([3], np.int32), np.array([-1.5], np.float32), turn=1)
    assert [type(value) for value in columns(ledger)[0]] == [int, int, float, int]
