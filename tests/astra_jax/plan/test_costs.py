"""FLOPs and collectives counted by hand on programs small enough to do so."""

import jax
import jax.numpy as jnp
import pytest

from astra_jax.model.sharding import MeshConfig, make_mesh, spec
from astra_jax.plan.costs import jaxpr_costs

MESH = {"data": 1, "fsdp": 2, "context": 4, "tensor": 1}


def no_kernels(name):
    raise AssertionError(name)


def costs(function, *args):
    return jaxpr_costs(jax.make_jaxpr(function)(*args).jaxpr, mesh_shape=MESH, kernels=no_kernels)


def test_loop_bodies_count_as_often_as_they_run_and_recompute_is_counted():
    x = jax.ShapeDtypeStruct((4, 16, 16), jnp.float32)

    def layers(w_L, remat):
        def body(carry, w):
            return jnp.tanh(carry @ w), None

        body = jax.checkpoint(body, prevent_cse=False) if remat else body
        return jax.lax.scan(body, jnp.ones((16, 16)), w_L)[0].sum()

    product = 2 * 16**3 / 8
    assert costs(lambda w: layers(w, remat=False), x).flops == 4 * product
    # Backward: two products a layer; with remat the forward one is computed once more.
    assert costs(jax.grad(lambda w: layers(w, remat=False)), x).flops == (4 + 2 * 4) * product
    assert costs(jax.grad(lambda w: layers(w, remat=True)), x).flops == (4 + 3 * 4) * product


def test_products_that_nothing_depends_on_are_not_counted():
    def one_of_two(x):
        _ = x @ x
        return x @ x.T

    assert costs(one_of_two, jax.ShapeDtypeStruct((16, 16), jnp.float32)).flops == 2 * 16**3 / 8


def test_of_branches_by_data_the_one_that_computes_most_is_counted():
    def sometimes(x, often):
        return jax.lax.cond(often, lambda: x @ x, lambda: jax.lax.cond(x.any(), lambda: x @ x @ x, lambda: x))

    shapes = jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((), jnp.bool_)
    assert costs(sometimes, *shapes).flops == 2 * 2 * 16**3 / 8


def test_collectives_count_the_bytes_that_leave_a_device():
    mesh = make_mesh(MeshConfig(fsdp=2, context=4))
    x = jax.ShapeDtypeStruct((8, 64), jnp.float32)

    def gather(x):
        return jax.shard_map(
            lambda x: jax.lax.all_gather(x, "context", axis=1, tiled=True),
            in_specs=spec("batch", "sequence"),
            out_specs=spec("batch", "hidden"),
            check_vma=False,
        )(x)

    with jax.set_mesh(mesh):
        found = costs(gather, x)
    assert found.collective_bytes == {("all_gather", "context"): 4 * 64 * 4 * 3 / 4}


def test_a_loop_without_trip_count_is_an_error():
    with pytest.raises(ValueError, match="no trip count"):
        costs(lambda x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x + 1, x), jnp.zeros(3))


def test_a_loop_without_trip_count_is_counted_as_often_as_is_said():
    def until_large(x):
        return jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: x @ x, x)

    jaxpr = jax.make_jaxpr(until_large)(jax.ShapeDtypeStruct((16, 16), jnp.float32)).jaxpr
    assert jaxpr_costs(jaxpr, mesh_shape=MESH, kernels=no_kernels, while_trips=3).flops == 3 * 2 * 16**3 / 8
