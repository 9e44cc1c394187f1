"""A row of an RL batch: each sampled token where it is predicted, with the log-prob it had and its advantage."""

from __future__ import annotations

import numpy as np
import pytest

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.rl.batch import RLBatch, make_rl_batch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.grpo_loss import OPTIONAL_COLUMNS
from astra_jax.testing import tiny_environment

ENVIRONMENT = tiny_environment()


def an_episode(prompt: list[int], *turns: tuple[list[int], list[float], list[int]]) -> Episode:
    """Turns are sampled ids, their log-probs, and the ids of a tool response."""
    ledger = TokenLedger()
    ledger.append_given(prompt, [Source.PROMPT] * len(prompt), turn=0)
    for turn, (sampled, logprobs, response) in enumerate(turns, start=1):
        ledger.append_sampled(sampled, logprobs, turn=turn, policy_versions=[0] * len(sampled))
        ledger.append_given(response, [Source.TOOL] * len(response), turn=turn)
    return Episode(ENVIRONMENT, ENVIRONMENT.tools, ledger)


LONG = an_episode([1, 2], ([3, 4], [-0.1, -0.2], [5]), ([6], [-0.3], []))
SHORT = an_episode([1], ([7], [-0.4], []))


def test_the_data_of_a_token_stand_in_the_column_that_predicts_it():
    batch, _ = make_rl_batch([ScoredGroup([LONG, SHORT], (0.0, 1.0), 0)], length_bucket_tokens=4, pad_id=9)
    expected = {
        "tokens_BT": [[1, 2, 3, 4, 5, 6, 9, 9], [1, 7, 9, 9, 9, 9, 9, 9]],
        "targets_BT": [[2, 3, 4, 5, 6, 9, 9, 9], [7, 9, 9, 9, 9, 9, 9, 9]],
        "loss_mask_BT": [[0, 1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
        "segment_ids_BT": [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]],
        "positions_BT": [list(range(8))] * 2,
        "sampled_logprobs_BT": [[0, -0.1, -0.2, 0, -0.3, 0, 0, 0], [-0.4, 0, 0, 0, 0, 0, 0, 0]],
        "advantages_BT": [[0, -1, -1, 0, -1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
    }
    assert batch.reward_std_BT is batch.episode_weights_BT is None
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(batch, name), values, rtol=1e-6, err_msg=name)


OF_ONE_PROMPT = [
    an_episode([1, 2], ([3, 4], [-0.1, -0.2], [5]), ([6], [-0.3], [])),
    an_episode([1, 2], ([7], [-0.4], [])),
]


@pytest.mark.parametrize(
    ("multiple", "columns"), [(1, [0, 1, 2, 3, 4, 5]), (4, [0, 4, 5, 6, 7, 8])], ids=["end to end", "in blocks of 4"]
)
def test_episodes_of_a_row_share_the_columns_of_their_prompt_but_for_its_last_token(multiple, columns):
    """It predicts the first token of each response, and so stands before each."""
    groups = [ScoredGroup(OF_ONE_PROMPT, (0.0, 1.0), 0)]
    batch, _ = make_rl_batch(
        groups,
        length_bucket_tokens=12,
        pad_id=9,
        episodes_per_row=2,
        segment_multiple=multiple,
        optional_columns=OPTIONAL_COLUMNS,
    )
    expected = {
        "tokens_BT": ([1, 2, 3, 4, 5, 2], 9),
        "targets_BT": ([2, 3, 4, 5, 6, 7], 9),
        "loss_mask_BT": ([0, 1, 1, 0, 1, 1], 0),
        "reward_std_BT": ([0, 0.5, 0.5, 0, 0.5, 0.5], 0),
        "episode_weights_BT": ([0, 2 / 3, 2 / 3, 0, 2 / 3, 2], 0),
        "segment_ids_BT": ([1, 2, 2, 2, 2, 3], 0),
        "prefix_ids_BT": ([1, 1, 1, 1, 1, 1], 0),
        "positions_BT": ([0, 1, 2, 3, 4, 1], None),
        "sampled_logprobs_BT": ([0, -0.1, -0.2, 0, -0.3, -0.4], 0),
        "advantages_BT": ([0, -1, -1, 0, -1, 1], 0),
    }
    assert expected.keys() == {*RLBatch._fields}
    for name, (values, padding) in expected.items():
        (row,) = np.asarray(getattr(batch, name))
        assert len(row) == 12
        np.testing.assert_allclose(row[columns], values, rtol=1e-6, err_msg=name)
        if padding is not None:
            assert (np.delete(row, columns, axis=0) == padding).all(), name


@pytest.mark.parametrize(
    ("groups", "options", "message"),
    [
        ([LONG, SHORT], {"episodes_per_row": 2}, "the episodes of a group begin with 2 prompts"),
        ([LONG, SHORT], {"episodes_per_row": 3}, "expected groups of a multiple of 3 episodes, found 2"),
        (ScoredGroup([LONG, SHORT], (1.0, 1.0), 0), {}, "without reward variance"),
        (ScoredGroup([LONG, SHORT], (0.0, 1.0, 1.0), 0), {}, "pass groups of one size"),
    ],
)
def test_groups_that_make_no_batch_are_refused(groups, options, message):
    group = groups if isinstance(groups, ScoredGroup) else ScoredGroup(groups, (0.0, 1.0), 0)
    with pytest.raises(ValueError, match=message):
        make_rl_batch([group], length_bucket_tokens=4, pad_id=9, **options)


@pytest.mark.parametrize("episodes_per_row", [1, 2])
def test_rows_without_loss_fill_a_smaller_batch_up_to_the_shape_of_a_whole_one(episodes_per_row):
    groups = [ScoredGroup(OF_ONE_PROMPT, (0.0, 1.0), 0)]
    options = {"length_bucket_tokens": 4, "pad_id": 9, "episodes_per_row": episodes_per_row}
    (small, _), (filled, _) = make_rl_batch(groups, **options), make_rl_batch(groups, **options, num_rows=5)
    num_rows = len(small.tokens_BT)
    for name, rows, all_rows in zip(RLBatch._fields, small, filled, strict=True):
        if rows is None:
            assert all_rows is None
            continue
        assert all_rows.shape == (5, *rows.shape[1:])
        np.testing.assert_array_equal(all_rows[:num_rows], rows, err_msg=name)
    assert not filled.loss_mask_BT[num_rows:].any()
    assert not filled.advantages_BT[num_rows:].any()
    assert np.asarray(filled.segment_ids_BT[num_rows:]).tolist() == [[1, *[0] * (small.tokens_BT.shape[1] - 1)]] * (
        5 - num_rows
    )
