"""Two processes, each with half of the devices, roll out the episodes of one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from astra_jax.checkpoints.policy import load_policy, save_policy
from astra_jax.episodes.rollout import dealt_out
from astra_jax.mesh.placement import in_force, num_shards
from astra_jax.model.sharding import make_mesh
from astra_jax.testing import InProcessSandbox
from tests.astra_jax.episodes.run_rollout import MESH, rolled_out, starts
from tests.astra_jax.two_hosts import finish, two_hosts


@pytest.fixture(scope="module")
def policy(taught, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    save_policy(taught, folder)
    return folder


@pytest.fixture(scope="module")
def expected(policy) -> list:
    mesh = make_mesh(MESH)
    with in_force(mesh):
        groups, _ = rolled_out(load_policy(policy, mesh=mesh), InProcessSandbox())
    return json.loads(json.dumps(groups))


@pytest.fixture(scope="module")
def is_first_hosts() -> list[bool]:
    """Which groups the first host rolls out: those of the first half of the shards."""
    with in_force(make_mesh(MESH)):
        half = num_shards() // 2
    environments = [(start.environment.id, tuple(tool.document.name for tool in start.tools)) for start in starts()]
    return [shard < half for shard in dealt_out(environments, 2 * half)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reproducible", "slow", "spread"])
def test_two_hosts_have_the_episodes_of_one(policy, expected, is_first_hosts, tmp_path, mode):
    """In mode `slow` those of one host end while the tools of the other have not yet answered one call.

    In mode `spread` each shard lies on both hosts, and one of them schedules all.
    """
    assert 0 < sum(is_first_hosts) < len(is_first_hosts)
    assert len({len(episode["ledger"]["ids"]) for group in expected for episode in group}) > 10
    own = [group for group, is_first in zip(expected, is_first_hosts, strict=True) if is_first]
    num_calls = sum(
        outcome["name"] in ("find_flat", "get_rent")
        for group in own
        for episode in group
        for outcome in episode["outcomes"]
    )
    assert num_calls > 10
    arguments = [str(policy), str(tmp_path), mode, str(num_calls)]
    with two_hosts(["-m", "tests.astra_jax.episodes.run_rollout", *arguments], devices_per_host=4) as processes:
        finish(processes)
    (first, row_steps), (second, others) = (json.loads((tmp_path / f"{host}.json").read_text()) for host in range(2))
    assert first == second
    # Both hosts are in every call, also without rows of their own; a host that schedules no shard has no rows.
    assert (row_steps, others) == ((row_steps, 0) if mode == "spread" else (others, row_steps))
    for found_group, group in zip(first, expected, strict=True):
        for found, episode in zip(found_group, group, strict=True):
            found_logprobs, logprobs = (each["ledger"]["sampled_logprobs"] for each in (found, episode))
            np.testing.assert_allclose(found_logprobs, logprobs, atol=2e-5)  # the rows of a call decide how sums round
            found["ledger"]["sampled_logprobs"] = logprobs
            found["rolled_out"]["limits"]["reproducible"] = True
    assert first == expected


@pytest.mark.slow
def test_where_the_sandbox_of_one_host_is_down_each_says_so_in_one_line(policy, tmp_path):
    arguments = [str(policy), str(tmp_path), "fails", "0"]
    with two_hosts(["-m", "tests.astra_jax.episodes.run_rollout", *arguments], devices_per_host=4) as processes:
        errors = [process.communicate(timeout=900)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], "\n".join(errors)
    assert errors[1] == "SandboxUnavailable: gone\n"
    assert errors[0].startswith("HostFailed: host 1 has failed in the rollouts of 2 hosts ")
    assert errors[0].count("\n") == 1
