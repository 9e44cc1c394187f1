"""Checkpoints of a training run: Orbax arrays beside a manifest that is written last, so that half of one never counts.

    DIRECTORY/00000100/
        params/  Orbax arrays                    params.json  the ModelConfig           params.whole.json
        train/   Orbax optimiser state and RNG   train.json   step and data position    train.whole.json

A part counts only when its manifest (`*.whole.json`: size and CRC-32 of each of its files) exists and agrees with them.
Weights are kept for analysis; the train part only for the newest saves. A killed process leaves at most a folder
without manifest, which the next save of that step replaces.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import zlib
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.qwen3 import abstract_params

_log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint is absent, damaged, or of another model; the message says which and what to do."""


@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run needs to go on as if it had never stopped."""

    step: int
    """Optimiser updates done."""
    params: Params
    optimizer_state: Any
    rng: jax.Array
    """A typed PRNG key."""
    data_position: dict[str, Any]
    """JSON: where the data pipeline stands."""


class Checkpoints:
    """The checkpoints of one run, in `directory`."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        config: ModelConfig,
        *,
        keep_train_states: int = 2,
        keep_weights: int | None = None,
    ) -> None:
        """Keeps optimiser state for the newest `keep_train_states` saves, weights for `keep_weights` (None: all)."""
        self.directory = Path(directory)
        self.config = config
        self._keep_train_states = keep_train_states
        self._keep_weights = keep_weights

    def save(self, state: TrainState) -> Path:
        """Writes the state of one step and lets go of what the retention rule no longer keeps."""
        path = self.directory / f"{state.step:08d}"
        save_params(path, self.config, state.params)
        train = {"optimizer_state": state.optimizer_state, "rng": jax.random.key_data(state.rng)}
        _write_part(path, "train", train, {"step": state.step, "data_position": state.data_position})
        self._retire()
        return path

    def steps(self) -> list[int]:
        """Steps that have a folder, oldest first, whole or not."""
        if not self.directory.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.directory.iterdir() if entry.name.isdecimal())

    def restore_latest(self, like: TrainState) -> TrainState | None:
        """The newest whole state, shaped and placed as `like` (arrays or their shapes); None when there is none.

        A damaged checkpoint is passed over with a warning that names it. Raises CheckpointError for another model.
        """
        for step in reversed(self.steps()):
            path = self.directory / f"{step:08d}"
            fault = _fault(path, "params") or _fault(path, "train")
            if fault is not None:
                _log.warning("checkpoint %s is passed over: %s", path, fault)
                continue
            return self._restore(path, like)
        return None

    def _restore(self, path: Path, like: TrainState) -> TrainState:
        found = _read_config(path)
        if found.to_hf() != self.config.to_hf():
            raise CheckpointError(f"{path} holds another model: expected {self.config}, found {found}")
        position = json.loads((path / "train.json").read_text(encoding="utf-8"))
        train_like = {"optimizer_state": like.optimizer_state, "rng": jax.random.key_data(like.rng)}
        train = _read_part(path, "train", train_like)
        return TrainState(
            step=position["step"],
            params=_read_part(path, "params", like.params),
            optimizer_state=train["optimizer_state"],
            rng=jax.random.wrap_key_data(train["rng"]),
            data_position=position["data_position"],
        )

    def _retire(self) -> None:
        steps = self.steps()
        weightless = [] if self._keep_weights is None else steps[: -self._keep_weights]
        for step in steps[: -self._keep_train_states]:
            _remove_part(self.directory / f"{step:08d}", "train")
        for step in weightless:
            _remove_part(self.directory / f"{step:08d}", "params")
            shutil.rmtree(self.directory / f"{step:08d}")


def save_params(path: str | os.PathLike[str], config: ModelConfig, params: Params) -> None:
    """Writes weights alone, replacing what `path` held."""
    path = Path(path)
    for part in ("train", "params"):
        _remove_part(path, part)
    path.mkdir(parents=True, exist_ok=True)
    _write_part(path, "params", params, config.model_dump(mode="json"))


def load_params(
    path: str | os.PathLike[str], *, shardings: Params | None = None, **numerics: Any
) -> tuple[ModelConfig, Params]:
    """Reads the weights of a checkpoint folder; `numerics` overrides dtype or remat of the stored configuration.

    Raises CheckpointError when the folder is not a whole checkpoint.
    """
    path = Path(path)
    if not (path / "params.json").is_file():
        raise CheckpointError(f"{path}: expected a checkpoint folder, found no params.json; try one of its sub-folders")
    if (fault := _fault(path, "params")) is not None:
        raise CheckpointError(f"{path} is damaged: {fault}; restore an earlier checkpoint")
    config = _read_config(path)
    like = abstract_params(config)
    if shardings is None:
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: here, like)
    like = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), like, shardings)
    return config.model_copy(update=numerics), _read_part(path, "params", like)


def _read_config(path: Path) -> ModelConfig:
    return ModelConfig.model_validate_json((path / "params.json").read_text(encoding="utf-8"))


def _write_part(path: Path, part: str, tree: Any, description: dict[str, Any]) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save((path / part).absolute(), tree)
    (path / f"{part}.json").write_text(json.dumps(description, indent=2), encoding="utf-8")
    files = [path / f"{part}.json", *sorted(file for file in (path / part).rglob("*") if file.is_file())]
    manifest = {str(file.relative_to(path)): [file.stat().st_size, _crc32(file)] for file in files}
    unnamed = path / f".{part}.whole.json"
    unnamed.write_text(json.dumps(manifest), encoding="utf-8")
    unnamed.replace(path / f"{part}.whole.json")


def _read_part(path: Path, part: str, like: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore((path / part).absolute(), jax.tree.map(ocp.utils.to_shape_dtype_struct, like))


def _remove_part(path: Path, part: str) -> None:
    # The manifest goes first: from then on the part does not count.
    (path / f"{part}.whole.json").unlink(missing_ok=True)
    if (path / part).exists():
        shutil.rmtree(path / part)


def _fault(path: Path, part: str) -> str | None:
    """Why a part is not whole; None when it is."""
    manifest_path = path / f"{part}.whole.json"
    if not manifest_path.is_file():
        return f"{manifest_path.name} is missing (the save did not finish)"
    for name, (size, crc32) in json.loads(manifest_path.read_text(encoding="utf-8")).items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, expected {size}"
        if _crc32(file) != crc32:
            return f"{name} has another checksum than when it was written"
    return None


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
