"""A command on several hosts says on each of them, in one line and at once, what it cannot do."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from astra_jax.cli.command import main
from tests.astra_jax.two_hosts import two_hosts

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(
    ("stage", "outs", "told"),
    [
        (
            "sft",
            ("one disk/run", "another/run"),
            "expected that every one of 2 hosts sees what host 0 writes in {}: give a disk that they share, found that "
            "not of: host 1",
        ),
        pytest.param(
            "rl",
            ("run", "run"),
            "expected one host, found 2: episodes are not rolled out over hosts yet",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_every_host_is_told_at_once_what_cannot_be(tmp_path, stage, outs, told):
    """With a mesh or without, the hosts join first: neither takes the other for another run."""
    command = ["-m", "astra_jax.cli", stage, f"{CONFIGS}/tiny_{stage}.toml"]
    own = [[f"out={tmp_path / out}"] for out in outs]
    with two_hosts(command, devices_per_host=1, of_host=(own[0], own[1])) as hosts:
        errors = [host.communicate(timeout=120)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [2, 2], "\n".join(errors)
    assert errors == [f"astra: ConfigError: {told.format(tmp_path / out)}\n" for out in outs]
    assert [path for path in tmp_path.rglob("*") if path.name not in ("one disk", "another")] == []


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "expected JAX_NUM_PROCESSES and JAX_PROCESS_ID beside it, found none"),
        ({"JAX_NUM_PROCESSES": "2"}, "expected JAX_PROCESS_ID beside it, found none"),
        ({"JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"}, "found 'two' and '0'"),
        ({"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "JAX_PROCESS_ID = 0 … n - 1, found '2' and '2'"),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "first-host"},
            "expected JAX_COORDINATOR_ADDRESS = host:port of the first host, found 'first-host'",
        ),
        (
            {"JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "0", "JAX_COORDINATOR_ADDRESS": "first-host:99999"},
            "found 'first-host:99999'",
        ),
    ],
)
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_variables_that_make_no_sense_are_told_of_before_anybody_is_waited_for(
    tmp_path, monkeypatch, capsys, stage, variables, told
):
    for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "first-host:1234")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main([stage, f"{CONFIGS}/tiny_{stage}.toml", f"out={tmp_path}/run"]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_cluster_that_announces_what_cannot_be_used_is_told_of_in_one_line(tmp_path, monkeypatch, capsys):
    def initialize(**_):
        raise RuntimeError("Kubernetes API Error: 403 - Forbidden\nIt appears that …")

    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    for stage in ("sft", "rl"):
        assert main([stage, f"{CONFIGS}/tiny_{stage}.toml", f"out={tmp_path}/run", "mesh.fsdp=2"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(
            "astra: NotJoined: expected the hosts of this job to find each other, found: Kubernetes"
        )
        assert error.count("\n") == 1
