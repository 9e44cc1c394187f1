"""`astra serve`, as a process of its own: its output, its end, and the policies that it serves."""

from __future__ import annotations

import gc
import json
import re
import socket
import subprocess
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvicorn

import astra_jax
from astra_jax.checkpoints import policy as policies
from astra_jax.checkpoints.hf import save_hf
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.cli.command import main
from astra_jax.config import ConfigError
from astra_jax.engine.interface import Sampling, Session
from astra_jax.mesh.placement import in_force
from astra_jax.serve.policy import served_policy
from astra_jax.serve.server import _serve, listen
from tests.astra_jax.serve.running import running


@pytest.mark.slow
def test_it_says_where_it_listens_and_ends_well_with_a_message_under_way_when_its_starter_dies(tmp_path, untrained):
    save_policy(untrained, tmp_path / "policy")
    command = [sys.executable, "-m", "astra_jax.cli", "serve", str(tmp_path / "policy"), "--port", "0", "--rows", "2"]
    command += ["--max-model-len", "512", "--served-model-name", "a,b", "--until-stdin-closes"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process, ThreadPoolExecutor() as pool:
        line = process.stdout.readline()
        found = re.fullmatch(
            r"serve: a, b on (http://127\.0\.0\.1:\d+), sequences of up to 512 tokens, without a key\n", line
        )
        assert found, line
        with httpx.Client(base_url=found[1], trust_env=False, timeout=120) as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["a", "b"]
            body = {"token_ids": [30, 31, 32], "sampling_params": {"max_tokens": 400, "temperature": 0.0}}
            reply = pool.submit(client.post, "/inference/v1/generate", json=body)
            while client.get("/health").json()["decoder"]["sampled_tokens"] < 2:
                time.sleep(0.01)
            process.stdin.close()  # as the kernel does with a dead process's
            assert reply.result().json()["usage"]["completion_tokens"] == 400
        assert process.wait(60) == 143  # as after SIGTERM
        assert process.stderr.read() == "astra: ended on SIGTERM\n"


@pytest.mark.slow
async def test_a_huggingface_folder_says_the_same_as_its_policy(untrained, tmp_path):
    save_policy(untrained, tmp_path / "policy")
    save_hf(untrained.params, untrained.model_config, tmp_path / "hf", companions=tmp_path / "policy")
    said = []
    for name in ("policy", "hf"):
        served = served_policy(tmp_path / name, most_tokens=128, rows=1)
        assert (served.names, served.digest is None) == ((name,), name == "hf")
        decoder = served.decoder()
        said.append(await decoder.generate(list(range(21, 41)), Sampling(40), Session(0, 0)))
        await decoder.close()
    assert said[0] == said[1]
    assert len(said[0].ids) > 5


@pytest.mark.slow
def test_the_request_of_the_help_is_answered_by_the_call_that_it_promises():
    command = [sys.executable, "-m", "astra_jax.cli", "serve", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    body = re.search(r"-d '(.*?)'", text, re.DOTALL)[1]
    name, arguments = re.search(r"The reply calls (\w+) with ({.*?})", text).groups()
    base = served_policy(Path(astra_jax.__file__).with_name("tiny_base"), most_tokens=512, rows=1)
    with running(base) as up, up.client() as client:
        (choice,) = client.post("/v1/chat/completions", content=body).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == (name, json.loads(arguments))


def test_a_model_is_named_as_its_folder_and_never_by_a_path(untrained, tmp_path, monkeypatch):
    save_policy(untrained, tmp_path / "policy")
    monkeypatch.chdir(tmp_path / "policy")
    for path in ("../policy/", "../policy/../policy/.", "."):
        assert served_policy(Path(path), most_tokens=128, rows=1).names == ("policy",)


async def test_a_server_keeps_no_weights_but_those_that_its_decoder_has_laid_out(untrained, tmp_path, monkeypatch):
    save_policy(untrained, tmp_path / "policy")
    stacked, load = [], policies.load_policy

    def noted(folder: Path, **options: object) -> Policy:
        policy = load(folder, **options)
        stacked.extend(weakref.ref(weights) for weights in policy.params["layers"].values())
        return policy

    monkeypatch.setattr(policies, "load_policy", noted)

    async def looked_at(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
        gc.collect()
        assert stacked
        assert {weights() for weights in stacked} == {None}

    monkeypatch.setattr(uvicorn.Server, "serve", looked_at)
    with listen("127.0.0.1", 0) as listener:
        await _serve(listener, served_policy(tmp_path / "policy", most_tokens=128, rows=1), None, None, False)


async def test_a_policy_on_two_devices_says_what_it_says_on_one(untrained, tmp_path):
    save_policy(untrained, tmp_path / "policy")

    async def said(tensor: int) -> list[int]:
        served = served_policy(tmp_path / "policy", most_tokens=128, rows=1, tensor=tensor)
        with in_force(served.mesh):
            decoder = served.decoder()
            message = await decoder.generate(list(range(21, 41)), Sampling(24, 0.0), Session(0, 0))
            await decoder.close()
        return message.ids

    assert await said(1) == await said(2)
    with pytest.raises(ConfigError, match="the 8 of this host"):
        served_policy(tmp_path / "policy", most_tokens=128, rows=1, tensor=16)


def test_a_command_that_cannot_serve_says_so_in_one_line(untrained, tmp_path, monkeypatch, capsys):
    save_policy(untrained, tmp_path / "policy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ASTRA_SERVE_KEY", raising=False)
    monkeypatch.setenv("A_KEY", "schlüssel")
    for command, code, words in (
        ("serve", 2, "required: CHECKPOINT"),
        ("serve policy --port 99999", 2, "from 0 to 65535"),
        ("serve policy --rows 0", 2, "--rows"),
        ("serve policy --served-model-name a,,b", 2, "names with commas between them, found 'a,,b'"),
        ("serve nowhere://bucket/policy", 1, "nowhere://bucket/policy: Protocol not known"),
        ("serve nowhere --port 0", 1, "nowhere"),
        ("serve policy --port 0 --max-model-len 2000", 2, "at most 1024 tokens"),
        ("serve policy --port 0 --host nobody.invalid", 1, "cannot listen on nobody.invalid:0"),
        ("serve policy --port 0 --host 0.0.0.0", 1, "set a key in the environment variable ASTRA_SERVE_KEY"),
        (
            "serve policy --port 0 --api-key-env A_KEY",
            1,
            "the key in A_KEY (not shown) has characters other than visible ASCII",
        ),
        ("evaluate aime aime.toml --url nowhere", 2, "an address such as"),
    ):
        assert main(command.split()) == code, command
        error = capsys.readouterr().err
        assert words in error, command
        assert error.count("\n") == 1
        assert "schl" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["policy"]
