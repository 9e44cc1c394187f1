"""HuggingFace checkpoints of Qwen3, both ways, through one table; sharded safetensors, one tensor at a time."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh
from safetensors import safe_open

from astra_jax.model.config import DType, ModelConfig, Params
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import param_shardings

COMPANION_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
"""What travels beside the weights when present: the tokenizer, its chat template and the generation settings."""


class HFCheckpointError(ValueError):
    """A HuggingFace folder does not hold the model that was expected; the message names every tensor at fault."""


class TensorRow(NamedTuple):
    """One parameter of ours and its tensors there."""

    ours: tuple[str, ...]
    hf: str
    """With `{layer}` where ours is stacked over layers."""
    input_axes: int | None
    """How many of our leading axes (after L) are inputs of the matrix, which HuggingFace keeps as [out, in]; None: a
    tensor kept alike on both sides."""


TENSORS = (
    TensorRow(("embedding",), "model.embed_tokens.weight", None),
    TensorRow(("layers", "attention_norm"), "model.layers.{layer}.input_layernorm.weight", None),
    TensorRow(("layers", "q_proj"), "model.layers.{layer}.self_attn.q_proj.weight", 1),
    TensorRow(("layers", "k_proj"), "model.layers.{layer}.self_attn.k_proj.weight", 1),
    TensorRow(("layers", "v_proj"), "model.layers.{layer}.self_attn.v_proj.weight", 1),
    TensorRow(("layers", "q_norm"), "model.layers.{layer}.self_attn.q_norm.weight", None),
    TensorRow(("layers", "k_norm"), "model.layers.{layer}.self_attn.k_norm.weight", None),
    TensorRow(("layers", "o_proj"), "model.layers.{layer}.self_attn.o_proj.weight", 2),
    TensorRow(("layers", "mlp_norm"), "model.layers.{layer}.post_attention_layernorm.weight", None),
    TensorRow(("layers", "gate_proj"), "model.layers.{layer}.mlp.gate_proj.weight", 1),
    TensorRow(("layers", "up_proj"), "model.layers.{layer}.mlp.up_proj.weight", 1),
    TensorRow(("layers", "down_proj"), "model.layers.{layer}.mlp.down_proj.weight", 1),
    TensorRow(("final_norm",), "model.norm.weight", None),
    TensorRow(("unembedding",), "lm_head.weight", None),
)
_TIED_COPY = "lm_head.weight"
_DTYPES: Mapping[str, tuple[str, Any]] = {"float32": ("F32", np.float32), "bfloat16": ("BF16", ml_dtypes.bfloat16)}
_READABLE = {"F32", "BF16", "F16"}


class HFTensor(NamedTuple):
    """One tensor of the folder: its name, shape there, and which part of which of our parameters it is."""

    name: str
    shape: tuple[int, ...]
    row: TensorRow
    layer: int | None


def hf_tensors(config: ModelConfig) -> Iterator[HFTensor]:
    """Every tensor that a HuggingFace folder of this model has, in the order of the table."""
    shapes = abstract_params(config)
    for row in TENSORS:
        if row.ours == ("unembedding",) and config.tie_word_embeddings:
            continue
        shape = _leaf(shapes, row.ours).shape
        if row.ours[0] != "layers":
            yield HFTensor(row.hf, _hf_shape(shape, row.input_axes), row, None)
            continue
        for layer in range(config.num_layers):
            yield HFTensor(row.hf.format(layer=layer), _hf_shape(shape[1:], row.input_axes), row, layer)


def load_hf(
    directory: str | os.PathLike[str],
    *,
    dtype: DType = "float32",
    param_dtype: DType = "float32",
    mesh: Mesh | None = None,
) -> tuple[ModelConfig, Params]:
    """Reads a HuggingFace folder; parameters in `param_dtype`, over `mesh` or on the first device.

    Each device's share is read from the files directly: a host touches no more than its own part.
    Raises HFCheckpointError naming every missing, extra or misshapen tensor, and what was expected.
    """
    directory = Path(directory)
    config = read_hf_config(directory, dtype=dtype, param_dtype=param_dtype)
    with ExitStack() as stack:
        slices = _open_tensors(directory, stack)
        _require_tensors(config, slices, directory)
        by_parameter: dict[tuple[str, ...], list[HFTensor]] = {}
        for tensor in hf_tensors(config):
            by_parameter.setdefault(tensor.row.ours, []).append(tensor)
        shardings = param_shardings(abstract_params(config), mesh)
        params: Params = {}
        for path, tensors in by_parameter.items():
            shape = _leaf(abstract_params(config), path).shape
            read = _reader(tensors, slices, shape, _DTYPES[param_dtype][1])
            _set_leaf(params, path, jax.make_array_from_callback(shape, _leaf(shardings, path), read))
    return config, params


def save_hf(
    params: Params,
    config: ModelConfig,
    directory: str | os.PathLike[str],
    *,
    dtype: DType | None = None,
    companions: str | os.PathLike[str] | None = None,
    max_shard_bytes: int = 4 * 2**30,
) -> None:
    """Writes a HuggingFace folder: config, safetensors (sharded, with index, when larger than `max_shard_bytes`).

    `dtype` defaults to the parameters' own; tokenizer, chat template and generation config are copied from the folder
    `companions`. The folder appears whole or not at all, replacing an earlier one.
    """
    directory = Path(directory)
    dtype = dtype or config.param_dtype
    partial = directory.with_name(f".{directory.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    _write_shards(params, list(hf_tensors(config)), partial, dtype, max_shard_bytes)
    hf_config = config.to_hf() | {"torch_dtype": dtype}
    (partial / "config.json").write_text(json.dumps(hf_config, indent=2) + "\n", encoding="utf-8")
    for name in COMPANION_FILES if companions is not None else ():
        source = Path(companions) / name  # type: ignore[arg-type]
        if source.exists():
            shutil.copyfile(source, partial / name)
    if directory.exists():
        shutil.rmtree(directory)
    partial.rename(directory)


def read_hf_config(directory: str | os.PathLike[str], **numerics: Any) -> ModelConfig:
    """The model that a HuggingFace folder says it holds."""
    path = Path(directory) / "config.json"
    if not path.is_file():
        raise HFCheckpointError(f"{directory}: expected a HuggingFace folder, found no config.json")
    return ModelConfig.from_hf(json.loads(path.read_text(encoding="utf-8")), **numerics)


def _leaf(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _set_leaf(tree: Params, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


def _hf_shape(shape: tuple[int, ...], input_axes: int | None) -> tuple[int, ...]:
    if input_axes is None:
        return shape
    return math.prod(shape[input_axes:]), math.prod(shape[:input_axes])


def _from_hf(tensor: np.ndarray, shape: tuple[int, ...], input_axes: int | None) -> np.ndarray:
    return tensor if input_axes is None else tensor.T.reshape(shape)


def _to_hf(tensor: np.ndarray, input_axes: int | None) -> np.ndarray:
    if input_axes is None:
        return tensor
    return tensor.reshape(math.prod(tensor.shape[:input_axes]), -1).T


def _open_tensors(directory: Path, stack: ExitStack) -> dict[str, Any]:
    """Lazy slices of every tensor in the folder, by name."""
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(weight_map.values()))
    else:
        files = ["model.safetensors"]
    slices: dict[str, Any] = {}
    for file in files:
        if not (directory / file).is_file():
            raise HFCheckpointError(f"{directory}: expected the weights in {file}, which is not there")
        opened = stack.enter_context(safe_open(directory / file, framework="numpy"))
        slices.update({name: opened.get_slice(name) for name in opened.keys()})  # noqa: SIM118 (not a dict)
    return slices


def _require_tensors(config: ModelConfig, slices: Mapping[str, Any], directory: Path) -> None:
    expected = {tensor.name: tensor.shape for tensor in hf_tensors(config)}
    found = {name: tuple(piece.get_shape()) for name, piece in slices.items()}
    if config.tie_word_embeddings:
        found.pop(_TIED_COPY, None)  # some exporters store the tied matrix twice
    faults = [f"missing {name} {shape}" for name, shape in expected.items() if name not in found]
    faults += [f"extra {name} {found[name]}" for name in sorted(found.keys() - expected.keys())]
    faults += [
        f"{name}: expected shape {shape}, found {found[name]}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    faults += [
        f"{name}: expected dtype {sorted(_READABLE)}, found {slices[name].get_dtype()}"
        for name in expected
        if name in found and slices[name].get_dtype() not in _READABLE
    ]
    if faults:
        raise HFCheckpointError(
            f"{directory}: {len(faults)} tensors do not fit its config.json:\n  " + "\n  ".join(faults)
        )


def _reader(
    tensors: list[HFTensor], slices: Mapping[str, Any], shape: tuple[int, ...], dtype: Any
) -> Callable[[Any], np.ndarray]:
    """Reads one device's share of a parameter, a layer at a time."""

    def read(index: tuple[slice, ...]) -> np.ndarray:
        stacked = tensors[0].layer is not None
        chosen = tensors[index[0]] if stacked else tensors
        inner_index, inner_shape = (index[1:], shape[1:]) if stacked else (index, shape)
        out: np.ndarray | None = None
        for i, tensor in enumerate(chosen):
            whole = _from_hf(slices[tensor.name][:], inner_shape, tensor.row.input_axes)
            part = whole[inner_index]
            if out is None:
                out = np.empty((len(chosen), *part.shape) if stacked else part.shape, dtype)
            out[i if stacked else ...] = part
        assert out is not None
        return out

    return read


def _write_shards(params: Params, tensors: list[HFTensor], directory: Path, dtype: DType, max_shard_bytes: int) -> None:
    tag, numpy_dtype = _DTYPES[dtype]
    sizes = [math.prod(tensor.shape) * np.dtype(numpy_dtype).itemsize for tensor in tensors]
    shards: list[list[int]] = [[]]
    for i, size in enumerate(sizes):
        if shards[-1] and sum(sizes[j] for j in shards[-1]) + size > max_shard_bytes:
            shards.append([])
        shards[-1].append(i)
    weight_map: dict[str, str] = {}
    for number, members in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= {tensors[i].name: name for i in members}
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for i in members:
            start, end = end, end + sizes[i]
            header[tensors[i].name] = {"dtype": tag, "shape": tensors[i].shape, "data_offsets": [start, end]}
        encoded = json.dumps(header).encode()
        encoded += b" " * (-len(encoded) % 8)  # the format aligns tensor data to 8 bytes
        with (directory / name).open("wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for i in members:
                tensor = tensors[i]
                leaf = _leaf(params, tensor.row.ours)
                ours = np.asarray(leaf if tensor.layer is None else leaf[tensor.layer])
                theirs = np.ascontiguousarray(_to_hf(ours, tensor.row.input_axes), dtype=numpy_dtype)
                file.write(theirs.view(np.uint8).data)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        path = directory / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
