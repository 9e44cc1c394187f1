"""Which devices a run uses."""

from types import SimpleNamespace

import jax
import pytest

from astra_jax.config import ConfigError
from astra_jax.mesh.placement import training_mesh
from astra_jax.model.sharding import MeshConfig, make_mesh


def test_without_a_mesh_a_run_uses_the_first_device_on_tpu_under_a_mesh_for_its_kernel(monkeypatch):
    assert training_mesh(None) is None
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    mesh = training_mesh(None)
    assert mesh is not None
    assert mesh.devices.tolist() == [[[[jax.devices()[0]]]]]


def test_a_mesh_over_two_slices_is_refused_in_one_line():
    devices = [SimpleNamespace(platform="tpu", slice_index=index) for index in (0, 0, 1, 1)]
    with pytest.raises(ConfigError, match=r"^expected the devices of one TPU slice, found 2 slices: .* larger slice$"):
        make_mesh(MeshConfig(fsdp=4), devices)
