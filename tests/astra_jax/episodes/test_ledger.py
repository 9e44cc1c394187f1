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


def columns(ledger: TokenLedger) -> list[tuple[int, int, float, int, int]]:
    return list(zip(*vars(ledger).values(), strict=True))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(entries)
def test_a_ledger_only_grows_and_has_loss_only_on_sampled_tokens(entries):
    ledger, expected, turn = TokenLedger(), [], 0
    for version, (sampled, ids, source, more_turns) in enumerate(entries):
        before, turn = columns(ledger), turn + more_turns
        if sampled:
            logprobs = [-0.5 - i for i in ids]
            ledger.append_sampled(ids, logprobs, turn=turn, policy_versions=[version] * len(ids))
            expected += [(i, Source.MODEL, logprob, turn, version) for i, logprob in zip(ids, logprobs, strict=True)]
        else:
            ledger.append_given(ids, [source] * len(ids), turn=turn)
            expected += [(i, source, 0.0, turn, -1) for i in ids]
        assert columns(ledger)[: len(before)] == before
    assert columns(ledger) == expected
    assert ledger.loss_mask.tolist() == [float(source == Source.MODEL) for _, source, *_ in expected]
    assert ledger.num_prompt_tokens == sum(turn == 0 for *_, turn, _ in expected)
    assert ledger.num_prompt_tokens + ledger.num_response_tokens == len(ledger) == len(expected)


def test_wrong_tokens_are_refused_and_leave_nothing_behind():
    ledger = TokenLedger()
    ledger.append_sampled([1], [-0.5], turn=2, policy_versions=[0])
    before, versions, logprobs = columns(ledger), [0, 0], [-0.5, -0.5]
    with pytest.raises(ValueError, match="append_sampled"):
        ledger.append_given([1], [Source.MODEL], turn=2)
    with pytest.raises(ValueError, match="only grows"):
        ledger.append_given([2], [Source.TOOL], turn=1)
    with pytest.raises(ValueError, match="one length"):
        ledger.append_sampled([1, 2], [-0.5], turn=2, policy_versions=versions)
    with pytest.raises(ValueError, match="one length"):
        ledger.append_sampled([1, 2], logprobs, turn=2, policy_versions=[0])
    assert columns(ledger) == before


def test_a_ledger_holds_plain_numbers():
    """It can be written as JSON, also if it was filled from arrays."""
    ledger = TokenLedger()
    three = np.array([3], np.int32)
    ledger.append_sampled(three, np.array([-1.5], np.float32), turn=1, policy_versions=three)
    assert [type(value) for value in columns(ledger)[0]] == [int, int, float, int, int]
