"""HuggingFace folders: bit-equal round trips, and errors that name the tensor at fault."""

import copy
import json

import jax
import ml_dtypes
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from transformers import Qwen3Config

from astra_jax.chat.tokenizer import TokenizerError
from astra_jax.checkpoints import hf
from astra_jax.checkpoints.checkpoint import load_params, save_params
from astra_jax.checkpoints.hf import HFCheckpointError, load_hf, save_hf
from astra_jax.model.config import ModelConfig, YarnScaling
from astra_jax.model.qwen3 import init_params
from tests.astra_jax.checkpoints.folders import assert_same_tensors, write_hf_folder

CONFIG = ModelConfig(
    vocab_size=64, hidden_size=32, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=48
)


@pytest.mark.parametrize(("dtype", "tied"), [("float32", False), ("bfloat16", True)])
def test_hf_to_orbax_to_hf_to_orbax_is_bit_equal(tmp_path, monkeypatch, dtype, tied):
    monkeypatch.setattr(hf, "SHARD_BYTES", 20_000)
    config = CONFIG.model_copy(update={"tie_word_embeddings": tied, "param_dtype": dtype})
    original = write_hf_folder(tmp_path / "hf", config, dtype)
    loaded_config, params = load_hf(tmp_path / "hf", param_dtype=dtype)
    save_params(tmp_path / "orbax", loaded_config, params)
    save_hf(load_params(tmp_path / "orbax")[1], loaded_config, tmp_path / "back")
    assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 2
    assert_same_tensors(tmp_path / "back", original)
    again_config, again = load_hf(tmp_path / "back", param_dtype=dtype)
    assert again_config == loaded_config == config
    assert jax.tree.all(jax.tree.map(lambda a, b: a.tobytes() == b.tobytes(), params, again))


def test_a_tensor_lands_where_its_sharding_says(tmp_path):
    from astra_jax.model.sharding import MeshConfig, make_mesh

    write_hf_folder(tmp_path / "hf", CONFIG)
    _, whole = load_hf(tmp_path / "hf")
    mesh = make_mesh(MeshConfig(fsdp=2, context=2, tensor=2))
    _, sharded = load_hf(tmp_path / "hf", mesh=mesh)
    assert sharded["layers"]["q_proj"].addressable_shards[0].data.shape == (3, 8, 2, 16)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), whole, sharded))


def test_a_shard_named_by_the_index_but_absent_is_named_in_the_error(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "SHARD_BYTES", 20_000)
    save_hf(init_params(CONFIG, seed=0), CONFIG, tmp_path / "hf")
    gone = sorted((tmp_path / "hf").glob("model-*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(HFCheckpointError, match=gone.name):
        load_hf(tmp_path / "hf")


def test_a_tokenizer_that_is_none_of_qwen3_is_refused_before_anything_is_written(tmp_path):
    (tmp_path / "companions").mkdir()
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.save(str(tmp_path / "companions" / "tokenizer.json"))
    with pytest.raises(TokenizerError, match="the tokenizer lacks the Qwen3 control tokens"):
        save_hf(init_params(CONFIG, seed=0), CONFIG, tmp_path / "hf", companions=tmp_path / "companions")
    assert [path.name for path in tmp_path.iterdir()] == ["companions"]


@pytest.mark.parametrize("yarn", [None, YarnScaling(factor=4.0, original_max_position_embeddings=32_768)])
def test_config_json_survives_the_round_trip_in_both_spellings_of_the_rope(yarn):
    config = CONFIG.model_copy(update={"yarn": yarn})
    hf = config.to_hf()
    before = json.dumps(hf)
    assert ModelConfig.from_hf(hf) == config
    assert json.dumps(hf) == before
    rope = {"rope_theta": hf.pop("rope_theta"), **(hf.pop("rope_scaling") or {"rope_type": "default"})}
    assert ModelConfig.from_hf(hf | {"rope_parameters": rope}) == config


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
V5_ROPE = {"rope_type": "default", "rope_theta": 1e6}


def config_json(**changes):
    """A config.json of `CONFIG` with a rope of 1e6 in no spelling yet."""
    hf = {key: value for key, value in CONFIG.to_hf().items() if key not in ("rope_theta", "rope_scaling")}
    return hf | changes


@pytest.mark.parametrize(
    ("changes", "theta", "factor"),
    [
        ({"rope_parameters": V5_ROPE}, 1e6, None),
        ({"rope_theta": 1e6, "rope_parameters": V5_ROPE}, 1e6, None),
        ({"rope_theta": 1e6, "rope_parameters": V5_ROPE, "rope_scaling": YARN}, 1e6, 4.0),
        ({"rope_parameters": V5_ROPE, "rope_scaling": YARN | {"rope_theta": 1e6}}, 1e6, 4.0),
        ({"rope_theta": 5e5, "rope_scaling": {"type": "yarn"} | YARN | {"attention_factor": None}}, 5e5, 4.0),
        ({"rope_theta": 5e5, "rope_scaling": {}, "partial_rotary_factor": 1.0}, 5e5, None),
    ],
)
def test_a_rope_that_is_said_once_or_twice_alike_is_read_as_transformers_reads_it(changes, theta, factor):
    hf = config_json(**changes)
    config = ModelConfig.from_hf(hf)
    assert (config.rope_theta, config.yarn and config.yarn.factor) == (theta, factor)
    assert Qwen3Config.from_dict(copy.deepcopy(hf)).rope_parameters["rope_theta"] == theta


MISSING = object()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # Qwen3's card says to add this beside a rope as transformers 5 writes it, which would then read 10,000.
        (
            {"rope_parameters": V5_ROPE, "rope_scaling": YARN, "rope_theta": MISSING},
            r"rope_theta = 1000000\.0 .* transformers reads 10000\.0; write",
        ),
        (
            {"rope_parameters": YARN | {"rope_theta": 1e6}, "rope_scaling": V5_ROPE, "rope_theta": MISSING},
            "= 'yarn' .* reads 'default'",
        ),
        ({"rope_theta": 5e5, "rope_parameters": V5_ROPE}, r"500000\.0 .* reads 1000000\.0"),
        ({"rope_parameters": YARN, "rope_scaling": YARN | {"factor": 2.0}}, r"= 4\.0 .* reads 2\.0"),
        ({"original_max_position_embeddings": 64, "rope_scaling": YARN}, "= 64 .* reads 128"),
        ({"rope_scaling": {"type": "yarn"} | V5_ROPE}, "= 'yarn' .* reads 'default'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "original_max_position"),
        ({"rope_scaling": YARN | {"factor": None}}, "factor"),
        ({"rope_scaling": YARN, "rope_theta": MISSING}, r"missing keys \['rope_theta'\]"),
        ({"rope_scaling": {"factor": 4.0}}, r"the keys \['factor'\] are for a rope of type 'yarn' alone"),
        ({"rope_scaling": YARN | {"attention_factor": 2.0}}, "attention_factor"),
        ({"rope_scaling": YARN | {"mscale": 2.0}}, "mscale"),
        ({"rope_scaling": YARN | {"truncate": False}}, "truncate"),
        ({"rope_scaling": YARN | {"beta_fast": 0}}, "beta_fast"),
        ({"rope_scaling": YARN | {"factor": "4.0"}}, "factor"),
        ({"rope_theta": "1e6"}, "rope_theta"),
        ({"rope_theta": float("nan")}, "rope_theta"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_parameters": {"full_attention": V5_ROPE}, "rope_theta": MISSING}, "rope_theta"),
        ({"rope_scaling": "yarn"}, "config.json"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "found 'linear'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "expected rope type 'default' or 'yarn', found 'llama3'",
        ),
        *(({key: MISSING}, rf"missing keys \['{key}'\]") for key in ("vocab_size", "head_dim")),
        ({"model_type": "mistral"}, r"expected model_type 'qwen3' \(Qwen3\), .*, found 'mistral'"),
        ({"hidden_size": "wide"}, "hidden_size"),
        # Keys with which transformers would compute something else.
        ({"attention_bias": True}, r"config\.json: "),
        ({"head_dim": None}, r"config\.json: "),
        ({"hidden_act": "gelu"}, r"config\.json: "),
        ({"is_causal": False}, r"config\.json: "),
        ({"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}, r"config\.json: "),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, r"config\.json: "),
        ({"per_layer_config": {"1": {"intermediate_size": 24}}}, r"config\.json: "),
    ],
)
def test_a_config_that_is_not_a_dense_qwen3_or_that_transformers_reads_otherwise_is_refused(changes, message):
    hf = config_json(**{"rope_theta": 1e6} | changes)
    ModelConfig.from_hf(config_json(rope_theta=1e6))
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_hf({key: value for key, value in hf.items() if value is not MISSING})


TIED = CONFIG.model_copy(update={"tie_word_embeddings": True})


@pytest.mark.parametrize("piece_bytes", [1, 64 * 2**20])
def test_a_tied_head_that_is_the_embedding_is_read_and_one_that_differs_is_refused(tmp_path, monkeypatch, piece_bytes):
    monkeypatch.setattr(hf, "PIECE_BYTES", piece_bytes)
    tensors = write_hf_folder(tmp_path / "hf", TIED)
    embedding = tensors["model.embed_tokens.weight"]
    save_file(tensors | {"lm_head.weight": embedding}, tmp_path / "hf" / "model.safetensors")
    _, params = load_hf(tmp_path / "hf")
    assert "unembedding" not in params
    assert np.asarray(params["embedding"]).tobytes() == embedding.tobytes()
    other = embedding.copy()
    other[-1, -1] += 1
    for head in (other, embedding[:-1], embedding.astype(np.float16)):
        save_file(tensors | {"lm_head.weight": head}, tmp_path / "hf" / "model.safetensors")
        with pytest.raises(
            HFCheckpointError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight; .*false"
        ):
            load_hf(tmp_path / "hf")


def test_a_head_that_is_missing_or_stands_alone_is_refused(tmp_path):
    tensors = write_hf_folder(tmp_path / "hf", CONFIG)
    embedding, head = tensors.pop("model.embed_tokens.weight"), tensors.pop("lm_head.weight")
    save_file(tensors | {"model.embed_tokens.weight": embedding}, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(HFCheckpointError, match=r"expected lm_head\.weight .*, found none"):
        load_hf(tmp_path / "hf")
    (tmp_path / "hf" / "config.json").write_text(json.dumps(TIED.to_hf()))
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "hf" / "model.safetensors")
    with pytest.raises(HFCheckpointError, match=r"expected model\.embed_tokens\.weight .*, found none"):
        load_hf(tmp_path / "hf")


def test_a_head_that_the_config_does_not_have_is_never_left_out_of_an_export(tmp_path):
    with pytest.raises(HFCheckpointError, match=r"expected the parameters .*, found .*unembedding"):
        save_hf(init_params(CONFIG, seed=0), TIED, tmp_path / "hf")
    assert not list(tmp_path.iterdir())


def test_weights_that_are_quantised_are_refused_in_one_line(tmp_path):
    tensors = write_hf_folder(tmp_path / "hf", CONFIG)
    settings = {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(CONFIG.to_hf() | settings))
    name = "model.layers.1.mlp.up_proj.weight"
    for kind, changes in {
        "8 bits": {name: tensors[name].astype(np.int8)},
        "8 bits as floats": {name: tensors[name].astype(ml_dtypes.float8_e4m3fn)},
        "packed": {name: np.zeros((3, 1), np.uint8)},
        "with scales": {f"{name}_scale_inv": np.ones((1, 1), np.float32)},
    }.items():
        save_file(tensors | changes, tmp_path / "hf" / "model.safetensors")
        with pytest.raises(HFCheckpointError, match=r"the weights are quantised .*fp8.*up_proj") as error:
            load_hf(tmp_path / "hf")
        assert "\n" not in str(error.value), kind


def test_weights_that_transformers_would_take_from_elsewhere_are_refused(tmp_path):
    write_hf_folder(tmp_path / "hf", CONFIG)
    (tmp_path / "hf" / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "other"}}))
    with pytest.raises(HFCheckpointError, match=r"found model\.safetensors besides; delete"):
        load_hf(tmp_path / "hf")
    (tmp_path / "hf" / "model.safetensors.index.json").unlink()
    (tmp_path / "hf" / "adapter_config.json").write_text("{}")
    with pytest.raises(HFCheckpointError, match="merge the adapter"):
        load_hf(tmp_path / "hf")


@pytest.mark.parametrize("text", ["[]", "null", "{", "[" * 100_000])
def test_a_config_json_that_is_no_object_is_refused(tmp_path, text):
    write_hf_folder(tmp_path / "hf", CONFIG)
    (tmp_path / "hf" / "config.json").write_text(text)
    with pytest.raises(HFCheckpointError, match=r"config\.json is not a JSON object"):
        load_hf(tmp_path / "hf")
