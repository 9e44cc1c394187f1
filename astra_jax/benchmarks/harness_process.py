"""A program of a harness, run to its end: confined, in a folder of its own, without this process's variables.

Harnesses run what a model wrote as Python. So whatever they run reads /usr, the interpreter and the harness, writes
into its folder, and reaches nobody but relays of ours; and it ends when this process does, also when that is killed.

Decided: docs/decisions/benchmarks.md, “A harness is confined, or it is not run”.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed

AGENT_PORT: Final = 8001
USER_PORT: Final = 8002
"""Of the loopback that a program has to itself: the same in every run."""
_SANDBOX_UID: Final = 65534  # as sandbox.jail.launcher has it
_END_SECONDS: Final = 10.0
_MOST_MESSAGE_BYTES: Final = 4096
_START: Final = "import sys; sys.path.insert(0, {root!r}); from sandbox.jail import program; program.main()"


def relay_url(port: int) -> str:
    """Return where a program finds the relay that is at a port of its loopback.

    >>> relay_url(8001)
    'http://127.0.0.1:8001/v1'
    """
    return f"http://127.0.0.1:{port}/v1"


async def run_harness(
    command: Sequence[str],
    *,
    folder: Path,
    log: Path,
    variables: Mapping[str, str],
    readable: Sequence[Path] = (),
    relays: Mapping[int, Relay] | None = None,
    said: str = "",
    cpu_seconds: int | None = None,
    memory_bytes: int = 16 << 30,
) -> None:
    """Run one program that is told `said`; what it prints is added to `log`.

    It may read what is `readable` and the interpreter, write into `folder`, and ask `relays`, by the port of its
    loopback. `cpu_seconds` and `memory_bytes` bound each of its processes. Cancelled, it ends the program and all that
    it started. Started by root, it runs as the sandbox's user, who owns the files of `folder` for that time.

    It gets PATH, a home below `folder` and `variables`, and nothing else: no key, no proxy, no setting of the user.

    Raises:
        ProgramFailed: it does not end well.
        BenchmarkFailed: this machine cannot confine it, so that it is not run.
    """
    if sys.platform != "linux":
        raise BenchmarkFailed(_cannot_confine(sys.platform))
    readable = [*_interpreter_folders(), *readable]
    home = folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_PROXY": "127.0.0.1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **variables,
    }
    relays = relays or {}
    output = _opened(log)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    plan = {
        "control_fd": theirs.fileno(),
        "parent": os.getpid(),
        "readable": [str(path.absolute()) for path in readable],
        "folder": str(folder.absolute()),
        "ports": list(relays),
        "cpu_seconds": cpu_seconds,
        "memory_bytes": memory_bytes,
        "command": list(command),
    }
    with ours, output, _lent(folder):
        try:
            process = await asyncio.create_subprocess_exec(
                *(_interpreter(), "-I", "-S", "-c", _START.format(root=_package_root()), json.dumps(plan)),
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
        finally:
            theirs.close()
        try:
            async with contextlib.AsyncExitStack() as listening:
                await _let_through(ours, relays, listening)
                assert process.stdin is not None
                process.stdin.write(said.encode())
                process.stdin.close()
                code = await process.wait()
        finally:
            # Whatever it started goes with it, also what outlives it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            if process.returncode is None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _END_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code:
        raise ProgramFailed(
            f"expected {Path(command[0]).name} {command[1]} to end well, found exit code {code}: "
            f"{last_line(log)}; see {log}"
        )


@contextlib.contextmanager
def _lent(folder: Path) -> Iterator[None]:
    """Lend a folder to a program, and take it back without the links, pipes and sockets that the program has made.

    Through one of these this process would later read or write somewhere else. If this process is root's, root's files
    in the folder belong to the sandbox's user meanwhile.
    """
    giver = os.geteuid()
    taker = giver or _SANDBOX_UID
    known = set(_hand_over(folder, giver, taker, None))
    try:
        yield
    finally:
        _hand_over(folder, taker, giver, known)


def _hand_over(folder: Path, giver: int, taker: int, known: set[tuple[str, str]] | None) -> list[tuple[str, str]]:
    """Change the owner of a folder's files, remove the links that are not known, return the others with their targets.

    Names are looked up in open folders, so that no link leads out of it.
    """
    links = []
    for top, folders, files, here in os.fwalk(folder):
        for name in (".", *folders, *files):
            with contextlib.suppress(FileNotFoundError):  # a program that is ending removes its files
                found = os.stat(name, dir_fd=here, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                    target = os.readlink(name, dir_fd=here) if stat.S_ISLNK(found.st_mode) else ""
                    if known is not None and (f"{top}/{name}", target) not in known:
                        os.unlink(name, dir_fd=here)
                        continue
                    links.append((f"{top}/{name}", target))
                if found.st_uid == giver != taker:
                    os.chown(name, taker, taker, dir_fd=here, follow_symlinks=False)
    return links


def _opened(log: Path) -> BinaryIO:
    """Open a log that lies in a program's folder: never through a link that an earlier program has put there.

    Raises:
        BenchmarkFailed: it is such a link.
    """
    try:
        return open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "ab")
    except OSError as error:
        raise BenchmarkFailed(f"expected to write {log}, found: {error.strerror}; remove it") from None


def last_line(log: Path) -> str:
    """Return the last line that a program has printed."""
    printed = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return printed[-1] if printed else "no message"


async def _let_through(
    control: socket.socket, relays: Mapping[int, Relay], listening: contextlib.AsyncExitStack
) -> None:
    """Take the sockets of a program's loopback, have relays listen on them, and let the program begin."""
    message, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, control, _MOST_MESSAGE_BYTES, len(relays))
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if message != b"ready" or len(sockets) != len(relays):
        raise BenchmarkFailed(_cannot_confine(message.decode(errors="replace") or "its launcher ended"))
    for relay, each in zip(relays.values(), sockets, strict=True):
        await listening.enter_async_context(relay.listening(each))
    control.send(b"go")
    if failed := await asyncio.to_thread(control.recv, _MOST_MESSAGE_BYTES):
        raise BenchmarkFailed(f"expected a program to begin, found: {failed.decode(errors='replace')}")


def _cannot_confine(found: str) -> str:
    return (
        "expected a machine that can confine a harness, which runs what a model wrote (Linux 5.12, with user "
        f"namespaces), found: {found}; the harness was not run: see to it that `unshare --user --net true` works"
    )


def _interpreter() -> str:
    """Return the interpreter that environments are made from."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def _interpreter_folders() -> list[Path]:
    """Return what an environment's interpreter needs beside the environment.

    Raises:
        BenchmarkFailed: the user's home lies in there.
    """
    system, home = Path("/usr"), Path.home().resolve()
    found = {Path(sys.base_prefix), Path(sys.base_exec_prefix), Path(_interpreter()).parents[1], system}
    for folder in found:
        if home.is_relative_to(folder.resolve()):
            raise BenchmarkFailed(
                f"expected a Python that is installed apart from the user's home, which no harness may read, found "
                f"{home} in {folder}; the harness was not run: use another Python, in a folder of its own"
            )
    return sorted(found - {system})


def _package_root() -> str:
    found = importlib.util.find_spec("sandbox")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parents[1])
