"""HuggingFace folders of every family, both ways, through one table; sharded safetensors, one tensor at a time.

Decided: docs/decisions/checkpoints.md, “A HuggingFace folder is read as transformers reads it, or refused”.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_dtypes
import numpy as np
from jax.sharding import Mesh
from safetensors import SafetensorError, safe_open

from astra_jax.chat.tokenizer import TOKENIZER, Tokenizer
from astra_jax.checkpoints.generation_config import GENERATION_CONFIG, ending_at_turns, generation_config
from astra_jax.checkpoints.model_card import MODEL_CARD, model_card
from astra_jax.checkpoints.provenance import PROVENANCE
from astra_jax.errors import AstraError
from astra_jax.model.config import DType, ModelConfig, Params
from astra_jax.model.families import WEIGHTS, Weight
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import param_shardings
from synthesis.run.destination import MARK, Result, whole_folder

HF_FOLDER = Result("HuggingFace folder that we wrote", MARK, "huggingface", is_replaced=True)
"""The folder that `save_hf` makes. A downloaded folder is not one, so it is never replaced."""

SETTINGS_FILES = (GENERATION_CONFIG, PROVENANCE)
COMPANION_FILES = (
    *SETTINGS_FILES,
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
)
"""Files that are copied with the weights if they exist: tokenizer, chat template, generation settings, provenance."""

KEPT_CONFIG = "hf_config.json"
"""Name, beside our weights, of the config.json that they came with: it has keys that we do not read (token ids)."""

_NOT_EXPORTED = {"quantization_config", "compression_config", "auto_map", "_name_or_path", "dtype", "torch_dtype"}
"""Keys of a config.json that describe other weights, code or places than those of an export."""


class HFCheckpointError(AstraError, ValueError):
    """A HuggingFace folder does not hold the model that was expected; the message names every tensor at fault."""


_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"
_DTYPES: Mapping[str, tuple[str, Any]] = {"float32": ("F32", np.float32), "bfloat16": ("BF16", ml_dtypes.bfloat16)}
_READABLE = {"F32", "BF16", "F16"}

SHARD_BYTES = 4 * 2**30
"""Bytes of the tensors of a weight file that is not the only one, at most, unless a tensor alone is larger."""
PIECE_BYTES = 64 * 2**20
"""Bytes of a tensor that are held at the same time if it need not be whole: rows of an embedding."""


class HFTensor(NamedTuple):
    """One tensor of a HuggingFace folder: its name, its shape there, and the part of our parameter that it is."""

    name: str
    shape: tuple[int, ...]
    row: Weight
    layer: int | None


Pieces = Callable[[HFTensor], Iterable[np.ndarray]]
"""The function that reads the parts of a tensor, one after the other: some rows, or all of them."""


def hf_tensors(config: ModelConfig) -> Iterator[HFTensor]:
    """Yield every tensor that a HuggingFace folder of this model has, in the order of the table."""
    shapes = abstract_params(config)
    for row in WEIGHTS:
        is_stacked = row.ours[0] == "layers"
        if row.ours[-1] not in (shapes["layers"] if is_stacked else shapes):
            continue
        shape = _hf_shape(_leaf(shapes, row.ours).shape[is_stacked:], row.input_axes)
        layers: Sequence[int | None] = range(config.num_layers) if is_stacked else [None]
        yield from (HFTensor(row.hf.format(layer=layer), shape, row, layer) for layer in layers)


@dataclasses.dataclass(frozen=True)
class HFParameter:
    """One parameter of ours that is still in the files of a HuggingFace folder; indexing with slices reads a part."""

    shape: tuple[int, ...]
    dtype: np.dtype
    tensors: tuple[HFTensor, ...]
    """The tensor of each layer, or the only one."""
    files: Mapping[str, Path]
    """File of each tensor by its name."""

    @property
    def piece_shape(self) -> tuple[int, ...]:
        """Shape of a part that is read at once: one matrix, or rows of PIECE_BYTES if both sides are equal."""
        rows = _rows_at_once(self.shape, self.dtype) if self.tensors[0].row.input_axes is None else 1
        return (rows, *self.shape[1:])

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the whole parameter in order: slices of rows, and their values."""
        for rows in _blocks(self.shape[0], self.piece_shape[0]):
            yield rows, self[(rows,)]

    def __getitem__(self, index: tuple[slice, ...]) -> np.ndarray:
        if self.tensors[0].layer is None:  # equal on both sides
            return self._read(self.tensors[0], index).astype(self.dtype, copy=False)
        layers, within = self.tensors[index[0]], index[1:]
        # A layer is read whole even if only a part is needed: its axes must be transposed and split first.
        parts = (_from_hf(self._read(x), self.shape[1:], x.row.input_axes)[within] for x in layers)
        # Layer by layer: beside the result no more than one layer is held.
        first = next(parts)
        stacked = np.empty((len(layers), *first.shape), self.dtype)
        stacked[0] = first
        for i, part in enumerate(parts, start=1):
            stacked[i] = part
        return stacked

    def _read(self, tensor: HFTensor, index: tuple[slice, ...] = (slice(None),)) -> np.ndarray:
        # Opened for each tensor: the pages of a mapped file stay in the memory of the process.
        with safe_open(self.files[tensor.name], framework="numpy") as file:
            return file.get_slice(tensor.name)[index]


def open_hf(directory: Path, *, dtype: DType = "float32", param_dtype: DType = "float32") -> tuple[ModelConfig, Params]:
    """Return the model of a HuggingFace folder, its parameters (`HFParameter`) still in the files.

    A read gives numbers of `param_dtype`.

    Raises:
        HFCheckpointError: tensors are missing, extra or misshapen (it names each, and the expected shape), or the
            folder has no config.json of a known family.
    """
    config = read_hf_config(directory, dtype=dtype, param_dtype=param_dtype)
    files = _require_tensors(config, directory)
    tensors = list(hf_tensors(config))

    def opened(path: Any, leaf: Any) -> HFParameter:
        # Tensors stay in the order of layers, on whose axis they are stacked.
        own = tuple(tensor for tensor in tensors if tensor.row.ours == tuple(each.key for each in path))
        return HFParameter(leaf.shape, np.dtype(leaf.dtype), own, files)

    return config, jax.tree_util.tree_map_with_path(opened, abstract_params(config))


def load_hf(
    directory: Path, *, dtype: DType = "float32", param_dtype: DType = "float32", mesh: Mesh | None = None
) -> tuple[ModelConfig, Params]:
    """Read a HuggingFace folder; parameters in `param_dtype`, over `mesh` or on the first device.

    Each device's share is read from the files directly: a host touches no more than its own part.

    Raises:
        HFCheckpointError: as `open_hf`.
    """
    config, params = open_hf(directory, dtype=dtype, param_dtype=param_dtype)

    def place(parameter: HFParameter, sharding: jax.sharding.Sharding) -> jax.Array:
        read: Any = parameter.__getitem__
        return jax.make_array_from_callback(parameter.shape, sharding, read)

    return config, jax.tree.map(place, params, param_shardings(params, mesh))


def save_hf(
    params: Params,
    config: ModelConfig,
    directory: Path,
    *,
    dtype: DType | None = None,
    companions: Path | None = None,
    license_id: str | None = None,
) -> None:
    """Write a HuggingFace folder: config, safetensors (sharded, with index, when larger than SHARD_BYTES).

    The parameters are read a layer, or some rows, at a time: they may be arrays that are still on disk.
    `dtype` defaults to the parameters' own. Tokenizer and chat template are copied from the folder `companions`, whose
    `hf_config.json` becomes the config.json if it describes this model. With a tokenizer, generation settings (those of
    `companions` or the family's) name the tokens that end a text. With `companions` there is a model card, with the
    license `license_id`. The folder appears whole or not at all, replacing an earlier one that we wrote.

    Raises:
        HFCheckpointError: `params` are of another model than `config`, or a config of `companions` is damaged.
        OSError: the disk is full or not writable.
        TokenizerError: the tokenizer is not a Qwen3 one; before anything is written.
        DestinationRefused: something else is at its place.
        ProvenanceError: the provenance of `companions` is damaged.
    """
    dtype = dtype or config.param_dtype
    expected, found = (str(jax.tree.structure(tree)) for tree in (abstract_params(config), params))
    if found != expected:
        raise HFCheckpointError(f"{directory}: expected the parameters {expected}, found {found}")
    hf_config = _config_json(config, dtype, companions)
    settings = None
    if companions is not None and (companions / GENERATION_CONFIG).is_file():
        _json_object(companions / GENERATION_CONFIG)  # so that a damaged one is refused
    if companions is not None and (companions / TOKENIZER).is_file():
        tokenizer = Tokenizer.load(companions)
        hf_config, settings = ending_at_turns(hf_config, tokenizer), generation_config(companions, tokenizer, config)

    def pieces(tensor: HFTensor) -> Iterator[np.ndarray]:
        leaf = _leaf(params, tensor.row.ours)
        of_rows = _blocks(leaf.shape[0], _rows_at_once(leaf.shape, np.dtype(_DTYPES[dtype][1])))
        for part in of_rows if tensor.layer is None else [tensor.layer]:
            yield _to_hf(np.asarray(leaf[part]), tensor.row.input_axes)

    with whole_hf_folder(directory, config, hf_config, dtype, pieces) as folder:
        if companions is not None:
            copy_companions(companions, folder)
            (folder / MODEL_CARD).write_text(model_card(companions, config, license_id), "utf-8")
        if settings is not None:
            (folder / GENERATION_CONFIG).write_text(settings, encoding="utf-8")


@contextlib.contextmanager
def whole_hf_folder(
    directory: Path, config: ModelConfig, hf_config: Mapping[str, Any], dtype: DType, pieces: Pieces
) -> Iterator[Path]:
    """Write weights, each tensor by its `pieces`, and config.json; the folder is whole after the `with` block."""
    with needing_room(directory, config, dtype), whole_folder(directory, HF_FOLDER) as folder:
        _write_shards(pieces, list(hf_tensors(config)), folder, dtype)
        (folder / "config.json").write_text(json.dumps(hf_config, indent=2) + "\n", encoding="utf-8")
        yield folder


def copy_companions(source: Path, destination: Path, names: Sequence[str] = COMPANION_FILES) -> None:
    """Copy the named files of one folder, ours or HuggingFace's, to another, those that it has."""
    for name in names:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


def read_hf_config(directory: Path, **numerics: Any) -> ModelConfig:
    """Return the model of a HuggingFace folder's config.json; `numerics` as in `ModelConfig.from_hf`.

    Raises:
        HFCheckpointError: the config.json is missing, damaged or of no family in `model.families`.
    """
    path = directory / "config.json"
    if not path.is_file():
        fault = "it holds no config.json" if directory.is_dir() else "no such folder exists"
        raise HFCheckpointError(f"{directory}: {fault}; name a HuggingFace folder")
    if (directory / "adapter_config.json").is_file():  # transformers would apply it to the weights
        raise HFCheckpointError(f"{directory}: found an adapter_config.json; merge the adapter into the weights first")
    hf = _json_object(path)
    try:
        return ModelConfig.from_hf(hf, **numerics)
    except ValueError as error:
        raise HFCheckpointError(f"{directory}: {error}") from None


def _json_object(path: Path) -> dict[str, Any]:
    try:
        return {**json.loads(path.read_text(encoding="utf-8"))}
    except (ValueError, TypeError, RecursionError) as error:
        raise HFCheckpointError(f"{path} is not a JSON object: {error}; restore it") from None


def source_files(directory: Path) -> list[str]:
    """Return the names of the files of a HuggingFace folder that a conversion reads or copies."""
    others = ("config.json", "model.safetensors.index.json", *COMPANION_FILES)
    return [*_files(directory), *(name for name in others if (directory / name).is_file())]


@contextlib.contextmanager
def needing_room(place: Path, config: ModelConfig, dtype: DType) -> Iterator[None]:
    """Add the place and the bytes that the weights need to the error of a full disk in a `with` block."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        needed_bytes = config.num_parameters * np.dtype(_DTYPES[dtype][1]).itemsize
        advice = f"the disk is full; make room for up to {needed_bytes:,} bytes there, or name a place on another disk"
        raise OSError(error.errno, advice, str(place)) from error


def differences(expected: Mapping[str, Any], found: Mapping[str, Any]) -> list[str]:
    """Return a line for each name with another value, or on one side only.

    >>> differences({"a": (2,), "b": (3,)}, {"a": (2,), "c": (4,)})
    ['expected b (3,), found none', 'expected c absent, found (4,)']
    """
    return [
        f"expected {name} {expected.get(name, 'absent')}, found {found.get(name, 'none')}"
        for name in sorted(expected.keys() | found.keys())
        if expected.get(name) != found.get(name)
    ]


def _leaf(tree: Params, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def _hf_shape(shape: tuple[int, ...], input_axes: int | None) -> tuple[int, ...]:
    if input_axes is None:
        return shape
    # Heads and their width are two axes here and one there.
    out = (math.prod(shape[input_axes:]),)
    return (*out, math.prod(shape[:input_axes])) if input_axes else out


def _rows_at_once(shape: Sequence[int], dtype: np.dtype) -> int:
    """Return the number of rows of an array in PIECE_BYTES, at least one."""
    return min(shape[0], max(1, PIECE_BYTES // (math.prod(shape[1:]) * dtype.itemsize)))


def _blocks(rows: int, at_once: int) -> Iterator[slice]:
    """Return slices of at most `at_once` that cover `rows`.

    >>> list(_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + at_once, rows)) for start in range(0, rows, at_once))


def _from_hf(tensor: np.ndarray, shape: tuple[int, ...], input_axes: int | None) -> np.ndarray:
    return _transposed(tensor).reshape(shape) if input_axes else tensor.reshape(shape)


def _to_hf(tensor: np.ndarray, input_axes: int | None) -> np.ndarray:
    if not input_axes:
        return tensor if input_axes is None else tensor.reshape(-1)
    return _transposed(tensor.reshape(math.prod(tensor.shape[:input_axes]), -1))


def _transposed(matrix: np.ndarray) -> np.ndarray:
    # Copied in blocks: numpy would read or write one of the two with a jump for each number, 20 times slower.
    out = np.empty(matrix.shape[::-1], matrix.dtype)
    for start in range(0, len(matrix), 128):
        out[:, start : start + 128] = matrix[start : start + 128].T
    return out


def _files(directory: Path) -> list[str]:
    """Return the weight files of a folder: those of its index, or the only one."""
    index = directory / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    if (directory / "model.safetensors").is_file():  # transformers would read it, and not the index
        raise HFCheckpointError(f"{index}: found model.safetensors besides; delete the one of the two that is stale")
    try:
        return sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise HFCheckpointError(
            f"{index}: not JSON with a weight_map from tensor to file ({error!r}); download it again"
        ) from None


def _require_tensors(config: ModelConfig, directory: Path) -> dict[str, Path]:
    """Return the file of each tensor of the model; raise an error that names every tensor at fault."""
    files: dict[str, Path] = {}
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    faults: list[str] = []
    for name in _files(directory):
        path = directory / name
        if not path.is_file():
            raise HFCheckpointError(f"{directory}: {name} with the weights is missing; download it")
        try:
            with safe_open(path, framework="numpy") as file:
                for tensor in file.keys():  # noqa: SIM118 (not a dict)
                    if tensor in files:
                        faults.append(f"{tensor} is in {files[tensor].name} and again in {name}")
                    piece = file.get_slice(tensor)
                    files[tensor], found[tensor] = path, (tuple(piece.get_shape()), piece.get_dtype())
        except SafetensorError as error:
            raise HFCheckpointError(f"{path}: not a whole safetensors file ({error}); download it again") from None
    expected = {tensor.name: tensor.shape for tensor in hf_tensors(config)}
    # Some exporters store the tied matrix twice; if both differ, transformers reads them untied, against the config.
    head = found.pop(_HEAD, None) if config.tie_word_embeddings else None
    if head and not (head == found.get(_EMBEDDING) and _is_embedding(head[0], files)):
        faults.append(f"{_HEAD} differs from {_EMBEDDING}; set tie_word_embeddings = false to keep both")
    faults += differences(expected, {name: shape for name, (shape, _) in found.items()})
    for name in sorted(expected.keys() & found.keys()):
        if (dtype := found[name][1]) not in _READABLE:
            faults.append(f"{name}: expected dtype {sorted(_READABLE)}, found {dtype}")
    if faults and (settings := _json_object(directory / "config.json").get("quantization_config")):
        raise HFCheckpointError(
            f"{directory}: the weights are quantised (quantization_config {settings}, {faults[0]}); "
            "save them as bfloat16 without quantization first"
        )
    if faults:
        raise HFCheckpointError(
            f"{directory}: {len(faults)} tensors do not fit its config.json:\n  " + "\n  ".join(faults)
        )
    return files


def _is_embedding(shape: tuple[int, ...], files: Mapping[str, Path]) -> bool:
    """Whether the head has the values of the embedding."""
    both = ((HFTensor(name, shape, WEIGHTS[-1], None),) for name in (_EMBEDDING, _HEAD))
    pieces = (HFParameter(shape, np.dtype(np.float32), tensors, files).pieces() for tensors in both)
    return all(np.array_equal(theirs, ours) for (_, theirs), (_, ours) in zip(*pieces, strict=True))


def _config_json(config: ModelConfig, dtype: DType, companions: Path | None) -> dict[str, Any]:
    """Return the config that came with the weights if it describes this model, without keys about other weights."""
    kept = None if companions is None else companions / KEPT_CONFIG
    hf = {} if kept is None or not kept.is_file() else _json_object(kept)
    try:
        found = ModelConfig.from_hf(hf, dtype=config.dtype, param_dtype=config.param_dtype, remat=config.remat)
    except ValueError:  # an older version may have taken it for another model than `transformers` does
        found = None
    if found != config:
        return config.to_hf() | {"torch_dtype": dtype}
    # transformers 5 calls it `dtype`, 4 `torch_dtype`: the name that the folder came with stays.
    described = {"architectures": [config.of_family.architecture], "dtype" if "dtype" in hf else "torch_dtype": dtype}
    return {key: value for key, value in hf.items() if key not in _NOT_EXPORTED} | described


def _write_shards(pieces: Pieces, tensors: list[HFTensor], directory: Path, dtype: DType) -> None:
    # Written by hand: the library's writer needs every tensor of a file in memory at once. The header has sizes alone.
    tag, numpy_dtype = _DTYPES[dtype]
    sizes = [math.prod(tensor.shape) * np.dtype(numpy_dtype).itemsize for tensor in tensors]
    shards: list[list[int]] = [[]]
    for i, size in enumerate(sizes):
        if shards[-1] and sum(sizes[j] for j in shards[-1]) + size > SHARD_BYTES:
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
                for piece in pieces(tensors[i]):
                    theirs = np.ascontiguousarray(piece, dtype=numpy_dtype)
                    file.write(theirs.view(np.uint8).data)  # as bytes: numpy lends no buffer of bfloat16
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": weight_map}
        path = directory / "model.safetensors.index.json"
        path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
