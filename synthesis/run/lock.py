"""The lock of a folder, for one run at a time: a second one ends before it has touched anything.

The lock is the kernel's (flock) on a file that names its holder, so it goes with the process, however that dies. A
killed run leaves the file without a lock; a run that ends removes its file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from synthesis.errors import SynthesisError
from synthesis.run.destination import DestinationRefused, is_no_lock

_MOST_ATTEMPTS = 1000
"""Maximum number of attempts to lock a file that other runs remove between its making and its locking."""
_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)
"""Errors of flock on a file system without locks, e.g. Lustre without its mount option `flock`."""


class AnotherRun(SynthesisError):
    """Another run is at work in the same folder; the message names that run and the remedy."""

    is_usage = True


@contextlib.contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` while the block lasts; if there are no locks, print a warning and go on without.

    Programs that this process starts (sandboxes, tool servers) do not inherit it.

    Raises:
        AnotherRun: another process holds it.
        DestinationRefused: `path` is a file of the user.
    """
    is_new_folder = not path.parent.exists()
    for attempt in range(_MOST_ATTEMPTS):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            opened = path.open("a+")
        except (FileExistsError, FileNotFoundError):
            if attempt == _MOST_ATTEMPTS - 1:
                raise  # a file, or a link to nowhere, is where the folder or the lock should be
            continue  # a run that has just been refused has taken the folder away
        with opened as file:
            _lock(file, path)
            if not _lies_at(file, path):
                continue  # the run that held it has just ended and taken it away
            if is_no_lock(path):
                raise DestinationRefused(
                    f"{path}: this file is not the lock of an earlier run; name another place to write to, or move it "
                    "away"
                )
            file.truncate(0)
            with contextlib.suppress(OSError):  # a full disk: the run itself reports it
                os.write(file.fileno(), f"process {os.getpid()} on {socket.gethostname()}".encode())
            try:
                yield
            finally:
                if _lies_at(file, path):  # not in a folder that was deleted and begun anew
                    path.unlink()
                    if is_new_folder:
                        with contextlib.suppress(OSError):  # not empty: the run has written something, as most do
                            path.parent.rmdir()
            return
    raise AnotherRun(f"the lock {path} was taken away by one run after another, {_MOST_ATTEMPTS} times; try again")


def _lock(file: TextIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read() or "another process"  # which has not yet written its name
        raise AnotherRun(
            f"the folder is in use by {holder}, which holds {path}; wait until it ends, or choose another folder"
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        print(f"astra: {path}: no lock ({error.strerror}); see to it that no other run writes here", file=sys.stderr)


def _lies_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
