"""Checkpoints of a training run: Orbax arrays beside a manifest that is written last.

A save copies the arrays to the host and returns; they, and then the manifest, are written while training goes on. Half
a save never counts.

    DIRECTORY/00000100/
        params/  Orbax arrays                    params.json  the ModelConfig           params.whole.json
        train/   Orbax optimiser state           train.json   step and data position    train.whole.json

A part counts only when its manifest (`*.whole.json`: size and CRC-32 of each of its files) exists and agrees with them.
Each host computes the checksums of the files that it wrote, and the first joins them; when a run resumes, each checks
a share. Weights are kept for analysis, the train part only for the newest saves. A killed process leaves at most a
folder without manifest, which the next save of that step replaces. Where there are several hosts, all of them make each
call here, on one file system: each writes and reads its parts of the arrays, the first writes the rest.

In a bucket the same files are objects. Their checksums are those that the bucket tells, so that none is read again.

Decided: docs/decisions/checkpoints.md, “A checkpoint counts once its manifest is written, and a thread writes it”.
Decided: docs/decisions/checkpoints.md, “Each host computes the checksums of the files that it wrote”.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import logging
import os
import re
import shutil
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final

import jax
import optax
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from pydantic import Field, TypeAdapter, ValidationError

from astra_jax.checkpoints.hf import PIECE_BYTES
from astra_jax.errors import AstraError
from astra_jax.mesh.hosts import gather_bytes_from_hosts
from astra_jax.mesh.placement import sharded_shapes
from astra_jax.model.config import AdaptedModel, ModelConfig, ModelOverrides, Params
from astra_jax.model.lora import learnt
from astra_jax.model.qwen3 import abstract_params
from astra_jax.model.sharding import require_divisible
from synthesis.run.destination import write_whole
from synthesis.run.places import address_of, checksum_in_bucket, in_bucket, objects_in, unusable

_log = logging.getLogger(__name__)


class _ToldAsError(logging.Filter):
    """Drops the log lines of Orbax's threads about failures that `told_as_os_errors` raises as errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()} {error}"
        return "os_error_code" not in text and "://" not in text


for _name in ("absl", "asyncio"):  # the loggers of Orbax and of its event loops
    logging.getLogger(_name).addFilter(_ToldAsError())
_write_unraisable = sys.unraisablehook


def _unless_loop_is_closed(unraisable: Any) -> None:
    # Orbax closes its event loop after a failed write; writes under way then end without anybody to tell.
    if str(unraisable.exc_value) != "Event loop is closed":
        _write_unraisable(unraisable)


sys.unraisablehook = _unless_loop_is_closed
NO_OVERRIDES: Final = ModelOverrides()
_MANIFEST: Final = TypeAdapter(Annotated[dict[str, tuple[int, int]], Field(min_length=1)])
"""Size and CRC-32 of each file by its name; a part has at least its description."""
_TRAIN_STATES_KEPT: Final = 2
"""The number of newest saves whose optimiser state is kept."""
_CHECKSUM_THREADS: Final = 8
_JOINED_WITHIN_MS: Final = 600_000
_joined: Counter[Path] = Counter()
"""The number of barriers at which hosts have waited for the checksums of a part: each barrier has a name of its own."""


def is_in_bucket(path: Path) -> bool:
    """Say whether a path that `in_bucket` has returned is a URL."""
    return "://" in str(path)


class CheckpointError(AstraError, ValueError):
    """A checkpoint is absent, damaged, or of another model; the message names the fault and the remedy."""


@dataclasses.dataclass(frozen=True)
class TrainState:
    """All that a run restores when it resumes: the content of `OUT/checkpoints/STEP`.

    Everything else is read again from its source (the model's shape and tokenizer from `init`, records), and
    `training.run_record.open_run` refuses a run whose sources have changed. All random draws follow from the config's
    seed and the position, so no generator is saved. Work after this state begins anew, a half-filled batch included.
    `metrics.jsonl` has the number of steps in a row that were not finite.
    """

    step: int
    """Optimiser updates done."""
    params: Params
    """All parameters; a checkpoint has what the run learns, which may be adapters alone."""
    optimizer_state: Any
    data_position: dict[str, Any]
    """Position in the data, as JSON. SFT: empty, since its step is the whole position. RL: the number of submitted
    groups, which gives the next environments and seeds; the counts of groups; and the groups that wait for their
    update, whole, with tokens, log-probs and rewards (`Rollouts.position` and `go_on_from` in `rl/rollouts.py`)."""
    unfinished_line: dict[str, Any] | None = None
    """Metrics of the last step, if a signal interrupted the evaluation that follows it."""


_DESCRIBED = ("step", "data_position", "unfinished_line")


class Checkpoints:
    """The checkpoints of one run; at the end of a `with` block it waits for this host's part of the last save."""

    def __init__(self, directory: Path, config: ModelConfig, *, keep_weights: int | None = None) -> None:
        """Keep the weights of the newest `keep_weights` saves (None: of all)."""
        self.directory = in_bucket(directory)
        self.config = config
        self._keep_weights = keep_weights
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None
        self.newest_step: int | None = None
        """Step of the newest saved or restored state; None before the first."""

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_writing()  # no barrier: where one host has failed, the others may never arrive
        self._writer.shutdown()

    def save(self, state: TrainState) -> Path:
        """Start to write the state of one step, after the end of the save before; `wait` returns when it is whole.

        Parts of older saves that are no longer kept are removed.

        Raises:
            OSError: the disk was full or not writable for this save or the one before.
        """
        self._end_writing()
        path = self.directory / f"{state.step:08d}"
        with told_as_os_errors(path):
            _clear(path)
        params = learnt(state.params)
        _require_room(path, (params, state.optimizer_state))
        train = {"optimizer_state": state.optimizer_state}
        # Each part is copied to the host before this returns: the next step may donate the arrays.
        parts = [
            _begin_part(path, "params", params, self.config.model_dump(mode="json"), _chunks(params)),
            _begin_part(path, "train", train, {name: getattr(state, name) for name in _DESCRIBED}),
        ]
        self._writing = self._writer.submit(self._finish, parts, state.step)
        self.newest_step = state.step
        return path

    def _finish(self, parts: Sequence[Callable[[], None]], step: int) -> None:
        with told_as_os_errors(self.directory):
            for finish in parts:
                finish()
            if jax.process_index() == 0:
                self._retire(step)

    def wait(self) -> None:
        """Return when the last save is whole, on every host.

        Raises:
            OSError: it could not be written.
        """
        self._end_writing()
        # JAX kills hosts that have not all ended within 300 seconds, even if the first is still writing manifests.
        multihost_utils.sync_global_devices(f"saves in {self.directory}")

    def _end_writing(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def steps(self) -> list[int]:
        """Return the steps that have a folder, oldest first, whole or not."""
        if not self.directory.is_dir():
            return []
        return sorted(int(entry.name) for entry in self.directory.iterdir() if entry.name.isdecimal())

    def restore_latest(self, optimizer: optax.GradientTransformation, *, mesh: Mesh | None = None) -> TrainState | None:
        """Return the newest whole state of a run with `optimizer`, over `mesh` or on the first device; or None.

        No second state is allocated for it. A damaged checkpoint is passed over with a warning that names it.

        Raises:
            CheckpointError: the checkpoint is of another model.
        """
        self._end_writing()
        with told_as_os_errors(self.directory):
            step = self._newest_whole_step()
            if step is None:
                return None
            state = self._restore(self.directory / f"{step:08d}", optimizer, mesh)
        self.newest_step = step
        return state

    def _newest_whole_step(self) -> int | None:
        # The first host chooses for all: a disk that shows files late could make two hosts begin at different steps.
        steps = json.loads(gather_bytes_from_hosts(json.dumps(self.steps()).encode())[0])
        for step in reversed(steps):
            path = self.directory / f"{step:08d}"
            fault = _fault(path, "params") or _fault(path, "train")
            if fault is None:
                return step
            if jax.process_index() == 0:
                _log.warning("checkpoint %s is passed over: %s", path, fault)
        return None

    def _restore(self, path: Path, optimizer: optax.GradientTransformation, mesh: Mesh | None) -> TrainState:
        found = _described_model(path)
        # Compared as HuggingFace configs: remat and the numerics of products may change when a run resumes.
        if (found.to_hf(), found.lora) != (self.config.to_hf(), self.config.lora):
            raise CheckpointError(f"{path} holds another model: expected {self.config}, found {found}")
        described = json.loads((path / "train.json").read_text(encoding="utf-8"))
        params = learnt(abstract_params(self.config))
        optimizer_state = sharded_shapes(jax.eval_shape(optimizer.init, params), mesh)
        train = _read_part(path, "train", {"optimizer_state": optimizer_state})
        return TrainState(
            **{name: described[name] for name in _DESCRIBED if name in described},
            params=_read_part(path, "params", sharded_shapes(params, mesh)),
            optimizer_state=train["optimizer_state"],
        )

    def _retire(self, newest: int) -> None:
        # Only now that the newest is whole: a run that was killed before would need the older ones. A later folder is
        # half of a save of an earlier process; it does not count among the saves that are kept.
        folders = [self.directory / f"{step:08d}" for step in self.steps() if step <= newest]
        for folder in folders[:-_TRAIN_STATES_KEPT]:
            _remove_part(folder, "train")
        for folder in [] if self._keep_weights is None else folders[: -self._keep_weights]:
            _remove_part(folder, "params")
            _remove_folder(folder)


def save_params(path: Path, config: ModelConfig, params: Params) -> None:
    """Write weights alone, in place of all that `path` held.

    Raises:
        OSError: the disk is full or not writable.
    """
    path = in_bucket(path)
    with told_as_os_errors(path):
        _clear(path)
        _begin_part(path, "params", params, config.model_dump(mode="json"), _chunks(params))()
    multihost_utils.sync_global_devices(f"weights in {path}")


def read_model(path: Path) -> ModelConfig:
    """Read the model of a checkpoint folder, without its weights.

    Raises:
        CheckpointError: there are none, or adapters alone, or their description is damaged.
    """
    model = _described_model(path)
    if model.lora is not None:
        raise CheckpointError(f"{path} holds adapters alone; name the run's `policy` folder, which has them merged")
    return model


def _described_model(path: Path) -> ModelConfig:
    path = in_bucket(path)
    description = path / "params.json"
    with told_as_os_errors(path):
        if not description.is_file():
            if not path.is_dir():
                raise CheckpointError(f"{path}: no such folder exists; name a checkpoint folder")
            raise CheckpointError(f"{path}: not a checkpoint folder, since it holds no params.json; try a sub-folder")
        text = description.read_bytes()
    try:
        return (AdaptedModel if b'"adapters"' in text else ModelConfig).model_validate_json(text)
    except ValidationError as error:
        raise CheckpointError(f"{description} is damaged: {error.errors()[0]['msg']}; restore it") from error


def load_params(
    path: Path, *, mesh: Mesh | None = None, overrides: ModelOverrides = NO_OVERRIDES
) -> tuple[ModelConfig, Params]:
    """Read the weights of a checkpoint folder, over `mesh` or onto the first device; a host reads its own part.

    Raises:
        CheckpointError: the folder is not a whole checkpoint.
        ConfigError: the mesh does not fit its model.
    """
    config = overrides.of(read_model(path))
    require_divisible(config, mesh)
    require_whole(path)
    with told_as_os_errors(path := in_bucket(path)):
        return config, _read_part(path, "params", sharded_shapes(abstract_params(config), mesh))


def require_whole(path: Path) -> None:
    """Require that every byte of the weights is as it was written; every host calls it, and reads a share.

    Raises:
        CheckpointError: a file is missing or has changed.
    """
    with told_as_os_errors(there := in_bucket(path)):
        fault = _fault(there, "params")
    if fault is not None:
        raise CheckpointError(f"{path} is damaged: {fault}; restore an earlier checkpoint")


def declare_whole(path: Path, config: ModelConfig) -> None:
    """Write the manifest of the arrays in `path`/params: from now on they count as a checkpoint."""
    files = (file for file in (path / "params").rglob("*") if file.is_file())
    _write_manifest(path, "params", config.model_dump(mode="json"), _checksums(path, files))


def _require_room(path: Path, tree: Any) -> None:
    """Require that a disk has room for a state, before a part of it is written; a bucket has."""
    if is_in_bucket(path):
        return
    needed_bytes = sum(array.nbytes for array in jax.tree.leaves(tree))
    free_bytes = shutil.disk_usage(path).free
    if free_bytes < needed_bytes:
        raise OSError(
            errno.ENOSPC,
            f"a checkpoint needs {needed_bytes / 1e9:.1f} GB, and {free_bytes / 1e9:.1f} are free; make room and run "
            "the same command again",
            str(path),
        )


def _clear(path: Path) -> None:
    """Remove the parts in a folder before any host writes there."""
    if jax.process_index() == 0:
        for part in ("train", "params"):
            _remove_part(path, part)
        path.mkdir(parents=True, exist_ok=True)
    multihost_utils.sync_global_devices(f"clear {path}")


def _begin_part(
    path: Path, part: str, tree: Any, description: dict[str, Any], save_args: Any = None
) -> Callable[[], None]:
    """Copy the arrays to the host and start to write them; return the function that makes the part whole."""
    checkpointer = ocp.StandardCheckpointer()
    with told_as_os_errors(path):
        checkpointer.save(_absolute(path / part), tree, save_args=save_args)

    def finish() -> None:
        with told_as_os_errors(path):
            checkpointer.close()  # waits until all hosts have written and the first has merged their files
        # At once, while the files are in the memory of the host that wrote them; other parts are still being written.
        own = _checksums(path, _files_of_this_host(path, part))
        all_files = _joined_checksums(path, part, own)
        if jax.process_index() == 0:
            _write_manifest(path, part, description, all_files)

    return finish


@contextlib.contextmanager
def told_as_os_errors(path: Path) -> Iterator[None]:
    """Raise TensorStore's failure to write, such as a full disk or a missing right, as Python's own error.

    Raises:
        OSError: TensorStore could not write; the error names `path`.
        PlaceUnusable: a library could not write to the bucket of `path`, or not read there.
    """
    try:
        yield
    except (AstraError, jax.errors.JaxRuntimeError):
        raise
    except Exception as error:
        # Gloo's failure means that another host is gone.
        if is_in_bucket(path) and "Gloo" not in str(error) and (failure := unusable(str(path), error)):
            raise failure from error
        if not isinstance(error, ValueError | RuntimeError):
            raise
        code = re.search(r"\[os_error_code='(\d+)'", str(error))
        if code is None:
            raise
        number = int(code[1])
        raise OSError(number, os.strerror(number), str(path)) from error


def _chunks(params: Params) -> Any:
    """Return chunks of a layer or of some rows, so that an export never reads all of a parameter at once."""

    def chunks(path: jax.tree_util.KeyPath, _: Any) -> ocp.SaveArgs:
        stacked = path[0] == jax.tree_util.DictKey("layers")
        return ocp.SaveArgs(shard_axes=(0,)) if stacked else ocp.SaveArgs(chunk_byte_size=PIECE_BYTES)

    return jax.tree_util.tree_map_with_path(chunks, params)


def _files_of_this_host(path: Path, part: str) -> Iterator[Path]:
    """Yield the files of a part that this host wrote: those in folders with its number; the first wrote all others."""
    if is_in_bucket(path):
        files = [path / name for name in objects_in(str(path)) if name.startswith(f"{part}/")]
    else:
        files = [file for file in (path / part).rglob("*") if file.is_file()]
    for file in files:
        writer = re.search(r"(?:^|[./])process_(\d+)(?:/|$)", file.relative_to(path).as_posix())
        if int(writer[1] if writer else 0) == jax.process_index():
            yield file


def _checksums(path: Path, files: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Return size and checksum of each file, by its name below `path`: CRC-32, or that of a bucket."""
    found = sorted(files)
    if is_in_bucket(path):
        names = [str(file.relative_to(path)) for file in found]
        objects = objects_in(str(path), names)
        return {name: objects[name] for name in names}
    with ThreadPoolExecutor(_CHECKSUM_THREADS) as pool:
        values = list(pool.map(_crc32 if address_of(path) is None else checksum_in_bucket, found))
    return {
        str(file.relative_to(path)): (file.stat().st_size, value) for file, value in zip(found, values, strict=True)
    }


def _joined_checksums(path: Path, part: str, own: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return the checksums of all hosts on the first host; each host waits until all have computed their own."""
    if jax.process_count() == 1:
        return own
    of_host = [path / f"{part}.host-{host}.json" for host in range(jax.process_count())]
    if jax.process_index() > 0:
        _write_whole(of_host[jax.process_index()], json.dumps(own))
    # The devices are not used: they train meanwhile. No host looks for a file before it is there, since network disks
    # remember for a while that a file was missing.
    _joined[path / part] += 1
    key = f"checksums of {path / part}, {_joined[path / part]}"
    ocp.multihost.get_barrier_sync_fn()(key=key, timeout_ms=_JOINED_WITHIN_MS)
    if jax.process_index() == 0:
        for file in of_host[1:]:
            own |= json.loads(file.read_text(encoding="utf-8"))
            file.unlink()
    return own


def _write_manifest(path: Path, part: str, description: dict[str, Any], files: dict[str, tuple[int, int]]) -> None:
    # The description first: the manifest has its checksum as well.
    described = path / f"{part}.json"
    described.write_text(json.dumps(description, indent=2), encoding="utf-8")
    _write_whole(path / f"{part}.whole.json", json.dumps(_checksums(path, [described]) | files))


def _write_whole(file: Path, text: str) -> None:
    # An object of a bucket is there whole or not at all.
    if is_in_bucket(file):
        file.write_text(text)
    else:
        write_whole(file, text)


def _read_part(path: Path, part: str, like: Any) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(_absolute(path / part), jax.tree.map(ocp.utils.to_shape_dtype_struct, like))


def _absolute(path: Path) -> Path:
    return path if is_in_bucket(path) else path.absolute()


def _remove_part(path: Path, part: str) -> None:
    # The manifest goes first: from then on the part does not count.
    (path / f"{part}.whole.json").unlink(missing_ok=True)
    for of_host in path.glob(f"{part}.host-*.json"):
        of_host.unlink()
    if (path / part).exists():
        _remove_folder(path / part)


def _remove_folder(path: Path) -> None:
    if is_in_bucket(path):
        path.rmtree()  # type: ignore[attr-defined]
    else:
        shutil.rmtree(path)


def _fault(path: Path, part: str) -> str | None:
    """Return why a part is not whole, or None if it is; every host calls it and checks a share of the files."""
    own = _fault_in_share(path, part, jax.process_index(), jax.process_count())
    return next((fault.decode() for fault in gather_bytes_from_hosts((own or "").encode()) if fault), None)


def _fault_in_share(path: Path, part: str, share: int, num_shares: int) -> str | None:
    manifest_path = path / f"{part}.whole.json"
    if not manifest_path.is_file():
        return f"{manifest_path.name} is missing (the save did not finish)"
    try:
        manifest = _MANIFEST.validate_json(manifest_path.read_bytes())
    except ValidationError as error:
        return f"{manifest_path.name} is no manifest: {error.errors()[0]['msg']}"
    # Dealt out by size, so that shares are equally large; the order of names decides between equals.
    names = sorted(sorted(manifest), key=lambda name: -manifest[name][0])[share::num_shares]
    sizes = _sizes(path, names)
    for name in names:
        if name not in sizes:
            return f"{name} is missing"
        # Sizes first: they show most damage before a byte is read.
        if sizes[name] != manifest[name][0]:
            return f"{name} has {sizes[name]} bytes, expected {manifest[name][0]}"
    for name, (_, crc32) in _checksums(path, [path / name for name in names]).items():
        if crc32 != manifest[name][1]:
            return f"{name} has another checksum than when it was written"
    return None


def _sizes(path: Path, names: Iterable[str]) -> dict[str, int]:
    """Return the size of each file that is there."""
    if is_in_bucket(path):
        return {name: size for name, (size, _) in objects_in(str(path), names).items()}
    return {name: (path / name).stat().st_size for name in names if (path / name).is_file()}


def _crc32(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value
