"""Commands and stages against a sandbox that demands a token: the environment's is sent, a wrong one ends them."""

from __future__ import annotations

import asyncio
import time

import pytest

from astra_jax.cli.command import main
from sandbox.local import local_sandbox
from synthesis.environments.pipeline import synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from tests.synthesis.environments.made import tiny_config

TOKEN = "t0ken-of-this-test"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service with a token, and records that were made in it by callers with the token."""
    config = tiny_config(seed=3, count=3, out=tmp_path_factory.mktemp("guarded") / "made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASTRA_SANDBOX_TOKEN", f"{TOKEN}\n")
        with local_sandbox(workers=1) as url:
            assert asyncio.run(synthesize_environments(config, ProceduralTeacher(), url)).kept == 3
            yield url, config.out


@pytest.mark.parametrize(("token", "words"), [("wr0ng-token", "refuses the token"), ("", "wants a token")])
def test_a_wrong_or_missing_token_ends_the_command_at_once_in_one_line(guarded, token, words, monkeypatch, capfd):
    monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", TOKEN)
    assert main(["records", "verify", str(guarded[1]), "--sandbox", guarded[0]]) == 0
    assert capfd.readouterr().out == "verified 3/3\n"
    monkeypatch.setenv("ASTRA_SANDBOX_TOKEN", token)
    began = time.monotonic()
    assert main(["records", "verify", str(guarded[1]), "--sandbox", guarded[0]]) == 1
    assert time.monotonic() - began < 30  # the deadline of a call is 120
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("astra: SandboxUnavailable: the sandbox at http://127.0.0.1:")
    assert words in err
    assert "wr0ng-token" not in err


def test_the_token_is_in_no_record(guarded):
    files = [path for path in guarded[1].rglob("*") if path.is_file()]
    assert files
    assert not any(TOKEN.encode() in path.read_bytes() for path in files)
