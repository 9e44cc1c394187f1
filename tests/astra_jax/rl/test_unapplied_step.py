"""A step that was not applied is computed once more, and the tokens that made it so are named."""

from __future__ import annotations

import json

import numpy as np
import pytest

from astra_jax.cli.command import main
from astra_jax.rl import train
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.stage import run_rl
from astra_jax.rl.unapplied_step import explain_step
from astra_jax.testing import InProcessSandbox
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.rl.test_faults import written


@pytest.mark.slow
async def test_the_token_whose_ratio_is_infinite_is_found_in_the_batch_that_a_run_kept(taught, tmp_path, monkeypatch):
    spoilt = []

    def make(*arguments, **options):
        batch = make_rl_batch(*arguments, **options)
        row, column = np.argwhere(np.asarray(batch.loss_mask_BT) > 0)[3].tolist()
        spoilt.append((row, column))
        sampled_BT = np.array(batch.sampled_logprobs_BT)
        sampled_BT[row, column] = -np.inf
        return batch._replace(sampled_logprobs_BT=sampled_BT)

    monkeypatch.setattr(train, "make_rl_batch", make)
    run = tiny_rl_config(tmp_path, taught, steps=1)
    await run_rl(run, InProcessSandbox())
    found = json.loads(json.dumps(explain_step(run, 0), allow_nan=False))
    assert (found["step"], found["updates_missing"]) == (0, 0)
    assert found["tokens_not_finite"] == 1
    (token,) = found["tokens"]
    assert (token["row"], token["column"]) == spoilt[0]
    assert token["sampled_logprob"] == "-inf"
    assert found["gradients_not_finite"]


def test_a_step_that_was_applied_is_refused_in_one_line_by_the_command(taught, tmp_path, capsys):
    run = tiny_rl_config(tmp_path, taught, steps=1)
    assert main(["doctor", "not-finite", str(written(run, tmp_path)), "7"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("step-000007.npz does not exist; name a step that was not applied (there: none), or out=DIR")
