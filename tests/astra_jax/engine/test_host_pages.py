"""Pages that go to the host's memory come back bit for bit, to whatever page they are given."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from astra_jax.engine import kv_pages
from astra_jax.engine.device import XLADevice
from astra_jax.engine.host_pages import HostBook, HostMemory, Move, Moves
from astra_jax.engine.schedule import Limits, RowShape
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import init_params
from astra_jax.model.sharding import MeshConfig, make_mesh
from tests.astra_jax.two_hosts import finish, two_hosts

CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=128, intermediate_size=64
)
LIMITS = Limits(
    max_prompt_tokens=8,
    max_tokens=32,
    num_pages=12,
    page_tokens=4,
    row_shapes=(RowShape(1, 1),),
    sample_tokens=4,
    read_rows=1,
    read_tokens=4,
    first_read_rows=1,
    first_read_tokens=8,
    host=HostMemory(5, 1e12, 1e4),
)


def filled(config: ModelConfig = CONFIG) -> XLADevice:
    """A device whose pages hold random numbers."""
    device = XLADevice(config, init_params(config, seed=0), LIMITS, end_ids=(1,))
    rng = np.random.default_rng(0)

    def random(x: jax.Array) -> jax.Array:
        return jax.device_put(rng.normal(size=x.shape, scale=50).astype(x.dtype), x.sharding)

    device._pages = jax.tree.map(random, device._pages)
    return device


async def moved(device: XLADevice, num_shards: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Pages 3 and 7 of each shard go out, 3 is written over, and they come back as 5 and 1; before and after."""
    before = [np.asarray(x) for x in jax.tree.leaves(device._pages)]
    shards = range(num_shards)
    await device.move(Moves(True, [[Move(shard, 3, 4), Move(shard, 7, 0)] for shard in shards]))
    await device.move(Moves(True, [[Move(shard, 2, 1)] for shard in shards]))
    await device.move(Moves(False, [[Move(shard, 3, 1)] for shard in shards]))
    await device.move(Moves(False, [[Move(shard, 5, 4), Move(shard, 1, 0)] for shard in shards]))
    return before, [np.asarray(x) for x in jax.tree.leaves(device._pages)]


def assert_moved(before: list[np.ndarray], after: list[np.ndarray]) -> None:
    for old, new in zip(before, after, strict=True):
        expected = old.copy()
        expected[:, [3, 5, 1]] = old[:, [2, 3, 7]]
        np.testing.assert_array_equal(new, expected)


@pytest.mark.parametrize("layout", ["windows", "kernel"])
async def test_pages_come_back_bit_for_bit_in_every_layout(monkeypatch, layout):
    config = CONFIG
    if layout == "kernel":
        monkeypatch.setattr(kv_pages, "platform", lambda: "tpu")
        config = CONFIG.model_copy(update={"vocab_size": 72})  # programs of one config are compiled once
    device = filled(config)
    assert isinstance(device._pages[0], kv_pages.KV) == (layout != "kernel")
    assert device.page_bytes == sum(x.nbytes for x in jax.tree.leaves(device._pages)) // 12
    assert_moved(*await moved(device, 1))
    assert device.num_programs == 2


async def test_each_shard_of_a_mesh_moves_its_own():
    with jax.set_mesh(make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4])):
        device = filled()
        before, after = await moved(device, 2)
        assert (before[0][0] != before[0][1]).any()
        assert_moved(before, after)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [[], ["spread"]], ids=["apart", "spread"])
def test_a_host_that_moves_no_page_takes_part_where_another_does(mode):
    with two_hosts(["-m", "tests.astra_jax.engine.run_moves", *mode], devices_per_host=4) as processes:
        finish(processes)


def test_a_place_is_held_while_anybody_awaits_what_lies_there():
    book = HostBook(1)
    book.await_all([b"a", b"b"])
    book.await_all([b"a"])
    assert book.keep(b"c") is None, "nobody awaits it"
    assert book.keep(b"a") == 0
    assert book.keep(b"a") is None, "it is there"
    assert book.keep(b"b") is None, "there is no place"
    book.give_up([b"a"])
    assert (book.find(b"a"), book.num_held) == (0, 1)
    book.give_up([b"a"])
    assert (book.find(b"a"), book.num_held) == (None, 0)
    assert book.keep(b"b") == 0
