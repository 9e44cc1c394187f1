"""HuggingFace folders: bit-equal round trips, and errors that name the tensor at fault."""

import json

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file, save_file

from astra_jax.chat.tokenizer import TokenizerError
from astra_jax.checkpoints.checkpoint import load_params, save_params
from astra_jax.checkpoints.hf import HFCheckpointError, hf_tensors, load_hf, save_hf
from astra_jax.model.config import ModelConfig, YarnScaling
from astra_jax.model.qwen3 import init_params

CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=48
)


def write_hf_folder(directory, config, dtype=np.float32):
    """A folder as HuggingFace has it, of random tensors, made without our writer."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    tensors = {tensor.name: rng.normal(size=tensor.shape).astype(dtype) for tensor in hf_tensors(config)}
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps(config.to_hf()))
    return tensors


def all_tensors(directory):
    return {name: array for file in directory.glob("*.safetensors") for name, array in load_file(file).items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_hf_to_orbax_to_hf_is_bit_equal(tmp_path, dtype, tied):
    numpy_dtype = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}[dtype]
    config = CONFIG.model_copy(update={"tie_word_embeddings": tied, "param_dtype": dtype})
    original = write_hf_folder(tmp_path / "hf", config, numpy_dtype)
    loaded_config, params = load_hf(tmp_path / "hf", param_dtype=dtype)
    save_params(tmp_path / "orbax", loaded_config, params)
    save_hf(load_params(tmp_path / "orbax")[1], loaded_config, tmp_path / "back", max_shard_bytes=20_000)
    back = all_tensors(tmp_path / "back")
    assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 2
    assert back.keys() == original.keys()
    for name, tensor in original.items():
        assert back[name].tobytes() == tensor.tobytes(), name


def test_orbax_to_hf_to_orbax_is_bit_equal(tmp_path):
    params = init_params(CONFIG, seed=0)
    save_params(tmp_path / "orbax", CONFIG, params)
    save_hf(load_params(tmp_path / "orbax")[1], CONFIG, tmp_path / "hf")
    config, back = load_hf(tmp_path / "hf")
    assert config == CONFIG
    assert jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), params, back))


def test_a_tensor_lands_where_its_sharding_says(tmp_path):
    from astra_jax.model.sharding import MeshConfig, make_mesh

    write_hf_folder(tmp_path / "hf", CONFIG)
    _, whole = load_hf(tmp_path / "hf")
    mesh = make_mesh(MeshConfig(fsdp=2, context=2, tensor=2))
    _, sharded = load_hf(tmp_path / "hf", mesh=mesh)
    assert sharded["layers"]["q_proj"].addressable_shards[0].data.shape == (3, 8, 2, 16)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), whole, sharded))


def test_missing_extra_and_misshapen_tensors_are_each_named(tmp_path):
    tensors = write_hf_folder(tmp_path / "hf", CONFIG)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(64, np.float32)
    tensors["model.norm.weight"] = np.zeros(31, np.float32)
    save_file(tensors, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(HFCheckpointError) as error:
        load_hf(tmp_path / "hf")
    message = str(error.value)
    assert "3 tensors" in message
    assert "missing model.layers.1.mlp.up_proj.weight (48, 32)" in message
    assert "extra model.layers.0.self_attn.q_proj.bias (64,)" in message
    assert "model.norm.weight: expected shape (32,), found (31,)" in message


def test_a_folder_of_another_architecture_is_refused(tmp_path):
    write_hf_folder(tmp_path / "hf", CONFIG)
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CONFIG.to_hf() | {"model_type": "llama"}))
    with pytest.raises(ValueError, match="expected model_type 'qwen3', found 'llama'"):
        load_hf(tmp_path / "hf")
    with pytest.raises(HFCheckpointError, match=r"found no config\.json"):
        load_hf(tmp_path)


def test_a_shard_named_by_the_index_but_absent_is_named_in_the_error(tmp_path):
    save_hf(init_params(CONFIG, seed=0), CONFIG, tmp_path / "hf", max_shard_bytes=20_000)
    gone = sorted((tmp_path / "hf").glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(HFCheckpointError, match=gone.name):
        load_hf(tmp_path / "hf")


def test_a_tokenizer_that_is_none_of_qwen3_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "companions").mkdir()
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.save(str(tmp_path / "companions" / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="expected the Qwen3 control tokens"):
        save_hf(init_params(CONFIG, seed=0), CONFIG, tmp_path / "hf", companions=tmp_path / "companions")
    assert [path.name for path in tmp_path.iterdir()] == ["companions"]


@pytest.mark.parametrize("yarn", [None, YarnScaling(factor=4.0, original_max_position_embeddings=32_768)])
def test_config_json_survives_the_round_trip_in_both_spellings_of_the_rope(yarn):
    config = CONFIG.model_copy(update={"yarn": yarn})
    hf = config.to_hf()
    assert ModelConfig.from_hf(hf) == config
    rope = {"rope_theta": hf.pop("rope_theta"), **(hf.pop("rope_scaling") or {"rope_type": "default"})}
    assert ModelConfig.from_hf(hf | {"rope_parameters": rope}) == config


def test_rope_scaling_we_do_not_have_is_refused():
    with pytest.raises(ValueError, match="expected rope type 'default' or 'yarn', found 'llama3'"):
        ModelConfig.from_hf(CONFIG.to_hf() | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})


@pytest.mark.parametrize(
    "fault",
    [
        {"hidden_size": "wide"},
        {"rope_scaling": {"rope_type": "yarn"}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 2.0}},
        {"rope_theta": None},
        {"attention_bias": True},
        {"layer_types": ["another"]},
    ],
)
def test_a_config_json_that_cannot_be_used_is_a_value_error(fault):
    with pytest.raises(ValueError):
        ModelConfig.from_hf(CONFIG.to_hf() | fault)


def test_what_transformers_would_fill_in_must_be_there():
    hf = CONFIG.to_hf()
    for key in ("vocab_size", "rope_theta", "head_dim"):
        with pytest.raises(ValueError, match=rf"missing keys \['{key}'\]"):
            ModelConfig.from_hf({name: value for name, value in hf.items() if name != key})


def test_reading_a_config_json_leaves_it_as_it_was():
    hf = CONFIG.model_copy(update={"yarn": YarnScaling(factor=2.0, original_max_position_embeddings=64)}).to_hf()
    before = json.dumps(hf)
    ModelConfig.from_hf(hf)
    assert json.dumps(hf) == before
