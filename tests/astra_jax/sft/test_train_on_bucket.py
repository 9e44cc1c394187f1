"""Two hosts that share nothing but a bucket have the losses of a shared disk, and another machine goes on from it."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import load_policy
from astra_jax.metrics_file import read_metrics
from astra_jax.model.sharding import MeshConfig
from astra_jax.rehearse.bucket import served_bucket
from astra_jax.sft.config import SFTConfig
from astra_jax.sft.stage import run_sft
from astra_jax.testing import tiny_environment
from synthesis.run.places import fetch, stage_of
from tests.astra_jax.killed_process import kill_after_steps
from tests.astra_jax.sft.configs import tiny_sft_config
from tests.astra_jax.two_hosts import finish, two_hosts

MESH = MeshConfig(fsdp=2, context=2, tensor=2)


@pytest.fixture
def config(tokenizer, tmp_path) -> SFTConfig:
    environments = [tiny_environment(rent=rent) for rent in range(4)]
    changes = {"steps": 4, "batch_tokens": 1280, "optimizer": {"learning_rate": 5e-3}, "checkpoint_every_steps": 2}
    return tiny_sft_config(tmp_path, tokenizer, environments, **changes)


@pytest.fixture
def bucket(monkeypatch):
    with served_bucket() as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", bucket.url)
        yield bucket


def at(config: SFTConfig, out: str) -> list[str]:
    """Return the arguments of a process that runs SFT there."""
    return [json.dumps({**config.model_dump(mode="json"), "out": out})]


def losses(out: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(out / "metrics.jsonl")]


@pytest.mark.slow
def test_a_killed_run_goes_on_on_another_machine(config, bucket, tmp_path, monkeypatch):
    """The machine and its stages are gone: what the bucket has is enough for the same bits."""
    run_sft(config)
    long = config.model_copy(update={"checkpoint_every_steps": 1})
    monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "first"))
    stage = stage_of(Path("gs://bucket/run"))
    kill_after_steps(
        "tests.astra_jax.sft.run_sft", at(long, "gs://bucket/run"), metrics=stage / "metrics.jsonl", steps=3
    )
    monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "second"))
    there = SFTConfig.model_validate_json(at(long, "gs://bucket/run")[0])
    fetch(there.out)
    assert 1 <= len(losses(there.out)) <= 3
    run_sft(there)
    assert losses(there.out) == losses(config.out)
    one, other = load_policy(there.out / "policy"), load_policy(config.out / "policy")
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
    assert one.tokenizer.vocab_size == other.tokenizer.vocab_size


@pytest.mark.slow
def test_two_hosts_with_only_a_bucket_have_the_losses_of_a_shared_disk(config, bucket, tmp_path, monkeypatch):
    over_hosts = config.model_copy(update={"mesh": MESH})
    module = ["-m", "tests.astra_jax.sft.run_sft"]
    with two_hosts([*module, *at(over_hosts, str(tmp_path / "shared"))], devices_per_host=4) as hosts:
        finish(hosts)
    stages = [{"ASTRA_STAGE": str(tmp_path / name)} for name in ("host 0", "host 1")]
    with two_hosts([*module, *at(over_hosts, "gs://bucket/run")], devices_per_host=4, variables=stages) as hosts:
        finish(hosts)
    monkeypatch.setenv("ASTRA_STAGE", str(tmp_path / "reader"))
    there = stage_of(Path("gs://bucket/run"))
    fetch(there)
    assert losses(there) == losses(tmp_path / "shared")
    one, other = load_policy(there / "policy"), load_policy(tmp_path / "shared" / "policy")
    jax.tree.map(np.testing.assert_array_equal, one.params, other.params)
