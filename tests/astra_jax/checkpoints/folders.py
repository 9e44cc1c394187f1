"""HuggingFace folders of random tensors and GGUF files, made without our writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tokenizers
from safetensors.numpy import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, trainers

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.hf import hf_tensors
from astra_jax.model.config import ModelConfig

NUMPY_DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}


def write_hf_folder(
    directory: Path, config: ModelConfig, dtype: str = "float32", shards: int = 1
) -> dict[str, np.ndarray]:
    """Write the weights, the index of several shards, and the config; return the tensors by name."""
    directory.mkdir()
    rng = np.random.default_rng(0)
    tensors = {x.name: rng.normal(size=x.shape).astype(NUMPY_DTYPES[dtype]) for x in hf_tensors(config)}
    home = "model.safetensors" if shards == 1 else "model-{:05d}-of-{:05d}.safetensors"
    weight_map = {name: home.format(i % shards + 1, shards) for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({name: tensors[name] for name, its in weight_map.items() if its == file}, directory / file)
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (directory / "config.json").write_text(json.dumps(config.to_hf()))
    return tensors


def foreign_tokenizer(directory: Path, *names: str) -> tokenizers.Tokenizer:
    """Write a tokenizer as that of SmolLM2: single digits, no normaliser, and of the control tokens only `names`."""
    backend = tokenizers.Tokenizer(models.BPE())
    cuts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Sequence(cuts), decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", *names]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(["a tool to call, the tools of a call <call> <tool>"] * 4, trainer)
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"}
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (directory / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": template}))
    (directory / "special_tokens_map.json").write_text("{}")
    return backend


def write_gguf(
    path: Path,
    config: ModelConfig,
    tensors: Mapping[str, np.ndarray],
    tokenizer: Tokenizer,
    quantised: Mapping[str, Any],
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a GGUF file as llama.cpp's converter does, with some tensors quantised and some metadata changed."""
    import gguf

    family, heads = config.family, {"attn_q": config.num_heads, "attn_k": config.num_kv_heads}
    parts = json.loads(tokenizer.backend.to_str())
    special = {each["content"] for each in parts["added_tokens"] if each["special"]}
    tokens = sorted(
        parts["model"]["vocab"] | {x["content"]: x["id"] for x in parts["added_tokens"]},
        key=tokenizer.backend.token_to_id,
    )
    of_text = tuple(map(" ".join, parts["model"]["merges"]))
    values = {
        "general.architecture": family,
        "general.license": "mit",
        f"{family}.block_count": config.num_layers,
        f"{family}.context_length": config.max_position_embeddings,
        f"{family}.embedding_length": config.hidden_size,
        f"{family}.feed_forward_length": config.intermediate_size,
        f"{family}.attention.head_count": config.num_heads,
        f"{family}.attention.head_count_kv": config.num_kv_heads,
        f"{family}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        f"{family}.rope.freq_base": config.rope_theta,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": list(of_text),
        "tokenizer.ggml.eos_token_id": tokenizer.end_id,
    } | dict(metadata or {})
    writer = gguf.GGUFWriter(path, str(values.pop("general.architecture")))
    for key, value in values.items():
        add: Any = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
        add[type(value)](key, value)
    for place in hf_tensors(config):
        tensor, kind = tensors[place.name], quantised.get(place.name)
        name = place.row.gguf.format(layer=place.layer)
        if family == "llama" and (count := heads.get(name.split(".")[2] if "blk" in name else "")):
            # `LlamaModel.permute` of llama.cpp's convert_hf_to_gguf.py
            tensor = tensor.reshape(count, 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(name, tensor if kind is None else gguf.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def assert_same_tensors(directory: Path, expected: dict[str, np.ndarray]) -> None:
    """Compare the tensors of a folder with others, bit for bit."""
    found = {name: array for file in directory.glob("*.safetensors") for name, array in load_file(file).items()}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert found[name].tobytes() == tensor.tobytes(), name
