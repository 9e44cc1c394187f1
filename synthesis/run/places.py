"""Places in a bucket: a URL stands for a folder of this machine, its stage, which holds the same files.

    gs://bucket/runs/sft  ─►  ~/.cache/astra-jax/places/gs/bucket/runs/sft      `stage_of`; back again: `address_of`
    fetch(stage)              bring the bucket's files, before anything is read
    publish(stage)            send the files that this machine has changed, a manifest last
    in_bucket(stage)          the place in the bucket itself, for arrays

All code works on paths of this machine, but for the arrays of checkpoints, for which one machine may have no room:
TensorStore writes them to the bucket and reads them there (astra_jax/checkpoints).

At `fetch` a file that only this machine has changed since both were alike is kept, so that a killed command goes on
with all its work; any other file is the bucket's. The checksums of that time are kept beside the stage, and in the
bucket as `.astra-published.json`.

A bucket has no rename and no lock, and a list of its objects may lag behind. A reader must not see half of a result:
its manifest is removed before its files change, and written after them. Of two commands in one place the later one
wins: `claim`, and `Claim` in training. A file that a list and the last publisher's checksums tell differently is asked
for by its name.

Libraries: fsspec, and its package for the scheme (gcsfs for `gs`, the extra `gcs`); etils for `in_bucket`.

Decided: docs/decisions/commands.md, “A place in a bucket has a stage on this machine”.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sqlite3
import tempfile
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from synthesis.errors import SynthesisError
from synthesis.run.destination import is_no_lock, whole_file, write_whole

_log = logging.getLogger(__name__)
_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
_ALIKE: Final = ".astra-published.json"
"""Name of the file with the MD5 of every file as it was when stage and bucket were last alike."""
_MANIFESTS: Final = ("dataset.json", ".astra.json")
"""Manifests of results that are replaced whole."""
_CLAIMS: Final = ".claims"
_ARRAYS: Final = re.compile(r"((?:.*/)?(?:params|train)/)(?:manifest\.ocdbt|ocdbt\.process_\d+/.*)")
"""Names that show a folder of arrays, which is not fetched."""
_held: set[Path] = set()
"""Stages that a `published` block of this process publishes already."""
_claims: list[Claim] = []
"""The claims of this process, which ends its `published` blocks when a later one is made."""
_one_at_a_time: Final = threading.RLock()
"""Held while a stage is fetched or published, so that the checksums of neither are lost."""
_SECONDS_BETWEEN: Final = 60.0


class PlaceUnusable(SynthesisError):
    """A bucket cannot be read or written; the message names the address, the fault and the remedy."""


class TakenOver(SynthesisError):
    """A later command has begun in the same place of a bucket, so this one ends."""


def stage_of(path: Path) -> Path:
    """Return the folder of this machine that stands for a URL; any other path as it is.

    >>> str(stage_of(Path("gs://bucket/runs/sft"))).endswith("places/gs/bucket/runs/sft"), stage_of(Path("runs/sft"))
    (True, PosixPath('runs/sft'))
    """
    url = _URL.fullmatch(str(path))  # pathlib makes one slash of two
    return path if url is None else _stages() / url[1].lower() / url[2]


Place = Annotated[Path, AfterValidator(stage_of)]
"""A key of a config that takes a path of this machine or a URL, which becomes its stage."""


def address_of(path: Path) -> str | None:
    """Return the URL that a folder or file of this machine stands for; None for a path like any other.

    >>> address_of(stage_of(Path("gs://bucket/runs/sft")) / "policy"), address_of(Path("runs/sft"))
    ('gs://bucket/runs/sft/policy', None)
    """
    try:
        scheme, *parts = Path(os.path.realpath(path)).relative_to(_stages()).parts
    except ValueError:  # elsewhere, or all stages at once
        return None
    return f"{scheme}://{'/'.join(parts)}"


def _stages() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astra-jax"
    return Path(os.environ.get("ASTRA_STAGE") or cache / "places").resolve()


def in_bucket(path: Path) -> Path:
    """Return the place in the bucket that a stage stands for; any other path as it is."""
    address = address_of(path)
    if address is None:
        return path
    _library()
    from etils import epath

    place: Path = epath.Path(address)  # it has pathlib's methods
    return place


def fetch(path: Path) -> None:
    """Make the stage at `path`, a folder or file, like the bucket, but for arrays; any other path is left alone.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be read, or a file is damaged on the way.
    """
    address = address_of(path)
    if address is None:
        return
    with _told(address), _one_at_a_time:
        files, key = _opened(address)
        listed, told, alike = _listed(files, key), _read_told(files, key), _read_alike(path)
        here = {name: _md5(path / name if name else path) for name in _files_in(path)}
        for name in _fetched(listed.keys() | told.keys() | alike.keys()):
            local = path / name if name else path
            md5 = _md5_of(listed[name]) if name in listed else None
            if md5 is None or not md5 == here.get(name) == told.get(name, md5):
                found = _info(files, key, name)  # the list may lag behind
                md5 = None if found is None else _md5_of(found)
            if md5 is None:
                if alike.pop(name, None):  # another machine has removed it
                    local.unlink(missing_ok=True)
                continue
            if name not in here or md5 not in (alike.get(name), here[name]):
                local.parent.mkdir(parents=True, exist_ok=True)
                with whole_file(local) as partial:
                    files.get_file(f"{key}/{name}".rstrip("/"), str(partial))
                    if (arrived := _md5(partial)) != md5:
                        raise PlaceUnusable(
                            f"{address}: {name} arrived with MD5 {arrived}, expected {md5}: it was damaged on the way "
                            "or has just changed; give the same command again"
                        )
                    for suffix in ("-wal", "-shm"):  # of the database that it replaces
                        local.with_name(local.name + suffix).unlink(missing_ok=True)
            alike[name] = md5
        _write_alike(path, alike)


def publish(path: Path) -> None:
    """Send the files of the stage at `path` that have changed; any other path is left alone.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be written; the files that have arrived stay there, and the
            same command sends the rest.
        TakenOver: a later command has claimed a place of this one.
    """
    address = address_of(path)
    if address is None:
        return
    with _told(address), _one_at_a_time:
        files, key = _opened(address)
        alike = _read_alike(path)
        here = {name: _md5(path / name if name else path) for name in _files_in(path)}
        changed = {name for name, md5 in here.items() if alike.get(name) != md5}
        gone = alike.keys() - here.keys()
        if changed or gone:
            _require_claims()
        if any(name not in _MANIFESTS for name in changed | gone):
            for name in alike.keys() & {*_MANIFESTS}:
                _remove(files, key, name)
                del alike[name]
                changed |= here.keys() & {name}
                _write_alike(path, alike)
        for name in sorted(gone & alike.keys()):
            _remove(files, key, name)
            del alike[name]
        for name in sorted(changed, key=lambda name: (_comes_last(name), name)):
            _require_claims()
            with _unchanging(path / name if name else path) as local:
                md5 = _md5(local)
                files.put_file(str(local), f"{key}/{name}".rstrip("/"))
            alike[name] = md5
            _write_alike(path, alike)
        if (found := changed | gone) and found != {""}:
            files.pipe_file(f"{key}/{_ALIKE}", json.dumps(alike).encode())
            _write_alike(path, alike)


@contextlib.contextmanager
def published(*paths: Path) -> Iterator[None]:
    """Fetch the stages at `paths`, publish them every minute while the block lasts, and at its end.

    Raises:
        PlaceUnusable: as `fetch` and `publish`; while the block lasts a failure is logged and tried again.
        TakenOver: a later command has claimed a place of this one, which gets SIGTERM within a minute.
    """
    staged = {path for path in paths if address_of(path)} - _held
    for path in sorted(staged):
        fetch(path)
    if not staged:
        yield
        return
    ended, is_outermost = threading.Event(), not _held

    def go_on() -> None:
        while not ended.wait(_SECONDS_BETWEEN):
            try:
                for path in sorted(staged):
                    publish(path)
                _require_claims()
            except PlaceUnusable as error:
                _log.warning("%s (tried again every minute, and once more at the end)", error)
            except TakenOver:  # told at the end of the outermost block, which alone sends a signal
                if is_outermost and not ended.is_set():
                    os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=go_on, name="publish", daemon=True)
    thread.start()
    _held.update(staged)
    try:
        yield
    finally:
        _held.difference_update(staged)
        ended.set()
        thread.join()
        try:
            for path in sorted(staged):
                publish(path)
            _require_claims()
        finally:
            if not _held:
                _claims.clear()


def claim(path: Path) -> None:
    """Claim a place of a `published` block, which ends an earlier command there; fetch what that one has sent till now.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be written.
    """
    if address_of(path) is not None:
        _claims.append(Claim(path))
        for stage in sorted(_held):
            fetch(stage)


def _require_claims() -> None:
    for each in _claims:
        each.require()


class Claim:
    """The claim of a command to a place in a bucket, which a later one ends; a path of this machine needs none."""

    def __init__(self, path: Path) -> None:
        """Claim the place, before anything is written there.

        Raises:
            PlaceUnusable: the bucket does not answer or may not be written.
        """
        self._number, self._address = 0, address_of(path)
        if self._address is None:
            return
        with _told(self._address):
            files, key = _opened(self._address)
            self._number = max(map(int, _listed(files, f"{key}/{_CLAIMS}")), default=0)
            while True:
                self._number += 1  # the list may lag behind
                try:  # a bucket makes an object that must be new for one of several only
                    files.pipe_file(f"{key}/{_CLAIMS}/{self._number:06d}", b"{}", mode="create")
                except FileExistsError:
                    continue
                return

    def require(self) -> None:
        """Raise `TakenOver` if a later command has claimed the place."""
        if self._address is None:
            return
        with _told(self._address):
            files, key = _opened(self._address)
            if files.exists(f"{key}/{_CLAIMS}/{self._number + 1:06d}"):
                raise TakenOver(
                    f"{self._address}: a later command, number {self._number + 1}, has begun there; this one, number "
                    f"{self._number}, ends without writing more"
                )


def objects_in(address: str, names: Iterable[str] = ()) -> dict[str, tuple[int, int]]:
    """Return size and checksum, as the bucket tells it, of every object below an address, by its name from there on.

    One of `names` that a list leaves out is asked for, since the list may lag behind.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be read.
    """
    with _told(address):
        files, key = _opened(address)
        found = _listed(files, key)
        for name in names:
            if name not in found and (each := _info(files, key, name)):
                found[name] = each
        return {name: (each["size"], int(_md5_of(each), 16)) for name, each in found.items()}


def checksum_in_bucket(file: Path) -> int:
    """Return the checksum that a bucket tells of a file with the same bytes."""
    return int(_md5(file), 16)


def _library() -> Any:
    """Return fsspec, told to remember no lists: TensorStore and other machines write objects that it does not hear of.

    An emulated bucket, which gcsfs finds in STORAGE_EMULATOR_HOST, is made known to TensorStore as well.
    """
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # a try-out of gcsfs, which warns without a key
    if "STORAGE_EMULATOR_HOST" in os.environ:
        os.environ["TENSORSTORE_GCS_HTTP_URL"] = os.environ["STORAGE_EMULATOR_HOST"]
    logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it raises the failures that it logs
    import fsspec  # here, so that commands without a bucket start without it

    for scheme in ("gs", "gcs"):
        fsspec.config.conf.setdefault(scheme, {})["use_listings_cache"] = False
    return fsspec


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the key in it.

    Raises:
        PlaceUnusable: no package knows the scheme.
    """
    try:
        files, key = _library().url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise PlaceUnusable(
            f"{address}: {error}; gs:// needs `pip install astra-jax[gcs]`, another scheme its package for fsspec"
        ) from error
    return files, key.rstrip("/")


@contextlib.contextmanager
def _told(address: str) -> Iterator[None]:
    """Raise the failures of a bucket's library as `PlaceUnusable`."""
    try:
        yield
    except FileExistsError:
        raise
    except Exception as error:
        if (failure := unusable(address, error)) is None:
            raise
        raise failure from error


def unusable(address: str, error: Exception) -> PlaceUnusable | None:
    """Return the failure of a library that reads or writes a bucket, in one line; None for any other error."""
    if isinstance(error, ExceptionGroup):  # writes side by side
        failures = [unusable(address, each) for each in error.exceptions]
        return None if None in failures else failures[0]
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):  # this machine's disk is full
        return None
    is_of_library = type(error).__module__.partition(".")[0] in ("aiohttp", "gcsfs", "google")
    if isinstance(error, SynthesisError) or not (
        is_of_library or isinstance(error, OSError | RuntimeError | ValueError)
    ):
        return None
    text = " ".join(str(error).split()) or type(error).__name__
    return PlaceUnusable(
        f"{address}: {text[:300]}; look at the name, the permissions and the network, then give the same command"
    )


def _listed(files: Any, key: str) -> dict[str, Mapping[str, Any]]:
    """Return what the bucket tells of each object below a key, by its name from there on; an object itself is ""."""
    found = files.find(key, detail=True).items()
    # A console marks an empty folder by an object with a slash at its end.
    return {name[len(key) :].strip("/"): each for name, each in found if not each["name"].endswith("/")}


def _fetched(names: Collection[str]) -> list[str]:
    """Return the names of the objects that a stage has too: all but arrays, claims and checksums.

    Raises:
        PlaceUnusable: a name leads out of the stage.

    >>> _fetched(["run.json", "train/rows.jsonl", "policy/params/manifest.ocdbt", "policy/params/d/1", ".claims/1"])
    ['run.json', 'train/rows.jsonl']
    """
    if outside := sorted(name for name in names if name.startswith("/") or ".." in name.split("/")):
        raise PlaceUnusable(f"{outside[0]}: the name of this object leads out of its folder; remove it from the bucket")
    folders = (f"{_CLAIMS}/", *{found[1] for name in names if (found := _ARRAYS.fullmatch(name))})
    return sorted(name for name in names if not name.startswith(folders) and not name.endswith(_ALIKE))


def _info(files: Any, key: str, name: str) -> Mapping[str, Any] | None:
    """Return what the bucket tells of one object, by its name; None if there is none."""
    try:
        found: Mapping[str, Any] = files.info(f"{key}/{name}".rstrip("/"))
    except FileNotFoundError:
        return None
    return None if found["type"] == "directory" else found


def _read_told(files: Any, key: str) -> dict[str, str]:
    """Return the checksums that the last publisher left in the bucket."""
    try:
        return json.loads(files.cat_file(f"{key}/{_ALIKE}"))
    except FileNotFoundError:
        return {}


def _files_in(path: Path) -> list[str]:
    """Return the names of the files of a stage, without locks and unfinished files; "" if it is a file."""
    if path.is_file():
        return [""]
    names = []
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.endswith((".partial", ".replaced"))]
        for name in files:
            file = Path(folder, name)
            if not name.endswith((_ALIKE, ".partial", "-wal", "-shm")) and not (
                name.endswith(".lock") and not is_no_lock(file)
            ):
                names.append(str(file.relative_to(path)))
    return names


def _comes_last(name: str) -> bool:
    return name in _MANIFESTS or name == "run.json" or name.endswith(".whole.json")


@contextlib.contextmanager
def _unchanging(file: Path) -> Iterator[Path]:
    """Yield a copy of a file that may be written to meanwhile; of an open database, one between two transactions."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        if _log_of(file).is_file():
            with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(copy)) as into:
                source.backup(into)
        else:
            shutil.copyfile(file, copy)
        yield copy


def _log_of(database: Path) -> Path:
    """Return the file in which SQLite has the last transactions of a database that is open, or was killed."""
    return database.with_name(f"{database.name}-wal")


def _remove(files: Any, key: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.rm_file(f"{key}/{name}".rstrip("/"))


def _md5(file: Path) -> str:
    """Return the MD5 of a file; a text that is none for a database whose last transactions lie beside it."""
    if (log := _log_of(file)).is_file() and log.stat().st_size:
        return "unknown"
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _md5_of(info: Mapping[str, Any]) -> str:
    """Return the MD5 that a bucket tells of an object, in base64 as GCS does or as ETag as S3 does.

    Raises:
        PlaceUnusable: it tells none, e.g. of an object that was composed of several.
    """
    md5 = base64.b64decode(info.get("md5Hash") or "").hex() or str(info.get("ETag", "")).strip('"')
    if re.fullmatch("[0-9a-f]{32}", md5) is None:
        raise PlaceUnusable(f"{info['name']}: the bucket tells no MD5 of it; copy it there again, in one piece")
    return md5


def _read_alike(path: Path) -> dict[str, str]:
    file = _alike_file(path)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _write_alike(path: Path, alike: Mapping[str, str]) -> None:
    file = _alike_file(path)
    if alike or file.is_file():
        write_whole(file, json.dumps(dict(sorted(alike.items()))))


def _alike_file(path: Path) -> Path:
    # Beside the stage: a result is replaced as a whole folder, and refused if it holds a file that is not its own.
    return path.with_name(f".{path.name}{_ALIKE}")
