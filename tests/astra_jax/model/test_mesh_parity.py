"""The same loss and gradients on every mesh: one device, and every way to lay 2, 4 and 8 devices over the axes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from astra_jax.model.config import ModelConfig
from astra_jax.model.context_parallel import balance, balanced_order, to_natural_order
from astra_jax.model.families import FAMILIES
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind, init_params
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings, spec

CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=8, num_kv_heads=8, head_dim=8, intermediate_size=32
)
MESHES = [
    MeshConfig(data=data, fsdp=fsdp, context=context, tensor=part // (data * fsdp * context))
    for part in (2, 4, 8)
    for data in (1, 2, 4, 8)
    for fsdp in (1, 2, 4, 8)
    for context in (1, 2, 4, 8)
    if part % (data * fsdp * context) == 0
]
# All of them hold; the fast suite keeps every axis beside two others, and leaves out llama: qwen3 has its weights, too.
FAST = [MeshConfig(data=2, fsdp=2, context=2), MeshConfig(fsdp=2, context=2, tensor=2)]


def batch():
    rng = np.random.default_rng(0)
    tokens_BT = rng.integers(0, 64, (8, 33))
    segment_ids_BT = np.sort(rng.integers(1, 4, (8, 32)), axis=1).astype(np.int32)
    segment_ids_BT[:, 27:] = 0  # padding, so that shards hold unequal numbers of active tokens
    starts = np.stack([np.searchsorted(row, row, side="left") for row in segment_ids_BT])
    return {
        "tokens": tokens_BT[:, :-1].astype(np.int32),
        "targets": tokens_BT[:, 1:].astype(np.int32),
        "positions": (np.arange(32) - np.where(segment_ids_BT > 0, starts, 0)).astype(np.int32),
        "segment_ids": segment_ids_BT,
        "loss_mask": (segment_ids_BT > 0).astype(np.float32) * rng.integers(0, 2, (8, 32)),
    }


def loss_and_gradients(config, params, batch):
    def loss_fn(params):
        model = bind(config, params)
        hidden_BTD = model(batch["tokens"], batch["positions"], batch["segment_ids"])
        mask_BT = batch["loss_mask"]
        logprobs_BT = token_logprobs(hidden_BTD, model.output_embedding, batch["targets"], mask_BT > 0)
        return -(logprobs_BT * mask_BT).sum() / mask_BT.sum()

    return jax.value_and_grad(loss_fn)(params)


@functools.cache
def on_one_device(config):
    return jax.jit(loss_and_gradients, static_argnums=0)(config, init_params(config, seed=0), batch())


def on_mesh(config, mesh_config):
    devices = jax.devices()[: int(np.prod(mesh_config.shape))]
    mesh = make_mesh(mesh_config, devices)
    params = init_params(config, seed=0)
    shardings = param_shardings(params, mesh)
    arrays = {
        name: jax.device_put(array, jax.NamedSharding(mesh, spec("batch", "sequence")))
        for name, array in balance(batch(), mesh_config.context).items()
    }
    with jax.set_mesh(mesh):
        step = jax.jit(loss_and_gradients, static_argnums=0, out_shardings=(None, shardings))
        return step(config, jax.device_put(params, shardings), arrays)


def assert_equal_on(mesh_config, family="qwen3"):
    config = CONFIG.model_copy(update={"family": family})
    loss, gradients = on_one_device(config)
    mesh_loss, mesh_gradients = on_mesh(config, mesh_config)
    np.testing.assert_allclose(mesh_loss, loss, rtol=1e-5)
    for (path, expected), found in zip(
        jax.tree_util.tree_leaves_with_path(gradients), jax.tree.leaves(mesh_gradients), strict=True
    ):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found, expected, atol=1e-5 * scale, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("mesh", FAST, ids=lambda mesh: "x".join(map(str, mesh.shape)))
def test_loss_and_every_gradient_are_the_same_on_a_mesh(mesh):
    assert_equal_on(mesh)


@pytest.mark.parametrize(
    "family", [pytest.param(x, marks=[pytest.mark.slow] * (x == "llama")) for x in FAMILIES if x != "qwen3"]
)
def test_loss_and_every_gradient_of_another_family_are_the_same_on_a_mesh(family):
    assert_equal_on(MeshConfig(fsdp=2, context=2, tensor=2), family)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [m for m in MESHES if m not in FAST], ids=lambda mesh: "x".join(map(str, mesh.shape)))
def test_loss_and_every_gradient_are_the_same_on_every_mesh(mesh):
    assert_equal_on(mesh)


def test_the_balanced_layout_is_undone_by_its_inverse():
    order = balanced_order(24, 3)
    np.testing.assert_array_equal(to_natural_order(jnp.asarray(order)[None], 3)[0], np.arange(24))


def test_balancing_pads_with_zeros_to_a_multiple_of_the_mesh():
    placed = balance({"tokens": np.arange(1, 6)[None]}, shards=2)
    assert placed["tokens"].tolist() == [[1, 2, 0, 0, 3, 4, 5, 0]]
    assert balance({"tokens": np.ones((1, 5), int)}, shards=1, multiple=4)["tokens"].shape == (1, 8)
