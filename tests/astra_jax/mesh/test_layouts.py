"""Where a policy decodes, and how its weights get there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.config import ConfigError
from astra_jax.mesh.layouts import laid_out_for_decoding, rollout_mesh, weights_for_decoding
from astra_jax.mesh.placement import in_memory, place_params
from astra_jax.model.qwen3 import bind, layers_apart
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings


@pytest.fixture(scope="module")
def learner_mesh():
    return make_mesh(MeshConfig(fsdp=2, context=2, tensor=2))


@pytest.mark.parametrize(
    ("config", "shape"),
    [(None, (4, 1, 1, 2)), (MeshConfig(data=2, tensor=4), (2, 1, 1, 4)), (MeshConfig(data=8), (8, 1, 1, 1))],
)
def test_weights_keep_every_bit_when_they_are_laid_out_for_decoding(untrained, learner_mesh, config, shape):
    mesh = rollout_mesh(config, learner_mesh)
    assert tuple(mesh.shape.values()) == shape
    assert mesh.devices.flatten().tolist() == learner_mesh.devices.flatten().tolist()  # as one program needs it
    if config is not None and config.tensor > 2:
        return  # the tiny model has two key heads
    learnt = place_params(untrained.params, learner_mesh)
    laid_out = weights_for_decoding(untrained.model_config, mesh)(learnt)
    stacked = param_shardings(untrained.params, mesh)
    assert laid_out["embedding"].sharding == stacked["embedding"]
    of_layer = NamedSharding(mesh, PartitionSpec(*stacked["layers"]["q_proj"].spec[1:]))
    assert {layer["q_proj"].sharding for layer in laid_out["layers"]} == {of_layer}
    jax.tree.map(np.testing.assert_array_equal, laid_out, layers_apart(untrained.params))


def test_decoding_computes_the_same_with_weights_of_half_the_size(untrained):
    """A learner with float32 weights multiplies in bfloat16; norms it computes in float32, and they stay."""
    model = untrained.model_config.model_copy(update={"dtype": "bfloat16"})
    same = laid_out_for_decoding(untrained.model_config, None, untrained.params)
    assert same["embedding"] is untrained.params["embedding"]
    jax.tree.map(np.testing.assert_array_equal, same, layers_apart(untrained.params))
    served = laid_out_for_decoding(model, None, untrained.params)
    assert {layer["q_proj"].dtype for layer in served["layers"]} | {served["embedding"].dtype} == {jnp.bfloat16.dtype}
    assert {layer["k_norm"].dtype for layer in served["layers"]} | {served["final_norm"].dtype} == {jnp.float32.dtype}
    tokens_BT = jnp.arange(24).reshape(2, 12)
    positions_BT, segments_BT = jnp.broadcast_to(jnp.arange(12), (2, 12)), jnp.ones((2, 12), jnp.int32)
    stacked = {**served, "layers": jax.tree.map(lambda *of_layers: jnp.stack(of_layers), *served["layers"])}
    hidden = [bind(model, params)(tokens_BT, positions_BT, segments_BT) for params in (untrained.params, stacked)]
    np.testing.assert_array_equal(*(np.asarray(h, np.float32) for h in hidden))


def test_a_rollout_mesh_without_a_mesh_is_refused():
    assert rollout_mesh(None, None) is None
    with pytest.raises(ConfigError, match=r"\[rollout_mesh\] lies over the devices of \[mesh\], which is missing"):
        rollout_mesh(MeshConfig(), None)


def test_a_tree_waits_in_the_memory_of_the_host_and_comes_back(learner_mesh, untrained):
    placed = place_params(untrained.params, learner_mesh)
    waiting = in_memory("pinned_host", placed)
    assert {leaf.sharding.memory_kind for leaf in jax.tree.leaves(waiting)} == {"pinned_host"}
    back = in_memory("device", waiting)
    assert jax.tree.map(lambda x: x.sharding, back) == jax.tree.map(lambda x: x.sharding, placed)
    jax.tree.map(np.testing.assert_array_equal, back, placed)
