"""Which devices a run without a mesh uses."""

import jax

from astra_jax.placement import training_mesh


def test_without_a_mesh_a_run_uses_the_first_device_on_tpu_under_a_mesh_for_its_kernel(monkeypatch):
    assert training_mesh(None) is None
    monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
    mesh = training_mesh(None)
    assert mesh is not None
    assert mesh.devices.tolist() == [[[[jax.devices()[0]]]]]
