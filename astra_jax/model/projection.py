"""Products of activations and weights, in the form that a backend multiplies fastest.

Dimensions: n tokens of all rows · i, o sizes of the axes that are summed over and that come out.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from astra_jax.model.sharding import ambient_mesh


def project(x: jax.Array, weights: jax.Array) -> jax.Array:
    """x [B, T, …in] · weights [...in, ...out] = [B, T, ...out], in the dtype of x.

    >>> import jax.numpy as jnp
    >>> project(jnp.ones((1, 3, 2, 4)), jnp.ones((2, 4, 5))).shape
    (1, 3, 5)
    """
    num_in = x.ndim - 2
    if ambient_mesh() is not None:
        return _sharded_product(num_in, x, weights)
    weights = weights.astype(x.dtype)
    # One row per token: for the gradient of three-dimensional products XLA's CPU backend first copies the activations
    # transposed, which takes longer than the product. Under a mesh B and T are sharded apart and must stay so.
    out = weights.shape[num_in:]
    x_ni, weights_io = x.reshape(-1, math.prod(x.shape[2:])), weights.reshape(-1, math.prod(out))
    on_matrix_units = x.dtype == jnp.bfloat16 and jax.default_backend() == "cpu"
    rows_no = _rounded_product(x_ni, weights_io) if on_matrix_units else x_ni @ weights_io
    return rows_no.reshape(*x.shape[:2], *out)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sharded_product(num_in: int, x: jax.Array, weights: jax.Array) -> jax.Array:
    """Return the product over `num_in` axes; the gradient of float32 weights is summed over chips in float32.

    XLA's own is rounded to the type of x on each chip, and the rounded parts are summed.
    """
    return jnp.tensordot(x, weights.astype(x.dtype), num_in)


def _sharded_forward(num_in: int, x: jax.Array, weights: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _sharded_product(num_in, x, weights), (x, weights)


def _sharded_backward(num_in: int, read: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, weights = read
    out_axes = tuple(range(2, d.ndim)), tuple(range(num_in, weights.ndim))
    dx = jnp.tensordot(d, weights.astype(x.dtype), out_axes)
    tokens = ((0, 1), (0, 1))
    return dx, jnp.tensordot(x, d, tokens, preferred_element_type=weights.dtype)


_sharded_product.defvjp(_sharded_forward, _sharded_backward)


@jax.custom_vjp
def _rounded_product(x_ni: jax.Array, weights_io: jax.Array) -> jax.Array:
    """Return the bfloat16 product; it and both gradients are summed in float32.

    The matrix units of a CPU (AMX) multiply bfloat16 and sum in float32. XLA uses them only if float32 is asked for:
    otherwise it converts both sides first, which takes three times as long.
    """
    return _product("ni,io->no", x_ni, weights_io)


def _forward(x_ni: jax.Array, weights_io: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _rounded_product(x_ni, weights_io), (x_ni, weights_io)


def _backward(read: tuple[jax.Array, jax.Array], d_no: jax.Array) -> tuple[jax.Array, jax.Array]:
    x_ni, weights_io = read
    # Transposed in memory: the matrix units do not sum over the first axis of the left side.
    x_in = with_layout_constraint(x_ni.T, Layout((0, 1)))
    return _product("no,io->ni", d_no, weights_io), _product("in,no->io", x_in, d_no)


def _product(axes: str, left: jax.Array, right: jax.Array) -> jax.Array:
    return jnp.einsum(axes, left, right, preferred_element_type=jnp.float32).astype(left.dtype)


_rounded_product.defvjp(_forward, _backward)
