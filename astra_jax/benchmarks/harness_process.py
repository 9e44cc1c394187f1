"""A program of a harness, run to its end: in a folder of its own, without this process's variables."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from astra_jax.benchmarks.results import BenchmarkFailed

_END_SECONDS = 10.0


async def run_harness(
    command: Sequence[str], *, folder: Path, log: Path, variables: Mapping[str, str], said: str = ""
) -> None:
    """Run one program that is told `said`; what it prints is added to `log`.

    Cancelled, it ends the program and all that it started.

    It gets PATH, a home below `folder` and `variables`, and nothing else: no key, no proxy, no setting of the user.

    Raises:
        BenchmarkFailed: it does not end well.
    """
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
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
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
        printed = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        raise BenchmarkFailed(
            f"expected {Path(command[0]).name} {command[1]} to end well, found exit code {code}: "
            f"{printed[-1] if printed else 'no message'}; see {log}"
        )
