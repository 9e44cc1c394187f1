"""Products of activations and weights against float64, with their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.model.projection import project
from astra_jax.model.sharding import MeshConfig, make_mesh

B, T, N, H, D = 2, 24, 3, 8, 40


def test_a_bfloat16_product_and_its_gradients_are_float64s_rounded_once():
    rng = np.random.default_rng(0)
    x, weights, d = (
        jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((B, T, N, H), (N, H, D), (B, T, D))
    )
    out, gradients = jax.vjp(project, x, weights)
    dx, dweights = gradients(d)

    x64, weights64, d64 = (np.asarray(each, np.float64) for each in (x, weights, d))
    assert_rounded(out, np.einsum("btnh,nhd->btd", x64, weights64))
    assert_rounded(dx, np.einsum("btd,nhd->btnh", d64, weights64))
    assert_rounded(dweights, np.einsum("btnh,btd->nhd", x64, d64))


def test_gradients_of_float32_weights_reach_them_through_bfloat16_activations():
    x, weights = jnp.ones((1, 4, 6), jnp.bfloat16), jnp.full((6, 5), 0.5, jnp.float32)
    gradient = jax.grad(lambda weights: project(x, weights).astype(jnp.float32).sum())(weights)
    assert gradient.dtype == jnp.float32
    np.testing.assert_array_equal(gradient, np.full((6, 5), 4.0))


def test_over_a_mesh_gradients_of_float32_weights_are_summed_before_they_are_rounded():
    rng = np.random.default_rng(2)
    x, d = (jnp.asarray(rng.standard_normal((8, T, *shape)), jnp.bfloat16) for shape in ((N, H), (D,)))
    weights = jnp.asarray(rng.standard_normal((N, H, D)), jnp.float32)

    def gradients(weights: jax.Array, x: jax.Array, d: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jax.vjp(project, x, weights)[1](d)

    mesh = make_mesh(MeshConfig(fsdp=4, tensor=2), jax.devices()[:8])
    with jax.set_mesh(mesh):
        rows = NamedSharding(mesh, PartitionSpec("fsdp"))
        placed = jax.device_put(weights, NamedSharding(mesh, PartitionSpec(None, "fsdp", "tensor")))
        dx, dweights = jax.jit(gradients)(placed, jax.device_put(x, rows), jax.device_put(d, rows))
    x64, d64 = (np.asarray(each, np.float64) for each in (x, d))
    exact = np.einsum("btnh,btd->nhd", x64, d64)
    assert dweights.dtype == jnp.float32
    assert np.abs(dweights - exact).max() < 1e-5 * np.abs(exact).max()  # rounded parts: 3e-3
    assert_rounded(dx, np.einsum("btd,nhd->btnh", d64, np.asarray(weights.astype(jnp.bfloat16), np.float64)))


def test_float32_products_are_not_rounded():
    rng = np.random.default_rng(1)
    x, weights = rng.standard_normal((B, T, D)), rng.standard_normal((D, H))
    out = project(jnp.asarray(x, jnp.float32), jnp.asarray(weights, jnp.float32))
    np.testing.assert_allclose(out, x @ weights, rtol=1e-5, atol=1e-5)


def assert_rounded(found: jax.Array, exact: np.ndarray) -> None:
    """Half a unit in the last of bfloat16's 8 binary digits, and as much as float32 sums are off."""
    assert found.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=1e-5)


def test_the_check_of_rounding_can_fail():
    with pytest.raises(AssertionError):
        assert_rounded(jnp.full(3, 1.01, jnp.bfloat16), np.ones(3))
