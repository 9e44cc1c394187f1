"""Every family, as tiny random models: against transformers, in files, in the optimiser, and in the decoder."""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file

from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.checkpoints.convert import hf_to_orbax, orbax_to_hf
from astra_jax.checkpoints.gguf_file import gguf_to_hf
from astra_jax.checkpoints.hf import HFCheckpointError, read_hf_config, save_hf
from astra_jax.checkpoints.provenance import read_provenance
from astra_jax.cli.command import main
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import XLADevice
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.sizes import decode_limits
from astra_jax.episodes.rollout import RolloutConfig
from astra_jax.model.config import ModelConfig, YarnScaling
from astra_jax.model.families import FAMILIES
from astra_jax.model.logprobs import token_logprobs
from astra_jax.model.qwen3 import bind, init_params, rope_frequencies
from astra_jax.testing import tiny_model_config
from tests.astra_jax.checkpoints.folders import assert_same_tensors, write_gguf, write_hf_folder

YARN = YarnScaling(factor=4.0, original_max_position_embeddings=32)
VARIANTS = {
    "qwen3, tied, heads x head_dim is not the width": (4, 1, 16, True, None),
    "qwen3, untied, yarn, every query its own key": (2, 2, 32, False, YARN),
    "qwen2, untied": (4, 2, 12, False, None),
    "qwen2, tied, heads x head_dim is not the width, yarn": (4, 1, 16, True, YARN),
    "llama, untied, yarn": (4, 2, 12, False, YARN),
    "llama, tied, heads x head_dim is not the width": (4, 1, 16, True, None),
}
"""Query heads, key heads, width of a head, tied embeddings, YaRN; the family is the first word."""
LIMITS = decode_limits(RolloutConfig(max_prompt_tokens=8, max_response_tokens=16, max_turns=1), 1, 1)
NEEDS_GGUF = "GGUF files are an extra: pip install '.[gguf]'"


def config_of(variant: str) -> ModelConfig:
    heads, kv_heads, head_dim, tied, yarn = VARIANTS[variant]
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head_dim, "intermediate_size": 80}
    sizes |= {"vocab_size": 97, "hidden_size": 48, "num_layers": 2, "max_position_embeddings": 128}
    return ModelConfig(family=variant.split(",")[0], **sizes, tie_word_embeddings=tied, yarn=yarn)


def tiny_of(family: str, vocab_size: int) -> ModelConfig:
    return tiny_model_config(vocab_size).model_copy(update={"family": family})


def varied_params(config):
    """Random parameters, norms not one and biases not zero, so that one left out or mixed up shows."""
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

    expected_BTV = out.logits.detach().numpy()
    np.testing.assert_allclose(logits_BTV, expected_BTV, atol=3e-5)
    np.testing.assert_allclose(loss, out.loss.item(), rtol=1e-6)
    save_hf(gradients, config, tmp_path / "gradients")
    ours_by_name = load_file(tmp_path / "gradients" / "model.safetensors")
    theirs_by_name = {name: p.grad.numpy() for name, p in theirs.named_parameters()}
    assert ours_by_name.keys() == theirs_by_name.keys()
    for name, gradient in theirs_by_name.items():
        np.testing.assert_allclose(ours_by_name[name], gradient, atol=2e-6, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_sizes_that_transformers_infers_are_inferred_alike_and_others_must_be_stated(family, oracle):
    row, sizes = FAMILIES[family], tiny_of(family, 97)
    hf = {key: value for key, value in sizes.to_hf().items() if key not in ("head_dim", "tie_word_embeddings")}
    assert hf["architectures"] == [row.architecture]
    if row.states_head_dim:
        with pytest.raises(ValueError, match=rf"missing keys \['head_dim'\] of a {row.name}"):
            ModelConfig.from_hf(hf)
        return
    theirs = oracle[0].AutoConfig.for_model(**hf)
    assert ModelConfig.from_hf(hf) == sizes.model_copy(update={"tie_word_embeddings": theirs.tie_word_embeddings})
    assert sizes.head_dim == theirs.hidden_size // theirs.num_attention_heads


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversion_is_bit_equal_both_ways_and_an_export_names_its_family(family, tmp_path, tokenizer):
    config = tiny_of(family, tokenizer.vocab_size)
    tensors = write_hf_folder(tmp_path / "hf", config)
    tokenizer.save(tmp_path / "hf", model_max_length=1024)
    hf_to_orbax(tmp_path / "hf", tmp_path / "ours")
    assert load_params(tmp_path / "ours")[0] == config
    orbax_to_hf(tmp_path / "ours", tmp_path / "back")
    assert_same_tensors(tmp_path / "back", tensors)
    assert sum(tensor.size for tensor in tensors.values()) == config.num_parameters
    assert f"# A tool-using {FAMILIES[family].name}, trained" in (tmp_path / "back" / "README.md").read_text()
    settings = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert settings.items() >= {**FAMILIES[family].sampling, "eos_token_id": [tokenizer.end_id, 0]}.items()


@pytest.mark.parametrize("family", FAMILIES)
async def test_the_decoder_says_what_the_forward_pass_says(family):
    config = tiny_of(family, 97)
    params = varied_params(config)
    decoder = PagedDecoder(XLADevice(config, params, LIMITS, end_ids=()), LIMITS, end_ids=())
    said = await decoder.generate([11, 12, 13], Sampling(8, temperature=0.0), Session(seed=0, slot=0))
    await decoder.close()
    ids_1T = np.array([[11, 12, 13, *said.ids]])
    model = bind(config, params)
    logits_TV = model.logits(model(ids_1T, np.arange(11)[None], np.ones_like(ids_1T)))[0]
    assert said.ids == logits_TV[2:-1].argmax(-1).tolist()
    np.testing.assert_allclose(said.logprobs, jax.nn.log_softmax(logits_TV[2:-1]).max(-1), atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_is_read_to_the_bit_and_dequantised(family, tmp_path, tokenizer):
    gguf = pytest.importorskip("gguf", reason=NEEDS_GGUF)
    config = tiny_of(family, tokenizer.vocab_size)
    tensors = write_hf_folder(tmp_path / "hf", config)
    quantised = {"model.layers.1.mlp.up_proj.weight": gguf.GGMLQuantizationType.Q4_1}
    write_gguf(tmp_path / "model.gguf", config, tensors, tokenizer, quantised)
    assert main(["convert", "gguf-to-hf", str(tmp_path / "model.gguf"), str(tmp_path / "read")]) == 0
    for name, kind in quantised.items():
        tensors[name] = gguf.dequantize(gguf.quantize(tensors[name], kind), kind)
    assert_same_tensors(tmp_path / "read", tensors)
    assert read_hf_config(tmp_path / "read") == config
    assert read_provenance(tmp_path / "read").changes == ("Read from model.gguf, license mit: F32, Q4_1 made float32",)
    read = tokenizers.Tokenizer.from_file(str(tmp_path / "read" / "tokenizer.json"))
    text = "<|im_start|>user\nThe rent of 2150 €? 房东"
    assert read.decode(read.encode(text).ids, skip_special_tokens=False) == text
    assert read.encode("2150").tokens == ["2", "1", "5", "0"]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"general.architecture": "mamba"}, "expected an architecture of qwen3, qwen2, llama, found 'mamba'"),
        ({"llama.block_count": 3}, r"9 tensors do not fit its metadata:\n  expected blk\.2\.attn_k"),
        (
            {"llama.rope.scaling.type": "linear"},
            "expected a rope of 8 dimensions without scaling, found None with linear",
        ),
        ({"tokenizer.ggml.pre": "deepseek"}, "cuts text as 'qwen2' or 'smollm', found 'gpt2' with 'deepseek'"),
        ({"llama.attention.head_count": 0}, "cannot be read; take another file of this model: .* by zero"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, "cannot be read; take another file of this model: .* out of range"),
    ],
)
def test_a_gguf_file_that_would_be_read_otherwise_than_it_was_meant_is_refused(metadata, message, tmp_path, tokenizer):
    pytest.importorskip("gguf", reason=NEEDS_GGUF)
    config = tiny_of("llama", tokenizer.vocab_size)
    write_gguf(tmp_path / "a.gguf", config, write_hf_folder(tmp_path / "hf", config), tokenizer, {}, metadata)
    with pytest.raises(HFCheckpointError, match=message):
        gguf_to_hf(tmp_path / "a.gguf", tmp_path / "read")
    (tmp_path / "a.gguf").write_bytes(b"GGUF\0")
    with pytest.raises(HFCheckpointError, match="not a whole GGUF file"):
        gguf_to_hf(tmp_path / "a.gguf", tmp_path / "read")
    assert not (tmp_path / "read").exists()


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
