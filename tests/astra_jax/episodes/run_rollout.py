"""Rolls out in a process of its own, as one of two hosts: `run_rollout POLICY OUT MODE NUM_CALLS`.

Each writes its episodes to OUT/HOST.json. In mode `slow` the tools of host 1 answer only when host 0 has made
NUM_CALLS calls of tools; in mode `fails` they fail instead. In mode `spread` every shard has devices of both hosts.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from astra_jax.checkpoints.policy import Policy, load_policy
from astra_jax.cli.command import EXIT_FAILED
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
from astra_jax.episodes.saved import saved_episode
from astra_jax.errors import AstraError
from astra_jax.mesh.hosts import ending_with_other_hosts, join_hosts
from astra_jax.mesh.placement import in_force
from astra_jax.model.sharding import MeshConfig, make_mesh
from astra_jax.testing import InProcessSandbox, tiny_environment
from sandbox.client import AsyncSandboxClient, SandboxUnavailable
from sandbox.protocol import ExecuteReply
from synthesis.records import Environment

MESH = MeshConfig(data=4, tensor=2)
GROUP_SIZE = 4


def environments() -> list[Environment]:
    """Return environments whose prompts differ, and which a policy that has learnt one of them solves now and then."""
    known = tiny_environment()
    return [
        known.model_copy(update={"id": f"{known.id}-{number}", "question": known.question + ending})
        for number, ending in enumerate(("", "?", " ", "? "))
    ]


def starts() -> list[Start]:
    """Return more than there are shards; one prompt comes twice."""
    of_order = [[Start(each, each.tools[::order]) for each in environments()] for order in (1, -1)]
    return [*of_order[0], of_order[0][0], *of_order[1][:2]]


class Tools(InProcessSandbox):
    """Those of one host."""

    def __init__(self, out: Path, mode: str, num_calls: int):
        super().__init__()
        self._is_first, self._enough = jax.process_index() == 0, out / "enough"
        self._mode, self._num_calls = mode, num_calls

    async def execute(self, *arguments: Any, **options: Any) -> ExecuteReply:
        if not self._is_first and self._mode == "fails":
            raise SandboxUnavailable("gone")
        while not self._is_first and self._mode == "slow" and not self._enough.exists():
            await asyncio.sleep(0.05)
        reply = await super().execute(*arguments, **options)
        if self._is_first and self.num_calls == self._num_calls:
            self._enough.touch()
        return reply


def rolled_out(
    policy: Policy, sandbox: AsyncSandboxClient, *, reproducible: bool = True, first: int = 0
) -> tuple[list, int]:
    """Return the saved episodes of all groups, and this host's row-steps; the mesh must be in force.

    The starts are taken in turn from number `first` on.
    """
    limits = {"max_prompt_tokens": 256, "max_response_tokens": 160, "max_turns": 6}
    config = RolloutConfig(reproducible=reproducible, **limits)
    engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config)
    groups = asyncio.run(
        engine.run(policy.params, [*starts()[first:], *starts()[:first]], group_size=GROUP_SIZE, seed=5)
    )
    saved = [[saved_episode(episode) for episode in group] for group in groups]
    return saved, engine.load.row_steps


def main(policy_folder: Path, out: Path, mode: str, num_calls: int) -> None:
    mesh = make_mesh(MESH)
    if mode == "spread":
        halves = np.array(jax.devices()).reshape(2, -1)
        mesh = Mesh(halves.T.reshape(MESH.shape), mesh.axis_names, axis_types=mesh.axis_types)
    tools = Tools(out, mode, num_calls)
    with ending_with_other_hosts(), in_force(mesh):
        # The policy calls tools in environments that it has learnt: from the third on, the second host has one.
        first = 2 if mode == "fails" else 0
        found = rolled_out(load_policy(policy_folder, mesh=mesh), tools, reproducible=mode != "slow", first=first)
    (out / f"{jax.process_index()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    join_hosts()
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    except (AstraError, SandboxUnavailable) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(EXIT_FAILED)
