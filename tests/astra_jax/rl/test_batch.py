"""A row of an RL batch: each sampled token where it is predicted, with the log-prob it had and its advantage."""

from __future__ import annotations

import numpy as np
import pytest

from astra_jax.chat.format import Source
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.testing import tiny_environment

ENVIRONMENT = tiny_environment()


def an_episode(prompt: list[int], *turns: tuple[list[int], list[float], list[int]]) -> Episode:
    """Turns are sampled ids, their log-probs, and the ids of a tool response."""
    ledger = TokenLedger()
    ledger.append_given(prompt, [Source.PROMPT] * len(prompt), turn=0)
    for turn, (sampled, logprobs, response) in enumerate(turns, start=1):
        ledger.append_sampled(sampled, logprobs, turn=turn)
        ledger.append_given(response, [Source.TOOL] * len(response), turn=turn)
    return Episode(ENVIRONMENT, ENVIRONMENT.tools, ledger)


LONG = an_episode([1, 2], ([3, 4], [-0.1, -0.2], [5]), ([6], [-0.3], []))
SHORT = an_episode([1], ([7], [-0.4], []))


def test_what_is_known_of_a_token_stands_in_the_column_that_predicts_it():
    batch = make_rl_batch([ScoredGroup([LONG, SHORT], (0.0, 1.0), 0)], length_bucket_tokens=4, pad_id=9)
    expected = {
        "tokens_BT": [[1, 2, 3, 4, 5, 6, 9, 9], [1, 7, 9, 9, 9, 9, 9, 9]],
        "targets_BT": [[2, 3, 4, 5, 6, 9, 9, 9], [7, 9, 9, 9, 9, 9, 9, 9]],
        "loss_mask_BT": [[0, 1, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
        "segment_ids_BT": [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]],
        "positions_BT": [list(range(8))] * 2,
        "sampled_logprobs_BT": [[0, -0.1, -0.2, 0, -0.3, 0, 0, 0], [-0.4, 0, 0, 0, 0, 0, 0, 0]],
        "advantages_BT": [[0, -1, -1, 0, -1, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0]],
    }
    for name, array in batch._asdict().items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, err_msg=name)


def test_a_group_without_variance_makes_no_batch():
    with pytest.raises(ValueError, match="without reward variance"):
        make_rl_batch([ScoredGroup([LONG, SHORT], (1.0, 1.0), 0)], length_bucket_tokens=4, pad_id=9)
