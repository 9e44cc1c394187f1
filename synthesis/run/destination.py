"""The destination of a command: the one rule that protects the user's files, and the one rename into place.

A destination is new, empty, or an earlier result of the same kind, which is recognised by its manifest:

    records              dataset.json    names the kind and the shards
    converted checkpoint .astra.json     names the kind and all that the folder holds
    export of records    .astra.json     the same
    a run                run.json        names the kind; the run goes on, nothing is replaced
    a quickstart         .quickstart     the earlier one is moved aside, nothing is replaced

Anything else is refused before it is read or touched, and so is a destination that holds the sources, the working
directory or the user's home. A replaced folder holds no more than its manifest names, else it is refused.

A result is made beside its place, under a name of its own (`.NAME.1f0c….partial`), and renamed when it is whole: a
reader never sees half of one. If a killed process left such a folder, the next one removes it; a mark in the folder
tells them apart.

Decided: docs/decisions/commands.md, “A destination is new, empty, or an earlier result of the same kind”.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from synthesis.errors import SynthesisError

MARK: Final = ".astra.json"
"""Name of the manifest in results whose kind has no manifest of its own."""
_UNFINISHED: Final = ".astra-unfinished"
"""Name of the mark in an unfinished folder; the mark is removed when the folder is whole."""
_REMOVALS: Final = 40
_SECONDS_BETWEEN_REMOVALS: Final = 0.05
_LOCK_TEXT: Final = re.compile(r"(process \d+ on \S+)?")


class DestinationRefused(SynthesisError, ValueError):
    """Something else is at the destination; the message names the expected and the found thing, and the remedy."""

    is_usage = True


@dataclass(frozen=True)
class Result:
    """A kind of folder that a command makes."""

    name: str
    """Words for the result, as in "an earlier NAME"."""
    manifest: str
    kind: str
    """Value of `kind` in the manifest, which is a JSON object."""
    companions: tuple[str, ...] = ()
    """Files that may lie beside those that the manifest names; a run has them before its manifest, too."""
    is_replaced: bool = False
    """Whether a new one takes its place, so that all files in it must be known to be ours."""
    advice: str = ""
    """Advice to a user whose manifest is missing, because an older version wrote none."""


def records_of(kind: str) -> Result:
    """Describe the record directories of one kind of record."""
    companions = ("report.json", "certificate.json", "certificate.html")
    return Result(f"record directory of kind {kind!r}", "dataset.json", kind, companions, is_replaced=True)


def require_destination(out: Path, result: Result, *, sources: Iterable[Path] = ()) -> None:
    """Refuse a folder to write to that is neither new, nor empty, nor an earlier `result`.

    Symbolic links are followed: the rule is on their targets. Lock files of ours do not count.

    Raises:
        DestinationRefused: it is something else; it is or holds one of `sources`, the working directory or the home; or
            nothing can be written there.
    """
    place = _place(out, sources, is_written_in=not result.is_replaced)
    if not place.exists():
        return
    if not place.is_dir():
        raise _refused(out, f"a {result.name} is a folder, and this is a file")
    foreign = _first_other(place, () if result.is_replaced else result.companions)
    if foreign is None:  # empty but for lock files, or what hosts wrote before the first published the manifest
        return
    manifest = manifest_in(place, result)
    if manifest is None:
        advice = f" ({result.advice})" if result.advice else ""
        raise _refused(out, f"it holds {foreign} and is not an earlier {result.name}{advice}")
    if result.is_replaced:
        known = {result.manifest, *result.companions, *manifest.get("shards", ()), *manifest.get("files", ())}
        if (foreign := _first_other(place, known)) is not None:
            raise _refused(out, f"it holds {foreign} besides an earlier {result.name}, which is to be replaced")


def require_file_destination(out: Path, name: str, is_earlier: Callable[[Path], bool]) -> None:
    """Refuse a file to write that is neither new, nor empty, nor an earlier one, as `is_earlier` says."""
    place = _place(out, ())
    if place.is_dir():
        raise _refused(out, f"a {name} is a file, and this is a folder")
    if place.exists() and (not place.is_file() or (place.stat().st_size and not is_earlier(place))):
        raise _refused(out, f"it exists and is not an earlier {name}")


@contextlib.contextmanager
def whole_folder(out: str | os.PathLike[str], result: Result) -> Iterator[Path]:
    """Yield a folder to fill; it takes the place of `out` when the block ends well, else that stays as it was.

    It gets the manifest `.astra.json` if its kind is recognised by that.

    Raises:
        DestinationRefused: as `require_destination`, before anything is written.
    """
    out = Path(out)
    require_destination(out, result)
    place = out.resolve()
    place.parent.mkdir(parents=True, exist_ok=True)
    for left in _siblings(place, "partial"):
        # The mark of a killed process, or a whole result that lost its mark and was killed before it was renamed.
        if (left / _UNFINISHED).is_file() or manifest_in(left, result):
            shutil.rmtree(left)
    partial = _new_sibling(place, "partial")
    partial.mkdir()
    try:
        (partial / _UNFINISHED).touch()
        yield partial
        if result.manifest == MARK:
            names = sorted(entry.name for entry in partial.iterdir() if entry.name != _UNFINISHED)
            (partial / MARK).write_text(json.dumps({"kind": result.kind, "files": names}, indent=2) + "\n")
        (partial / _UNFINISHED).unlink()
        _put_in_place(partial, place, result)
    except BaseException:
        _remove(partial)
        raise


@contextlib.contextmanager
def whole_file(out: Path) -> Iterator[Path]:
    """Yield a path to write a file at; it takes the place of `out` when the block ends well, else that stays as it was.

    Raises:
        FileNotFoundError: the folder of `out` is missing.
    """
    place = out.resolve()
    if not place.parent.is_dir():
        raise FileNotFoundError(f"No such file or directory: {out} cannot be written, its folder is missing; make it")
    partial = _new_sibling(place, "partial")
    try:
        yield partial
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)


def write_whole(out: Path, text: str) -> None:
    """Write a text file in UTF-8, in place of an earlier one, whole or not at all, as `whole_file`."""
    with whole_file(out) as file:
        file.write_text(text, encoding="utf-8")


def _remove(folder: Path) -> None:
    """Remove a folder, although threads of a library may still write into it.

    A folder that is left after two seconds gets its mark again, so that the next result removes it as after a kill.
    """
    for _ in range(_REMOVALS):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(_SECONDS_BETWEEN_REMOVALS)
    with contextlib.suppress(OSError):  # gone at last, or not ours to write to
        (folder / _UNFINISHED).touch()


def _put_in_place(whole: Path, place: Path, result: Result) -> None:
    """Rename a finished folder; a crash between the two renames leaves both whole, under hidden names."""
    replaced = None
    if place.exists() and _first_other(place, frozenset()) is not None:
        require_destination(place, result)  # it may have changed since
        replaced = _new_sibling(place, "replaced")
        os.replace(place, replaced)
    os.replace(whole, place)
    # Only now, when the new one is in place. A folder that an earlier crash had set aside goes as well.
    for left in _siblings(place, "replaced"):
        if left == replaced or manifest_in(left, result):
            shutil.rmtree(left)


def _place(out: Path, sources: Iterable[Path], *, is_written_in: bool = False) -> Path:
    """Return the target of `out`, or refuse it if it may not be written; one that is written in need not be renamed."""
    try:
        if out.is_symlink() and not out.exists():
            raise _refused(out, "it is a symbolic link to nothing")
        place = out.resolve()
        kept = {"the working directory": Path.cwd(), "your home": Path.home()} | {str(path): path for path in sources}
        for name, path in kept.items():
            if path.resolve().is_relative_to(place):
                raise _refused(out, f"it is {name}" if path.resolve() == place else f"it holds {name}")
        parent = next(path for path in place.parents if os.path.lexists(path))
        if not parent.is_dir():
            raise _refused(out, f"{parent} is a file")
        needed = [place] if place.exists() else []
        if not (needed and is_written_in):
            needed.append(parent)
        for path in needed:
            if _is_read_only(path):
                raise _refused(out, f"{path} is read-only")
    except (PermissionError, RuntimeError) as error:  # a folder that may not be looked into, or a loop of links
        raise _refused(out, f"the path leads nowhere ({error})") from error
    return place


def _is_read_only(path: Path) -> bool:
    """Say whether this user may not write there, or the place is marked read-only, which holds for root too."""
    wanted = os.W_OK | os.R_OK | (os.X_OK if path.is_dir() else 0)
    may = os.access(path, wanted, effective_ids=os.access in os.supports_effective_ids)
    return not may or not path.stat().st_mode & 0o222


def _refused(out: Path, fault: str) -> DestinationRefused:
    return DestinationRefused(f"{out}: {fault}; name another place, nothing was touched")


def manifest_in(folder: Path, result: Result) -> dict[str, Any] | None:
    """Return the manifest of a folder that holds a `result`; None for any other folder."""
    try:
        text = (folder / result.manifest).read_text(encoding="utf-8")
        manifest = json.loads(text)
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("kind") == result.kind else None


def _first_other(folder: Path, known: Iterable[str]) -> str | None:
    """Return the first entry of a folder, by name, that is not `known` and no lock of ours."""
    for entry in sorted(folder.iterdir()):
        if entry.name not in known and (not entry.name.endswith(".lock") or is_no_lock(entry)):
            return entry.name
    return None


def is_no_lock(path: Path) -> bool:
    """Say whether a file is anything but a lock file of ours, which holds the name of a process or no text."""
    if path.is_symlink() or not path.is_file():
        return True
    with path.open("rb") as file:
        return _LOCK_TEXT.fullmatch(file.read(512).decode("utf-8", errors="replace")) is None


def _new_sibling(place: Path, suffix: str) -> Path:
    return place.with_name(f".{place.name}.{uuid.uuid4().hex}.{suffix}")


def _siblings(place: Path, suffix: str) -> list[Path]:
    """Return the folders beside a place that have a name as `_new_sibling` gives it."""
    name = re.compile(rf"\.{re.escape(place.name)}\.[0-9a-f]{{32}}\.{suffix}")
    return sorted(entry for entry in place.parent.iterdir() if name.fullmatch(entry.name) and entry.is_dir())
