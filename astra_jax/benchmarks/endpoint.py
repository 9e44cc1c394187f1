"""The model that a benchmark measures, at a running or a started server, and the simulated user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import Field

from astra_jax.benchmarks.results import BenchmarkFailed, ModelDocument
from astra_jax.config import ConfigError, Frozen
from astra_jax.evaluate.endpoint import KEY_VARIABLE, Endpoint, first_contact
from astra_jax.training.run_record import digest_of_policy
from synthesis.run.fingerprint import digest_of_files

_END_SECONDS: Final = 60.0
USER_KEY_VARIABLE: Final = "ASTRA_USER_KEY"


class ServingConfig(Frozen):
    """Settings of the `astra serve` that is started for a checkpoint."""

    max_model_len: int = Field(default=40960, ge=4)
    """Tokens of the longest sequence, prompt and answer together."""
    rows: int = Field(default=16, ge=1)
    """Messages that are sampled at the same time."""
    dtype: str | None = Field(default=None, pattern="^(float32|bfloat16)$")
    """Type that the model computes in, float32 or bfloat16; without it the checkpoint's."""


class SimulatedUser(Frozen):
    """The model that plays the user: in the paper GPT-5.1 in τ²-bench and GPT-4.1 in ACEBench."""

    url: str = Field(pattern="^https?://")
    """Address of a server with OpenAI's chat API, without /v1; its key is in ASTRA_USER_KEY."""
    model: str
    """Name of the model at the server."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the user's model."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the user's longest message; without it the server's default."""

    def endpoint(self) -> Endpoint:
        """Return the endpoint that answers for the user."""
        return Endpoint(self.url.rstrip("/"), self.model, 0, None, USER_KEY_VARIABLE)


def named_model(policy: Path | None, url: str | None) -> ModelDocument:
    """Return the model that is measured, before a server is started for it.

    Raises:
        ConfigError: neither a checkpoint nor a server is named, or both are.
        BenchmarkFailed: there is no checkpoint.
        DecoderError: no server answers at `url`.
    """
    if policy is not None and url is None:
        if not any((policy / name).is_file() for name in ("params.whole.json", "config.json")):
            raise BenchmarkFailed(f"{policy} is not a policy folder or a HuggingFace folder; check the path")
        return ModelDocument(name=policy.name, digest=_digest_of_checkpoint(policy), max_model_len=None)
    if url is None or policy is not None:
        named = "both are" if url else "none is"
        raise ConfigError(f"name either a checkpoint (policy=DIR) or a server (--url); {named} named")
    endpoint = first_contact(url)
    return ModelDocument(name=endpoint.model, digest=endpoint.policy, max_model_len=endpoint.most_tokens)


@contextlib.contextmanager
def answering(policy: Path | None, url: str | None, serving: ServingConfig, log: Path) -> Iterator[Endpoint]:
    """Yield the endpoint; a server that is started ends with the block, and its messages go to `log`.

    Raises:
        DecoderError: no server answers at `url`.
        BenchmarkFailed: the server of the checkpoint does not start.
    """
    if url is not None:
        yield first_contact(url)
        return
    command = [sys.executable, "-m", "astra_jax.cli", "serve", str(policy), "--port", "0", "--rows", str(serving.rows)]
    command += ["--max-model-len", str(serving.max_model_len), "--until-stdin-closes"]
    command += ["--dtype", serving.dtype] if serving.dtype else []
    # The key may belong to another server; this one answers on loopback, to this process.
    environment = {name: value for name, value in os.environ.items() if name != KEY_VARIABLE}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.PIPE,  # it ends when this process dies
            text=True,
            env=environment,
            start_new_session=True,  # Ctrl-C is for this process, which ends it
        )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if " on http://" not in line:
            said = log.read_text(encoding="utf-8", errors="replace").splitlines()
            raise BenchmarkFailed(
                f"`astra serve {policy}` did not start: {said[-1] if said else 'it ended'}; see {log}"
            )
        yield first_contact(line.split(" on ")[1].split(",")[0])
    finally:
        process.terminate()
        assert process.stdin is not None
        process.stdin.close()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _digest_of_checkpoint(folder: Path) -> str:
    """Return the digest of a policy folder, or of a HuggingFace folder by the names and sizes of its weights."""
    if (folder / "params.whole.json").is_file():
        return digest_of_policy(folder)
    weights = sorted(f"{path.name}:{path.stat().st_size}" for path in folder.glob("*.safetensors"))
    return digest_of_files([folder / "config.json", folder / "model.safetensors.index.json"]) + "".join(weights)
