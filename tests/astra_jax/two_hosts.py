"""Two processes that are the two hosts of one job, and find each other over loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence

from tests.astra_jax.killed_process import ROOT


@contextlib.contextmanager
def two_hosts(
    arguments: Sequence[str],
    *,
    devices_per_host: int,
    of_host: tuple[Sequence[str], Sequence[str]] = ((), ()),
    variables: Sequence[Mapping[str, str]] = ({}, {}),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run `python ARGUMENTS` twice; each is told how to join the other, and neither outlives the context.

    `of_host` are further arguments, and `variables` those of the environment, of each host its own.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {**os.environ, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": "2"}
    shared["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices_per_host}"
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *arguments, *of_host[host]],
                    cwd=ROOT,
                    env={**shared, **variables[host], "JAX_PROCESS_ID": str(host)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for host in range(2)
        ]
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return the standard error of each process.

    Raises:
        AssertionError: one did not exit with 0.
    """
    errors = [process.communicate(timeout=900)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return errors
