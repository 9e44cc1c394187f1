"""A program of a harness, run to its end: confined, in a folder and with variables of its own.

Harnesses run text of a model as Python. So every program of theirs reads /usr, the interpreter and the harness alone,
writes into its folder, and reaches only our relays. It ends when this process ends, also when that is killed.

Decided: docs/decisions/benchmarks.md, “Programs of others are confined; where that cannot be, no harness runs”.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed
from sandbox.program import ProgramNotConfined, cannot_confine, confined_command, lent

AGENT_PORT: Final = 8001
USER_PORT: Final = 8002
"""Ports of the loopback that each program has to itself: the same in every run."""
_END_SECONDS: Final = 10.0
_MOST_MESSAGE_BYTES: Final = 4096


def relay_url(port: int) -> str:
    """Return the address of the relay that is at a port of a program's loopback.

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
    """Run one program that reads `said` as its input; its output is added to `log`.

    It may read `readable` and the interpreter, write into `folder`, and ask the `relays` at the ports of its loopback.
    `cpu_seconds` and `memory_bytes` bound each of its processes. If this is cancelled, the program and all processes
    that it started end. Started by root, it runs as the sandbox's user, which owns the files of `folder` for that time.

    It gets PATH, a home below `folder` and `variables`, and nothing else: no key, no proxy, no setting of the user.

    Raises:
        ProgramFailed: it does not end well.
        BenchmarkFailed: this machine cannot confine it, so that it is not run.
    """
    relays = relays or {}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        try:
            confined = confined_command(
                command,
                folder=folder,
                readable=readable,
                ports=list(relays),
                control_fd=theirs.fileno(),
                cpu_seconds=cpu_seconds,
                memory_bytes=memory_bytes,
            )
        except ProgramNotConfined as error:
            raise BenchmarkFailed(f"{error}; the harness was not run") from None
        (folder / "home").mkdir(parents=True, exist_ok=True)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(folder / "home"),
            "LANG": "C.UTF-8",
            "NO_PROXY": "127.0.0.1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **variables,
        }
        with _opened(log) as output, lent(folder):
            process = await asyncio.create_subprocess_exec(
                *confined,
                cwd=folder,
                env=environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(theirs.fileno(),),
            )
            theirs.close()
            try:
                async with contextlib.AsyncExitStack() as listening:
                    await _let_through(ours, relays, listening)
                    assert process.stdin is not None
                    process.stdin.write(said.encode())
                    process.stdin.close()
                    code = await process.wait()
            finally:
                # All processes that it started end as well, also those that would outlive it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
                if process.returncode is None:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(process.wait(), _END_SECONDS)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
    if code:
        printed = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        said = printed[-1] if printed else "no message"
        name = f"{Path(command[0]).name} {command[1]}"
        raise ProgramFailed(f"{name} ended with exit code {code}: {said}; see {log}", said)


def _opened(log: Path) -> BinaryIO:
    """Open a log that lies in a program's folder: never through a link that an earlier program has put there."""
    try:
        return open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644), "ab")
    except OSError as error:
        raise BenchmarkFailed(f"{log} cannot be written: {error.strerror}; remove it") from None


async def _let_through(
    control: socket.socket, relays: Mapping[int, Relay], listening: contextlib.AsyncExitStack
) -> None:
    """Take the sockets of a program's loopback, have relays listen on them, and let the program begin."""
    message, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, control, _MOST_MESSAGE_BYTES, len(relays))
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if message != b"ready" or len(sockets) != len(relays):
        found = message.decode(errors="replace") or "its launcher ended"
        raise BenchmarkFailed(f"{cannot_confine(found)}; the harness was not run")
    for relay, each in zip(relays.values(), sockets, strict=True):
        await listening.enter_async_context(relay.listening(each))
    control.send(b"go")
    if failed := await asyncio.to_thread(control.recv, _MOST_MESSAGE_BYTES):
        raise BenchmarkFailed(f"a program did not begin: {failed.decode(errors='replace')}")
