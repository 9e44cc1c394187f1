"""A command that cannot run on several hosts says so on each of them, in one line and at once."""

from __future__ import annotations

import socket
from pathlib import Path

import jax
import pytest

from astra_jax.cli.command import main
from astra_jax.testing import tiny_environment
from sandbox.local import local_sandbox
from synthesis.record_io import write_records
from tests.astra_jax.two_hosts import two_hosts

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "rl"])
def test_every_host_is_told_at_once_that_they_share_no_disk(tmp_path, stage):
    """With a mesh or without, the hosts join first: neither takes the other for another run."""
    outs = [tmp_path / "one disk" / "run", tmp_path / "another" / "run"]
    command = ["-m", "astra_jax.cli", stage, f"{CONFIGS}/tiny_{stage}.toml"]
    with two_hosts(command, devices_per_host=1, of_host=([f"out={outs[0]}"], [f"out={outs[1]}"])) as hosts:
        errors = [host.communicate(timeout=120)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [2, 2], "\n".join(errors)
    assert errors == [
        f"astra: ConfigError: host 1 does not see the files of host 0 in {out}; mount one folder there on all 2 hosts\n"
        for out in outs
    ]
    assert [path for path in tmp_path.rglob("*") if path.name not in ("one disk", "another")] == []


@pytest.mark.slow
def test_where_one_host_reaches_no_sandbox_both_say_so_at_once(tmp_path, free_url):
    write_records(tmp_path / "environments", [tiny_environment()], kind="environment")
    paths = [f"out={tmp_path}/run", f"environments={tmp_path}/environments"]
    command = ["-m", "astra_jax.cli", "rl", f"{CONFIGS}/tiny_rl.toml", *paths, "mesh.fsdp=2"]
    with (
        local_sandbox(workers=1) as url,
        two_hosts(command, devices_per_host=1, of_host=(["--sandbox", url], ["--sandbox", free_url])) as hosts,
    ):
        errors = [host.communicate(timeout=120)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [1, 1], "\n".join(errors)
    assert errors[0] == ("astra: HostFailed: host 1 could not get a sandbox; all 2 hosts need it\n")
    assert errors[1].startswith("astra: SandboxUnavailable: ")
    assert errors[1].count("\n") == 1
    assert [path for path in (tmp_path / "run").rglob("*") if path.is_file()] == []


@pytest.fixture
def free_url() -> str:
    """An address without a listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "set without JAX_NUM_PROCESSES and JAX_PROCESS_ID; "),
        ({"JAX_NUM_PROCESSES": "2"}, "set without JAX_PROCESS_ID; "),
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


def test_a_cluster_that_cannot_be_joined_is_told_of_in_one_line(tmp_path, monkeypatch, capsys):
    def initialize(**_):
        raise RuntimeError("Kubernetes API Error: 403 - Forbidden\nIt appears that …")

    monkeypatch.delenv("JAX_COORDINATOR_ADDRESS", raising=False)
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    for stage in ("sft", "rl"):
        assert main([stage, f"{CONFIGS}/tiny_{stage}.toml", f"out={tmp_path}/run", "mesh.fsdp=2"]) == 1
        error = capsys.readouterr().err
        assert error.startswith(
            "astra: HostFailed: the hosts of this job did not find each other; check its cluster: Kubernetes"
        )
        assert error.count("\n") == 1
