"""Moves pages in a process of its own, one of two hosts: `run_moves [spread]`; fails where a page is not as expected.

Each host sets pages of its own shards aside; host 0 takes them back, where host 1 only takes part. In mode `spread`
each shard has devices of both hosts, and host 0 schedules all.
"""

from __future__ import annotations

import asyncio
import sys

import jax
import numpy as np
from jax.sharding import Mesh

from astra_jax.engine.device import XLADevice
from astra_jax.engine.host_pages import Move, Moves
from astra_jax.mesh.hosts import join_hosts
from astra_jax.mesh.placement import in_force
from astra_jax.model.sharding import MeshConfig, make_mesh
from tests.astra_jax.engine.test_host_pages import CONFIG, LIMITS

MESH = MeshConfig(data=4, tensor=2)


async def main(mode: str) -> None:
    device = XLADevice(CONFIG, {}, LIMITS, end_ids=(1,))
    rng, before = np.random.default_rng(0), []

    def random(x: jax.Array) -> jax.Array:
        before.append(rng.normal(size=x.shape).astype(x.dtype))
        return jax.make_array_from_callback(x.shape, x.sharding, before[-1].__getitem__)

    device._pages = jax.tree.map(random, device._pages)
    shards = range(device.num_shards)
    await device.move(Moves(True, [[Move(shard, 3, 4), Move(shard, 7, 0)] for shard in shards]))
    is_first = jax.process_index() == 0
    await device.move(Moves(False, [[Move(shard, 5, 4), Move(shard, 1, 0)] if is_first else [] for shard in shards]))
    for old, x in zip(before, jax.tree.leaves(device._pages), strict=True):
        for part in x.addressable_shards:
            expected = old[part.index].copy()
            if is_first or mode == "spread":
                expected[:, [5, 1]] = old[part.index][:, [3, 7]]
            np.testing.assert_array_equal(part.data, expected)


if __name__ == "__main__":
    join_hosts()
    mesh, mode = make_mesh(MESH), "".join(sys.argv[1:])
    if mode == "spread":
        halves = np.array(jax.devices()).reshape(2, -1)
        mesh = Mesh(halves.T.reshape(MESH.shape), mesh.axis_names, axis_types=mesh.axis_types)
    with in_force(mesh):
        asyncio.run(main(mode))
