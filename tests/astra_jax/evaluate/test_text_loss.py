"""The loss on a public text: every token of its windows counts once, under the policy that is named."""

from __future__ import annotations

import json

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli.command import main
from astra_jax.evaluate.text_loss import WINDOW_TOKENS, public_text, text_loss, windows_of
from astra_jax.model.qwen3 import bind


def test_windows_share_a_token_and_the_loss_is_the_mean_over_their_tokens(untrained):
    windows = windows_of(public_text(), untrained.tokenizer, count=2)
    ids = untrained.tokenizer.encode(public_text()[:20_000])
    assert windows.shape == (2, WINDOW_TOKENS + 1)
    assert [*windows[0], *windows[1][1:]] == ids[: 2 * WINDOW_TOKENS + 1]
    model = bind(untrained.model_config, untrained.params)
    hidden = model(windows[:, :-1], np.tile(np.arange(WINDOW_TOKENS), (2, 1)), np.ones((2, WINDOW_TOKENS), np.int32))
    logprobs = np.asarray(jax.nn.log_softmax(model.logits(hidden)))
    wanted = -np.take_along_axis(logprobs, windows[:, 1:, None], -1).mean((1, 2))
    assert text_loss(untrained, windows) == pytest.approx(list(wanted), rel=1e-5)


def test_the_command_reads_a_file_or_says_why_it_does_not(untrained, tmp_path, capsys):
    save_policy(untrained, tmp_path / "policy")
    (tmp_path / "text.txt").write_text("A ship left the harbour. " * 200)
    command = ["evaluate", "text", str(tmp_path / "policy"), "--file", str(tmp_path / "text.txt"), "--windows", "1"]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == WINDOW_TOKENS
    for bad, said in ((b"A ship.", "is shorter than 513"), (b"\xfc", "cannot be read: 'utf-8' codec")):
        (tmp_path / "text.txt").write_bytes(bad)
        assert main(command) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "text.txt").unlink()
    assert main(command) == 2
    assert "No such file" in capsys.readouterr().err
