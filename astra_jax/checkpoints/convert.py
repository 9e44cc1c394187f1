"""Checkpoints to and from HuggingFace, a layer or some rows at a time: memory does not grow with the model.

In a checkpoint of ours each parameter is a Zarr array whose chunks are a layer or some rows: a piece is written and
read without the rest. The arrays are written and read by TensorStore, everything around them by Orbax.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import jax
import orbax.checkpoint as ocp
import tensorstore as ts

from astra_jax.chat.tokenizer import TOKENIZER
from astra_jax.checkpoints.checkpoint import (
    CheckpointError,
    declare_whole,
    is_in_bucket,
    read_model,
    require_whole,
    told_as_os_errors,
)
from astra_jax.checkpoints.foreign import brought_to_chat_format
from astra_jax.checkpoints.hf import (
    COMPANION_FILES,
    HF_FOLDER,
    KEPT_CONFIG,
    SETTINGS_FILES,
    HFParameter,
    copy_companions,
    differences,
    needing_room,
    open_hf,
    save_hf,
    source_files,
)
from astra_jax.checkpoints.provenance import imported
from astra_jax.model.config import DType, ModelConfig, Params
from astra_jax.model.qwen3 import abstract_params
from synthesis.run.destination import MARK, Result, require_destination, whole_folder
from synthesis.run.places import in_bucket

CHECKPOINT: Final = Result("converted checkpoint", MARK, "checkpoint", is_replaced=True)
"""The folder that `hf_to_orbax` makes. A trained checkpoint is not one, so it is never replaced."""


def hf_to_orbax(source: Path, destination: Path, *, dtype: DType = "float32") -> ModelConfig:
    """Make a checkpoint folder of a HuggingFace folder in `dtype`, with tokenizer, template and generation config.

    A foreign checkpoint is brought to Qwen3's chat format; lines and the provenance say how it changed.
    The folder appears whole or not at all, replacing an earlier conversion.

    Raises:
        HFCheckpointError: as `open_hf`, before anything is written.
        TokenizerError: the tokenizer is damaged, or cannot be brought to the chat format.
        DestinationRefused: something else is at its place.
        ProvenanceError: the provenance of the source is damaged.
        OSError: the disk is full or not writable.
    """
    require_destination(destination, CHECKPOINT, sources=[source])
    config, params = open_hf(source, param_dtype=dtype)
    _say_if_no_tokenizer(source)
    hf_config = (source / "config.json").read_bytes()
    if brought := brought_to_chat_format(source, config, params):
        config, params = brought.config, brought.params
        hf_config = json.dumps({**json.loads(hf_config), "vocab_size": config.vocab_size}, indent=2).encode()
        for change in brought.changes:
            print(f"astra: {source}: {change}", file=sys.stderr)
    with needing_room(destination, config, dtype), whole_folder(destination, CHECKPOINT) as folder:
        with told_as_os_errors(destination):
            _save(params, (folder / "params").absolute())
        copy_companions(source, folder, SETTINGS_FILES if brought else COMPANION_FILES)
        if brought:
            brought.tokenizer.save(folder, model_max_length=config.context_tokens)
        imported(source, source_files(source), brought.changes if brought else ()).write(folder)
        (folder / KEPT_CONFIG).write_bytes(hf_config)
        declare_whole(folder, config)
    return config


def orbax_to_hf(source: Path, destination: Path, *, dtype: DType | None = None) -> ModelConfig:
    """Make a HuggingFace folder of a checkpoint folder, in `dtype` or the parameters' own.

    Raises:
        CheckpointError: the source is not a whole checkpoint; before anything is written.
        DestinationRefused, TokenizerError, ProvenanceError: as `save_hf`.
    """
    require_destination(destination, HF_FOLDER, sources=[source])
    config = read_model(source)
    require_whole(source)
    _say_if_no_tokenizer(source)
    with told_as_os_errors(in_bucket(source)):
        save_hf(_open_params(source, config), config, destination, dtype=dtype, companions=source)
    return config


def _say_if_no_tokenizer(source: Path) -> None:
    """Print a line if there is no tokenizer; weights alone are converted, since one can be put beside them later."""
    if not (source / TOKENIZER).is_file():
        print(
            f"astra: {source}: no {TOKENIZER} lies beside the weights; they are converted without one, so nothing "
            "there says where a text ends and no run can start from them",
            file=sys.stderr,
        )


def _save(params: Params, folder: Path) -> None:
    """Write the parameters; an interruption is raised only when nothing is written any more.

    TensorStore cannot stop a write that has begun, and this write would make a removed folder anew.
    """
    is_given_up = threading.Event()
    registry = ocp.type_handlers.create_type_handler_registry(
        (HFParameter, _PieceByPiece(is_given_up)), (jax.Array, ocp.type_handlers.ArrayHandler())
    )
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    with ocp.Checkpointer(handler) as checkpointer, ThreadPoolExecutor(1) as writer:
        try:
            writer.submit(checkpointer.save, folder, params).result()
        except BaseException:
            is_given_up.set()
            raise


class _PieceByPiece(ocp.type_handlers.NumpyHandler):
    """Orbax's writer of parameters that are still in a HuggingFace folder; it begins no piece after `is_given_up`."""

    def __init__(self, is_given_up: threading.Event) -> None:
        super().__init__()
        self._is_given_up = is_given_up

    async def serialize(
        self,
        values: Sequence[HFParameter],
        infos: Sequence[ocp.type_handlers.ParamInfo],
        args: Sequence[ocp.SaveArgs] | None = None,
    ) -> Sequence[ocp.future.Future]:
        for parameter, info in zip(values, infos, strict=True):
            await info.await_path_creation()
            array = ts.open(
                {
                    "driver": "zarr",
                    # The folder in which Orbax has the arrays of a host until it merges them.
                    "kvstore": _store(info.parent_dir / "ocdbt.process_0", info.name),
                    "metadata": {"chunks": parameter.piece_shape, "compressor": {"id": "zstd", "level": 1}},
                },
                shape=parameter.shape,
                dtype=parameter.dtype,
                create=True,
            ).result()
            for rows, piece in parameter.pieces():
                if self._is_given_up.is_set():
                    raise asyncio.CancelledError
                array[rows] = piece
        return []  # everything is written: Orbax has nothing to wait for


def _open_params(path: Path, config: ModelConfig) -> Params:
    """Return the parameters of a checkpoint as arrays on disk: a part is read when it is made a NumPy array.

    Raises:
        CheckpointError: parameters do not fit their model; the error names each.
    """
    folder = in_bucket(path.absolute()) / "params"
    with ocp.StandardCheckpointer() as checkpointer:
        stored = checkpointer.metadata(folder).item_metadata.tree
    if faults := differences(_layout(abstract_params(config)), _layout(stored)):
        raise CheckpointError(f"{path}: {len(faults)} parameters do not fit its params.json:\n  " + "\n  ".join(faults))

    def open_array(array: Any) -> ts.TensorStore:
        store = _store(folder, array.name)
        # A chunk that is missing is an error, not zeros.
        return ts.open({"driver": "zarr", "kvstore": store, "fill_missing_data_reads": False}, read=True).result()

    return jax.tree.map(open_array, stored)


def _store(folder: Path, name: str) -> dict[str, Any]:
    """Return the place of the chunks of one of Orbax's arrays, in TensorStore's terms."""
    base = f"{folder}/" if is_in_bucket(folder) else {"driver": "file", "path": f"{folder}/"}
    return {"driver": "ocdbt", "base": base, "path": f"{name}/"}


def _layout(tree: Params) -> dict[str, str]:
    """Return shape and type of each parameter by its name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): f"{leaf.shape} {leaf.dtype}" for path, leaf in leaves
    }
