"""Tiny random models of every architectural variant against transformers: logits, loss and every gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from astra_jax.checkpoints.hf import save_hf
from astra_jax.model.config import ModelConfig, YarnScaling
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind, init_params, rope_frequencies

YARN = YarnScaling(factor=4.0, original_max_position_embeddings=32)
VARIANTS = {
    "untied, 2 queries per key": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 12},
    "tied, heads x head_dim is not the width": {
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 16,
        "tie_word_embeddings": True,
    },
    "yarn, every query its own key": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 32, "yarn": YARN},
    "tied, yarn": {"num_heads": 3, "num_kv_heads": 1, "head_dim": 16, "yarn": YARN, "tie_word_embeddings": True},
}


def config_of(variant: str) -> ModelConfig:
    sizes = {"vocab_size": 97, "hidden_size": 48, "num_layers": 2, "intermediate_size": 80}
    return ModelConfig(**sizes, max_position_embeddings=128, **VARIANTS[variant])


def varied_params(config):
    """Random parameters whose norms are not one, so that a norm left out or mixed up shows."""
    params = init_params(config, seed=0)
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(1)
    return jax.tree.unflatten(tree, [leaf + 0.1 * rng.standard_normal(leaf.shape, np.float32) for leaf in leaves])


@pytest.fixture(scope="module")
def oracle() -> tuple[Any, Any]:
    """transformers and torch; a fixture, since to import them takes seconds that collecting this file need not."""
    reason = "the parity oracle is an extra: pip install '.[parity]'"
    return pytest.importorskip("transformers", reason=reason), pytest.importorskip("torch", reason=reason)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_loss_and_gradients_equal_those_of_transformers(variant, tmp_path, oracle):
    transformers, torch = oracle
    config = config_of(variant)
    params = varied_params(config)
    tokens_BT = np.random.default_rng(0).integers(0, 97, (2, 100))

    @jax.jit
    def ours(params):
        def loss_fn(params):
            model = bind(config, params)
            positions_BT = jnp.broadcast_to(jnp.arange(100), (2, 100))
            hidden_BTD = model(tokens_BT, positions_BT, jnp.ones((2, 100), jnp.int32))
            logprobs_BT = token_logprobs(hidden_BTD[:, :-1], model.output_embedding, tokens_BT[:, 1:])
            return -logprobs_BT.mean(), model.logits(hidden_BTD)

        return jax.value_and_grad(loss_fn, has_aux=True)(params)

    (loss, logits_BTV), gradients = ours(params)

    save_hf(params, config, tmp_path / "model")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager")
    out = theirs(input_ids=torch.tensor(tokens_BT), labels=torch.tensor(tokens_BT))
    out.loss.backward()

    np.testing.assert_allclose(logits_BTV, out.logits.detach().numpy(), atol=3e-5)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-6)
    save_hf(gradients, config, tmp_path / "gradients")
    ours_by_name = load_file(tmp_path / "gradients" / "model.safetensors")
    theirs_by_name = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert ours_by_name.keys() == theirs_by_name.keys()
    for name, gradient in theirs_by_name.items():
        np.testing.assert_allclose(ours_by_name[name], gradient, atol=2e-6, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("rope_theta", [1e4, 1e6])
def test_rope_frequencies_are_rounded_as_those_of_transformers(rope_theta, oracle):
    """Equal to the bit but for one or two: positions multiply a rounding error until sharp heads show it."""
    transformers, _ = oracle
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    sizes = {"vocab_size": 97, "hidden_size": 48, "num_layers": 1, "intermediate_size": 80, "num_heads": 1}
    config = ModelConfig(**sizes, num_kv_heads=1, head_dim=128, rope_theta=rope_theta)
    frequencies, _ = rope_frequencies(config)
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    theirs = Qwen3RotaryEmbedding(transformers.Qwen3Config(head_dim=128, rope_parameters=rope)).inv_freq.numpy()
    assert (np.asarray(frequencies) != theirs).sum() <= 2
    np.testing.assert_allclose(frequencies, theirs, rtol=1.2e-7)
