"""Which devices a run uses."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from astra_jax.config import ConfigError
from astra_jax.mesh.layouts import rollout_mesh
from astra_jax.mesh.placement import host_shards, training_mesh
from astra_jax.model import sharding
from astra_jax.model.sharding import MeshConfig, make_mesh


def test_without_a_mesh_a_run_uses_the_first_device_on_tpu_under_a_mesh_for_its_kernel(monkeypatch):
    assert training_mesh(None) is None
    chips = [SimpleNamespace(platform="tpu", device_kind="TPU v5", process_index=0) for _ in range(2)]
    monkeypatch.setattr(
        sharding.mesh_utils, "create_device_mesh", lambda shape, devices, **_: np.reshape(devices, shape)
    )
    monkeypatch.setattr(sharding, "Mesh", lambda devices, *_, **__: devices)
    assert training_mesh(None, chips).tolist() == [[[[chips[0]]]]]


def test_over_two_slices_lie_only_copies_of_the_weights():
    devices = [SimpleNamespace(platform="tpu", slice_index=index) for index in (0, 0, 1, 1)]
    with pytest.raises(ConfigError, match=r"^the devices lie in 2 TPU slices, .* a multiple of 2, found 1$"):
        make_mesh(MeshConfig(fsdp=4), devices)
    learner: Any = SimpleNamespace(size=4, devices=np.array(devices).reshape(2, 2, 1, 1))
    with pytest.raises(ConfigError, match=r"^rollout_mesh of fsdp 1 × tensor 4 does not divide a TPU slice of 2 chips"):
        rollout_mesh(MeshConfig(tensor=4), learner)


def test_a_shard_of_the_batch_is_of_the_host_of_its_first_device(monkeypatch):
    """Devices 0 … 3 are of host 0, the others of host 1, whichever way the mesh lies over them."""

    def mesh(order: list[int], **shape: int) -> Any:
        devices = np.array([SimpleNamespace(process_index=number // 4) for number in order])
        return SimpleNamespace(shape={"data": 1, "fsdp": 1, "tensor": 1} | shape, devices=devices)

    monkeypatch.setattr(jax, "process_index", lambda: 1)
    straight, interleaved = list(range(8)), [0, 4, 1, 5, 2, 6, 3, 7]
    assert host_shards(mesh(straight, data=2, fsdp=2, tensor=2)) == (2, 3)
    assert host_shards(mesh(interleaved, data=8)) == (1, 3, 5, 7)
    assert host_shards(mesh(interleaved, data=4, tensor=2)) == ()
