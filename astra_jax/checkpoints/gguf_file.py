"""A GGUF file made a HuggingFace folder: weights dequantised, and config, tokenizer and template from its metadata.

`transformers` reads such files as well (5.24), but with torch, all at once, and with a tokenizer that does not cut
digits apart as that of SmolLM2 does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from astra_jax.chat.tokenizer import TOKENIZER
from astra_jax.checkpoints.hf import HFCheckpointError, HFTensor, differences, hf_tensors, whole_hf_folder
from astra_jax.checkpoints.provenance import BaseWeights, Provenance
from astra_jax.config import ConfigError
from astra_jax.model.config import DType, ModelConfig
from astra_jax.model.families import FAMILIES

_KEYS = {
    "num_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
"""Our key, and that of the metadata after the architecture's name."""

_QWEN_PIECES = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_CUTS = {
    "qwen2": [pre_tokenizers.Split(_QWEN_PIECES, behavior="isolated"), _BYTES],
    "smollm": [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)],
}
"""How text is cut before pairs are merged, by `tokenizer.ggml.pre`; as in the tokenizer.json of Qwen2.5 and SmolLM2."""
_ROLES = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
_SPECIAL, _ADDED, _UNUSED = 3, 4, 5  # of `tokenizer.ggml.token_type`


def gguf_to_hf(source: Path, destination: Path, *, dtype: DType = "float32") -> ModelConfig:
    """Make a HuggingFace folder of a GGUF file, with the tokenizer and chat template of its metadata.

    Raises:
        ConfigError: the package `gguf` is not installed.
        HFCheckpointError: the file is damaged, of no known family, or of a tokenizer or quantisation not known here.
        DestinationRefused: something else is at its place.
        OSError: the file is missing, or the disk is full or not writable.
    """
    try:
        import gguf
    except ImportError as error:
        raise ConfigError("a GGUF file needs the package gguf: pip install 'astra-jax[gguf]'") from error
    with source.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        reader = gguf.GGUFReader(source)
        metadata = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # its type depends on the byte at which the file is damaged
        raise HFCheckpointError(f"{source}: not a whole GGUF file ({error}); download it again") from error
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    try:
        config = _config(metadata, tensors)
        names = {place.name: place.row.gguf.format(layer=place.layer) for place in hf_tensors(config)}
        expected = {names[place.name]: place.shape for place in hf_tensors(config)}
        found = {name: tuple(map(int, reversed(tensor.shape))) for name, tensor in tensors.items()}
        if faults := differences(expected, found):
            raise ValueError(f"{len(faults)} tensors do not fit its metadata:\n  " + "\n  ".join(faults))
        tokenizer, tokenizer_config = _tokenizer(metadata)
    except Exception as error:  # its type depends on the value that is damaged
        fault = f"the metadata lack {error}" if isinstance(error, KeyError) else error
        raise HFCheckpointError(f"{source} cannot be read; take another file of this model: {fault}") from error

    def dequantised(place: HFTensor) -> Iterator[np.ndarray]:
        tensor = tensors[names[place.name]]
        try:
            values = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        except NotImplementedError as error:
            raise HFCheckpointError(f"{source}: {error}; take a file of another quantisation") from error
        if config.of_family.gguf_pairs and place.row.ours[-1] in ("q_proj", "k_proj"):
            values = values.reshape(-1, config.head_dim // 2, 2, config.hidden_size).swapaxes(1, 2)
        yield values.reshape(place.shape)

    ids = {f"{role}_id": tokenizer.token_to_id(token) for role, token in tokenizer_config.items() if role in _ROLES}
    hf_config = config.to_hf() | {"torch_dtype": dtype} | ids
    types = sorted({tensor.tensor_type.name for tensor in tensors.values()})
    licence = metadata.get("general.license", "not stated")
    change = f"Read from {source.name}, license {licence}: {', '.join(types)} made {dtype}"
    with whole_hf_folder(destination, config, hf_config, dtype, dequantised) as folder:
        tokenizer.save(str(folder / TOKENIZER))
        tokenizer_config["model_max_length"] = config.context_tokens
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, ensure_ascii=False, indent=2) + "\n")
        config_sha256 = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        base = BaseWeights(name=source.stem, config_sha256=config_sha256)
        Provenance(base=base, changes=(change,), source_files=({source.name: digest},)).write(folder)
    return config


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> ModelConfig:
    family = metadata["general.architecture"]
    if family not in FAMILIES:
        raise ValueError(f"expected an architecture of {', '.join(FAMILIES)}, found {family!r}")
    values = {ours: metadata[f"{family}.{key}"] for ours, key in _KEYS.items()}
    # Stored as float32: 1e-05 would be 9.999999747378752e-06.
    values |= {key: float(str(np.float32(values[key]))) for key in ("rms_norm_eps", "rope_theta")}
    head_dim = metadata.get(f"{family}.attention.key_length", values["hidden_size"] // values["num_heads"])
    scaling, rotated = (metadata.get(f"{family}.rope.{key}") for key in ("scaling.type", "dimension_count"))
    if scaling not in (None, "none") or rotated not in (None, head_dim):
        raise ValueError(f"expected a rope of {head_dim} dimensions without scaling, found {rotated} with {scaling}")
    return ModelConfig(
        family=family,
        vocab_size=len(metadata["tokenizer.ggml.tokens"]),
        head_dim=head_dim,
        tie_word_embeddings="output.weight" not in tensors,
        **values,
    )


def _tokenizer(metadata: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    kind, cut = metadata["tokenizer.ggml.model"], metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in _CUTS:
        known = " or ".join(map(repr, _CUTS))
        raise ValueError(f"expected a tokenizer of kind 'gpt2' that cuts text as {known}, found {kind!r} with {cut!r}")
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.normalizer = normalizers.NFC() if cut == "qwen2" else None
    backend.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut])
    backend.decoder = decoders.ByteLevel()
    added = [(token, types[i]) for token, i in vocabulary.items() if types[i] in (_SPECIAL, _ADDED)]
    backend.add_tokens([AddedToken(token, special=kind == _SPECIAL, normalized=False) for token, kind in added])
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in _ROLES.items()}
    return backend, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
        **{role: tokens[each] for role, each in ids.items() if each is not None},
    }
