"""A GGUF file made a HuggingFace folder: weights dequantised, and config, tokenizer and template from its metadata.

`transformers` reads such files as well (5.24), but with torch, all at once, and with a tokenizer that does not cut
digits apart as that of SmolLM2 does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from astra_jax.chat.tokenizer import TOKENIZER
from astra_jax.checkpoints.hf import HFCheckpointError, HFTensor, from_hf, hf_tensors, whole_hf_folder
from astra_jax.checkpoints.provenance import BaseWeights, Provenance
from astra_jax.config import ConfigError
from astra_jax.model.config import DType, ModelConfig, Params
from astra_jax.model.families import FAMILIES
from astra_jax.model.qwen3 import abstract_params

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
    config = _config(source, metadata, tensors)
    params = _params(source, config, tensors)
    tokenizer, tokenizer_config = _tokenizer(source, metadata, config)
    ids = {f"{role}_token_id": each for role, each in _special_ids(metadata).items()}
    hf_config = config.to_hf() | {"torch_dtype": dtype} | ids
    types = sorted({tensor.tensor_type.name for tensor in tensors.values()})
    change = f"Read from {source.name}, license {metadata.get('general.license')}: {', '.join(types)} made {dtype}"
    with whole_hf_folder(destination, params, config, hf_config, dtype) as folder:
        tokenizer.save(str(folder / TOKENIZER))
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, ensure_ascii=False, indent=2) + "\n")
        config_sha256 = hashlib.sha256((folder / "config.json").read_bytes()).hexdigest()
        base = BaseWeights(name=source.stem, config_sha256=config_sha256)
        Provenance(base=base, changes=(change,), source_files=({source.name: digest},)).write(folder)
    return config


@dataclasses.dataclass(frozen=True)
class _Dequantised:
    """A parameter of ours in a GGUF file; an index reads one layer, or rows of a table, as float32."""

    shape: tuple[int, ...]
    tensors: tuple[tuple[HFTensor, Any], ...]
    """Of each layer, or the only one: its place with HuggingFace, and the tensor in the file."""
    paired_heads: int
    """Number of heads whose rows the file has in the order of rope's pairs (2i, 2i + 1); 0 if in ours."""

    def __getitem__(self, index: int | slice) -> np.ndarray:
        from gguf import dequantize

        if isinstance(index, slice):
            [(_, tensor)] = self.tensors
            return np.asarray(dequantize(tensor.data[index], tensor.tensor_type), np.float32)
        place, tensor = self.tensors[index]
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        if self.paired_heads:
            by_pair = values.reshape(self.paired_heads, -1, 2, *values.shape[1:])
            values = by_pair.swapaxes(1, 2).reshape(values.shape)
        return from_hf(values, self.shape[1:], place.row.input_axes)


def _config(source: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Any]) -> ModelConfig:
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        raise HFCheckpointError(f"{source}: expected an architecture of {', '.join(FAMILIES)}, found {family!r}")
    needed = {f"{family}.{key}" for key in _KEYS.values()}
    if missing := sorted(needed - metadata.keys()) + sorted({"token_embd.weight"} - tensors.keys()):
        raise HFCheckpointError(f"{source}: the metadata or tensors lack {missing}; download it again")
    values = {ours: metadata[f"{family}.{key}"] for ours, key in _KEYS.items()}
    # Stored as float32: 1e-05 would be 9.999999747378752e-06.
    values |= {key: float(str(np.float32(values[key]))) for key in ("rms_norm_eps", "rope_theta")}
    head_dim = metadata.get(f"{family}.attention.key_length", values["hidden_size"] // values["num_heads"])
    rope = (
        metadata.get(f"{family}.rope.scaling.type", "none"),
        metadata.get(f"{family}.rope.dimension_count", head_dim),
    )
    if rope != ("none", head_dim):
        raise HFCheckpointError(f"{source}: expected an unscaled rope of {head_dim} dimensions, found {rope}")
    return ModelConfig(
        family=family,
        vocab_size=int(tensors["token_embd.weight"].shape[1]),
        head_dim=head_dim,
        tie_word_embeddings="output.weight" not in tensors,
        **values,
    )


def _params(source: Path, config: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    from gguf import dequantize

    places = {place.row.gguf.format(layer=place.layer): place for place in hf_tensors(config)}
    faults = [f"missing {name}" for name in places.keys() - tensors.keys()]
    faults += [f"extra {name}" for name in tensors.keys() - places.keys()]
    for name in places.keys() & tensors.keys():
        if (found := tuple(map(int, reversed(tensors[name].shape)))) != places[name].shape:
            faults.append(f"{name}: expected shape {places[name].shape}, found {found}")
    for kind, tensor in {tensor.tensor_type: tensor for tensor in tensors.values()}.items():
        try:
            dequantize(tensor.data[:1], kind)
        except NotImplementedError as error:
            faults.append(str(error))
    if faults:
        raise HFCheckpointError(
            f"{source}: {len(faults)} tensors do not fit its metadata:\n  " + "\n  ".join(sorted(faults))
        )
    heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads} if config.of_family.gguf_pairs else {}

    def opened(path: Any, leaf: Any) -> _Dequantised:
        ours = tuple(each.key for each in path)
        # Tensors stay in the order of layers.
        own = tuple((place, tensors[name]) for name, place in places.items() if place.row.ours == ours)
        return _Dequantised(leaf.shape, own, heads.get(ours[-1], 0))

    params: Params = jax.tree_util.tree_map_with_path(opened, abstract_params(config))
    return params


def _tokenizer(
    source: Path, metadata: Mapping[str, Any], config: ModelConfig
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    kind, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind != "gpt2" or cut not in _CUTS:
        raise HFCheckpointError(
            f"{source}: expected a byte-level tokenizer ('gpt2') that cuts text as one of {sorted(_CUTS)}, found "
            f"{kind!r} with {cut!r}; take the HuggingFace folder of this model instead"
        )
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    vocabulary = {token: i for i, token in enumerate(tokens) if types[i] != _UNUSED}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    backend.normalizer = normalizers.NFC() if cut == "qwen2" else None
    backend.pre_tokenizer = pre_tokenizers.Sequence(_CUTS[cut])
    backend.decoder = decoders.ByteLevel()
    added = [(token, types[i]) for token, i in vocabulary.items() if types[i] in (_SPECIAL, _ADDED)]
    backend.add_tokens([AddedToken(token, special=kind == _SPECIAL, normalized=False) for token, kind in added])
    named = {f"{role}_token": tokens[each] for role, each in _special_ids(metadata).items()}
    return backend, {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "model_max_length": config.context_tokens,
        "clean_up_tokenization_spaces": False,
        "chat_template": metadata.get("tokenizer.chat_template"),
    }


def _special_ids(metadata: Mapping[str, Any]) -> dict[str, int]:
    keys = {"bos": "bos", "eos": "eos", "pad": "padding"}
    found = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in keys.items()}
    return {role: int(each) for role, each in found.items() if each is not None}
