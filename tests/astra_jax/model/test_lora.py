"""Adapters: the policy begins as its base, samples what the learner computes, and learns nothing but them."""

from __future__ import annotations

import asyncio
import functools
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from astra_jax.checkpoints.checkpoint import CheckpointError, load_params
from astra_jax.checkpoints.convert import orbax_to_hf
from astra_jax.checkpoints.policy import save_policy
from astra_jax.checkpoints.provenance import TOKENS_ADDED, Provenance, TrainingStage
from astra_jax.config import ConfigError
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.mesh.placement import with_adapters
from astra_jax.metrics_file import read_metrics
from astra_jax.model.config import LoRA, ModelConfig
from astra_jax.model.context_parallel import balance
from astra_jax.model.families import FAMILIES
from astra_jax.model.flops import model_flops
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.lora import adapter_shapes, init_adapters, joined, learnt, merged
from astra_jax.model.qwen3 import bind, init_params, layers_apart
from astra_jax.model.sharding import MeshConfig, make_mesh, param_shardings, spec
from astra_jax.rl.stage import run_rl
from astra_jax.sft.stage import run_sft
from astra_jax.testing import InProcessSandbox, tiny_environment
from tests.astra_jax.curves import curve, weights
from tests.astra_jax.model.test_mesh_parity import CONFIG, batch
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.sft.configs import tiny_sft_config

ALL = LoRA(rank=4)
INPUTS = ("tokens", "positions", "segment_ids")
SOME = LoRA(rank=2, targets=("q_proj", "o_proj", "down_proj"))


def drawn(config: ModelConfig, lora: LoRA = ALL) -> tuple[ModelConfig, dict]:
    """A model with adapters whose halves are both random."""
    config = config.with_lora(lora)
    rng = np.random.default_rng(1)
    adapters = jax.tree.map(
        lambda x: jnp.asarray(rng.standard_normal(x.shape) * 0.1, x.dtype), init_adapters(config, seed=0)
    )
    return config, joined(init_params(config.with_lora(None), seed=0), adapters)


def hidden(config: ModelConfig, params: dict) -> np.ndarray:
    rows = batch()
    return np.asarray(jax.jit(lambda own: bind(config, own)(*(rows[name] for name in INPUTS)))(params))


def loss_of(config: ModelConfig, params: dict, rows: dict) -> jax.Array:
    model = bind(config, params)
    mask_BT = rows["loss_mask"]
    hidden_BTD = model(*(rows[name] for name in INPUTS))
    return -(token_logprobs(hidden_BTD, model.output_embedding, rows["targets"], mask_BT > 0) * mask_BT).sum()


@functools.partial(jax.jit, static_argnums=0)
def gradients(config: ModelConfig, params: dict, rows: dict) -> dict:
    """The gradients of what the model learns."""
    return jax.grad(lambda own: loss_of(config, joined(params, own), rows))(learnt(params))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("lora", [ALL, SOME])
def test_the_learner_computes_what_the_merged_weights_compute(family, lora):
    config, params = drawn(CONFIG.model_copy(update={"family": family}), lora)
    policy_config, policy = merged(config, params)
    assert policy_config == CONFIG.model_copy(update={"family": family})
    np.testing.assert_allclose(hidden(config, params), hidden(policy_config, policy), atol=2e-5)
    base = {name: leaf for name, leaf in params["layers"].items() if not name.endswith(("_a", "_b"))}
    changed = {name for name, leaf in base.items() if not np.array_equal(leaf, policy["layers"][name])}
    assert changed == set(lora.targets)
    assert policy["layers"].keys() == base.keys()


def test_new_adapters_leave_the_policy_as_it_is():
    config = CONFIG.with_lora(ALL)
    params = init_params(CONFIG, seed=0)
    begun = with_adapters(config, params, seed=3, mesh=None)
    assert np.array_equal(hidden(config, begun), hidden(CONFIG, params))
    _, policy = merged(config, begun)
    assert all(np.array_equal(a, b) for a, b in zip(*map(jax.tree.leaves, (params, policy)), strict=True))
    assert begun["layers"]["o_proj_a"].std() == pytest.approx((8 * 8) ** -0.5, rel=0.1)


def test_gradients_are_those_of_the_merged_matrices_by_the_chain_rule():
    """With W' = W + s·A·B: dA = s·dW'·Bᵀ and dB = s·Aᵀ·dW', here from the gradient of all merged weights."""
    config, params = drawn(CONFIG)
    found = gradients(config, params, batch())
    of_matrices = gradients(*merged(config, params), batch())
    assert found["layers"].keys() == adapter_shapes(config).keys()
    for name in ALL.targets:
        a, b = (np.asarray(params["layers"][f"{name}_{half}"], np.float64) for half in "ab")
        layers, rank = len(a), a.shape[-1]
        flat_a, flat_b = a.reshape(layers, -1, rank), b.reshape(layers, rank, -1)
        d = np.asarray(of_matrices["layers"][name], np.float64).reshape(layers, flat_a.shape[1], flat_b.shape[2])
        expected = {"a": 2.0 * d @ flat_b.swapaxes(1, 2), "b": 2.0 * flat_a.swapaxes(1, 2) @ d}
        for half, gradient in expected.items():
            of_half = np.asarray(found["layers"][f"{name}_{half}"])
            np.testing.assert_allclose(
                of_half, gradient.reshape(of_half.shape), rtol=1e-3, atol=1e-4, err_msg=f"{name} {half}"
            )


def test_a_mesh_has_the_gradients_of_one_device_and_decodes_the_merged_weights():
    config, params = drawn(CONFIG)
    expected = gradients(config, params, batch())
    mesh = make_mesh(MeshConfig(fsdp=2, context=2, tensor=2), jax.devices()[:8])
    placed = jax.device_put(params, param_shardings(params, mesh))
    rows = balance(batch(), 2)
    rows = jax.device_put(rows, jax.sharding.NamedSharding(mesh, spec("batch", "sequence")))
    with jax.set_mesh(mesh):
        found = gradients(config, placed, rows)
    for a, b in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)
    decoded = laid_out_for_decoding(config, mesh, placed)
    _, policy = merged(config, params)
    for a, b in zip(*map(jax.tree.leaves, (layers_apart(policy), decoded)), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-6)
    _, over_mesh = merged(config, placed)
    assert over_mesh["layers"]["q_proj"].sharding == placed["layers"]["q_proj"].sharding


def test_frozen_weights_cost_no_gradient():
    config = CONFIG.with_lora(LoRA(rank=1))
    whole, adapted = (model_flops(model, [1]) for model in (CONFIG, config))
    assert 2 / 3 < adapted / whole < 0.75


@pytest.fixture(scope="module")
def sft(tokenizer, untrained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    save_policy(untrained, folder / "init")
    config = tiny_sft_config(
        folder,
        tokenizer,
        [tiny_environment()],
        steps=6,
        batch_tokens=320,
        optimizer={"learning_rate": 2e-2},
        checkpoint_every_steps=2,
        lora=ALL,
    ).model_copy(update={"init": folder / "init", "model": None, "tokenizer": None})
    run_sft(config)
    return config


def test_sft_learns_adapters_alone_and_saves_them_alone(sft, untrained):
    losses = [line["loss"] for line in curve(sft.out)]
    assert losses[-1] < 0.9 * losses[0]
    model, policy = load_params(sft.out / "policy")
    assert model == untrained.model_config
    same = {name for name, leaf in policy["layers"].items() if np.array_equal(leaf, untrained.params["layers"][name])}
    assert same == {"attention_norm", "mlp_norm", "q_norm", "k_norm"}
    assert np.array_equal(policy["embedding"], untrained.params["embedding"])
    with pytest.raises(CheckpointError, match=r"holds adapters alone; name the run's `policy` folder"):
        load_params(sft.out / "checkpoints" / "00000006")
    with pytest.raises(CheckpointError, match="holds adapters alone"):
        orbax_to_hf(sft.out / "checkpoints" / "00000006", sft.out / "hf")
    with ocp.StandardCheckpointer() as reader:
        saved = reader.metadata(sft.out / "checkpoints" / "00000006" / "params").item_metadata.tree
    assert saved.keys() == {"layers"}
    assert saved["layers"].keys() == adapter_shapes(untrained.model_config.with_lora(ALL)).keys()


def test_adapters_of_random_weights_are_refused(sft):
    random = sft.model_copy(update={"init": None, "model": CONFIG, "tokenizer": sft.init})
    with pytest.raises(ConfigError, match="`lora` adapts the weights of `init`, which is missing"):
        run_sft(random)


def test_adapters_cannot_teach_tokens_whose_embeddings_nobody_has_trained(sft, tmp_path):
    shutil.copytree(sft.init, tmp_path / "init")
    (tmp_path / "init" / "provenance.json").unlink(missing_ok=True)
    added = Provenance(changes=(f"{TOKENS_ADDED}, each embedding the mean of those of its pieces: <tool_call>",))
    added.write(tmp_path / "init")
    run = sft.model_copy(update={"init": tmp_path / "init", "out": tmp_path / "run"})
    with pytest.raises(
        ConfigError, match=r"`lora` learns no embeddings, and <tool_call>.*the likeliest.*leave `lora` out"
    ):
        run_sft(run)
    by_adapters, of_all = (TrainingStage(name="sft", config=config, data=()) for config in ({"lora": {"rank": 8}}, {}))
    assert added.then(by_adapters).has_untrained_calls
    assert not added.then(of_all).then(by_adapters).has_untrained_calls
    assert not Provenance().has_untrained_calls
    assert not Provenance(changes=(f"{TOKENS_ADDED}, each …: <think>",)).has_untrained_calls


def test_a_run_of_adapters_resumes_to_the_same_bits(sft, tmp_path):
    run = sft.model_copy(update={"out": tmp_path / "run"})
    shutil.copytree(sft.out, run.out)
    for path in (run.out / "policy", run.out / "checkpoints" / "00000006", run.out / "checkpoints" / "00000004"):
        shutil.rmtree(path)
    manifest = json.loads((run.out / "run.json").read_text())
    manifest.pop("figures", None)
    (run.out / "run.json").write_text(json.dumps(manifest))
    run_sft(run)
    assert curve(run.out) == curve(sft.out)
    assert weights(run.out / "policy") == weights(sft.out / "policy")


def test_rl_samples_the_policy_that_it_learns(taught, tmp_path):
    config = tiny_rl_config(tmp_path, taught, steps=3, lora=ALL, optimizer={"learning_rate": 1e-3})
    asyncio.run(run_rl(config, InProcessSandbox()))
    lines = read_metrics(config.out / "metrics.jsonl")
    assert all(line["applied"] and line["grad_norm"] > 0 for line in lines)
    assert max(line["mean_abs_logprob_difference"] for line in lines) < 1e-5
    model, policy = load_params(config.out / "policy")
    assert model == taught.model_config
    assert not np.array_equal(policy["layers"]["q_proj"], taught.params["layers"]["q_proj"])
    assert np.array_equal(policy["embedding"], taught.params["embedding"])
