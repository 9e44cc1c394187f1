"""Places in a bucket: a URL stands for a folder of this machine, its stage, which holds the same files.

    gs://bucket/runs/sft  ─►  ~/.cache/astra-jax/places/gs/bucket/runs/sft      `stage_of`; back again: `address_of`
    fetch(stage)              bring what the bucket has, before anything is read
    publish(stage)            send what this machine has made, a manifest last

All code works on paths of this machine. Only the arrays of checkpoints, which one machine may have no room for, are
written to the bucket and read there by TensorStore (astra_jax/checkpoints).

A file that only this machine has changed since both were alike is kept at `fetch`, so that a command that was killed
goes on with all it has made; any other is the bucket's. What both had last is written down in `.astra-published.json`.

A bucket has no rename and no lock. A reader must not see half of a result, so its manifest is removed before its files
change, and written when all are there. Of two runs in one place the later one wins: `Claim`.

Libraries: fsspec, and its package for the scheme (gcsfs for `gs`, the extra `gcs`).

Decided: docs/decisions/commands.md, “A place in a bucket has a stage on this machine”.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final

from pydantic import AfterValidator

from synthesis.errors import SynthesisError
from synthesis.run.destination import is_no_lock, whole_file, write_whole

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
_ALIKE: Final = ".astra-published.json"
"""In each stage: MD5 of every file as it was when stage and bucket were last alike, by its name."""
_MANIFESTS: Final = ("dataset.json", ".astra.json")
"""Manifests of results that are replaced whole."""
_CLAIMS: Final = ".claims"
_NOT_FETCHED: Final = frozenset({"params", "train", _CLAIMS})
"""Folders of arrays, of which a stage has those alone that were made in it, by a conversion; and of claims."""
_SECONDS_BETWEEN: Final = 60.0


class PlaceUnusable(SynthesisError):
    """A bucket cannot be read or written; the message names the address, the fault and the remedy."""


class TakenOver(SynthesisError):
    """A later run has begun in the same place of a bucket, so this one ends."""


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
        scheme, *parts = Path(os.path.abspath(path)).relative_to(_stages()).parts
    except ValueError:  # elsewhere, or all stages at once
        return None
    return f"{scheme}://{'/'.join(parts)}"


def _stages() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "astra-jax"
    return Path(os.path.abspath(os.environ.get("ASTRA_STAGE") or cache / "places"))


def fetch(path: Path) -> None:
    """Make the stage at `path`, a folder or file, like the bucket, but for arrays; any other path is left alone.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be read, or a file is damaged on the way.
    """
    address = address_of(path)
    if address is None:
        return
    with _told(address):
        files, key = _opened(address)
        files.invalidate_cache()
        found = {name[len(key) :].strip("/"): each for name, each in files.find(key, detail=True).items()}
        found = {name: each for name, each in found.items() if not {*PurePosixPath(name).parts[:-1]} & _NOT_FETCHED}
        alike = _read_alike(path)
        here = {"" if path.is_file() else file: path / file for file in _files_in(path)}
        for name in sorted(found.keys() | here.keys()):
            local, remote = path / name if name else path, found.get(name)
            if remote is None:
                if name in alike:  # another machine has removed it
                    local.unlink()
                    del alike[name]
                continue
            md5 = _md5_of(remote)
            if name in here and md5 in (alike.get(name), _md5(local)):
                alike[name] = md5
                continue
            local.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(local) as partial:
                files.get_file(remote["name"], str(partial))
                if (arrived := _md5(partial)) != md5:
                    raise PlaceUnusable(f"{address}: {name} is damaged: expected MD5 {md5}, found {arrived}")
            alike[name] = md5
        _write_alike(path, alike)


def publish(path: Path) -> None:
    """Send the files of the stage at `path` that have changed; any other path is left alone.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be written; what has arrived stays there, and the same
            command sends the rest.
    """
    address = address_of(path)
    if address is None:
        return
    with _told(address):
        files, key = _opened(address)
        alike = _read_alike(path)
        here = {name: _md5(path / name if name else path) for name in _files_in(path)}
        changed = {name for name, md5 in here.items() if alike.get(name) != md5}
        gone = alike.keys() - here.keys()
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
            with _unchanging(path / name if name else path) as local:
                md5 = _md5(local)
                files.put_file(str(local), f"{key}/{name}".rstrip("/"))
            alike[name] = md5
            _write_alike(path, alike)


@contextlib.contextmanager
def published(*paths: Path) -> Iterator[None]:
    """Fetch the stages at `paths`, publish them every minute while the block lasts, and at its end.

    Raises:
        PlaceUnusable: as `fetch` and `publish`; while the block lasts a failure waits for the next minute.
    """
    staged = [path for path in paths if address_of(path)]
    for path in staged:
        fetch(path)
    if not staged:
        yield
        return
    ended = threading.Event()

    def go_on() -> None:
        while not ended.wait(_SECONDS_BETWEEN):
            with contextlib.suppress(PlaceUnusable):
                for path in staged:
                    publish(path)

    thread = threading.Thread(target=go_on, name="publish", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for path in staged:
            publish(path)


class Claim:
    """The claim of a run to a place in a bucket, which a later run's claim ends; a path of this machine needs none."""

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
            while True:
                self._number = self._newest() + 1
                try:  # a bucket makes an object that must be new for one of several only
                    files.pipe_file(f"{key}/{_CLAIMS}/{self._number:06d}", b"{}", mode="create")
                except FileExistsError:
                    continue
                return

    def require(self) -> None:
        """Raise `TakenOver` if a later run has claimed the place."""
        if self._address is not None and (newest := self._newest()) != self._number:
            raise TakenOver(
                f"{self._address}: a later run, number {newest}, has begun there; this one, number {self._number}, "
                "ends without writing more"
            )

    def _newest(self) -> int:
        return max((int(name) for name in objects_in(f"{self._address}/{_CLAIMS}")), default=0)


def objects_in(address: str) -> dict[str, tuple[int, int]]:
    """Return size and checksum, as the bucket tells it, of every object below an address, by its name from there on.

    Raises:
        PlaceUnusable: the bucket does not answer or may not be read.
    """
    with _told(address):
        files, key = _opened(address)
        files.invalidate_cache()
        found = files.find(key, detail=True)
        return {name[len(key) :].strip("/"): (each["size"], int(_md5_of(each), 16)) for name, each in found.items()}


def _opened(address: str) -> tuple[Any, str]:
    """Return the file system of an address, and the key in it.

    Raises:
        PlaceUnusable: no package knows the scheme.
    """
    os.environ.setdefault("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # a try-out of gcsfs, which warns without a key
    import fsspec  # here, so that commands without a bucket start without it

    try:
        files, key = fsspec.url_to_fs(address, use_listings_cache=False)
    except (ImportError, ValueError) as error:
        raise PlaceUnusable(
            f"{address}: {error}; `pip install astra-jax[gcs]` brings what gs:// needs, s3:// needs s3fs"
        ) from error
    return files, key.rstrip("/")


@contextlib.contextmanager
def _told(address: str) -> Iterator[None]:
    """Raise the failures of a bucket's library as `PlaceUnusable`."""
    try:
        yield
    except (SynthesisError, FileExistsError):
        raise
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise PlaceUnusable(
            f"{address}: {text[:300]}; look at the name, the permissions and the network, then give the same command"
        ) from error


def _files_in(path: Path) -> list[str]:
    """Return the names of the files of a stage, without locks and unfinished files; "" if it is a file."""
    if path.is_file():
        return [""]
    names = []
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.endswith((".partial", ".replaced"))]
        for name in files:
            file = Path(folder, name)
            if (
                name != _ALIKE
                and not name.endswith((".partial", "-wal", "-shm"))
                and not (name.endswith(".lock") and not is_no_lock(file))
            ):
                names.append(str(file.relative_to(path)))
    return names


def _comes_last(name: str) -> bool:
    return name in _MANIFESTS or name in ("run.json", ".quickstart") or name.endswith(".whole.json")


@contextlib.contextmanager
def _unchanging(file: Path) -> Iterator[Path]:
    """Yield a copy of a file that may be written to meanwhile; of a database, one between two transactions."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, file.name)
        with file.open("rb") as start:
            is_database = start.read(16) == b"SQLite format 3\0"
        if is_database:
            with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(copy)) as into:
                source.backup(into)
        else:
            shutil.copyfile(file, copy)
        yield copy


def _remove(files: Any, key: str, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        files.rm_file(f"{key}/{name}".rstrip("/"))


def _md5(file: Path) -> str:
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


def _alike_file(path: Path) -> Path:
    return path.with_name(f".{path.name}{_ALIKE}") if path.is_file() else path / _ALIKE


def _read_alike(path: Path) -> dict[str, str]:
    file = _alike_file(path)
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _write_alike(path: Path, alike: Mapping[str, str]) -> None:
    if path.exists():
        write_whole(_alike_file(path), json.dumps(dict(sorted(alike.items()))))
