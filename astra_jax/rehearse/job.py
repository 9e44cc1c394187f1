"""The hosts of one job as processes of this machine, each with fake devices; they find each other over loopback."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path


@contextlib.contextmanager
def hosts_of_job(
    arguments_H: Sequence[Sequence[str]],
    *,
    devices_per_host: int,
    variables_H: Sequence[Mapping[str, str]],
    logs_H: Sequence[Path] | None = None,
    xla_flags: str = "",
    folder: Path | None = None,
) -> Iterator[list[subprocess.Popen[str]]]:
    """Run `python ARGUMENTS` once a host; each is told how to join the others, and none outlives the context.

    Args:
      arguments_H: arguments of each host.
      devices_per_host: fake devices of each host. With only one JAX does not keep programs of all hosts in order, and
        their messages may be taken for each other's.
      variables_H: variables of the environment of each host, beside those of this process.
      logs_H: file of each host for all that it prints; without them pipes.
      xla_flags: further flags of the compiler.
      folder: working directory; by default that of this process.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shared = {**os.environ, "JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(len(arguments_H))}
    shared["XLA_FLAGS"] = f"{xla_flags} --xla_force_host_platform_device_count={devices_per_host}"
    shared["JAX_PLATFORMS"] = "cpu"
    with contextlib.ExitStack() as stack:
        processes = []
        for host, (arguments, variables) in enumerate(zip(arguments_H, variables_H, strict=True)):
            log = subprocess.PIPE if logs_H is None else stack.enter_context(logs_H[host].open("w", encoding="utf-8"))
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env={**shared, **variables, "JAX_PROCESS_ID": str(host)},
                stdout=log,
                stderr=log,
                text=True,
            )
            processes.append(stack.enter_context(process))
        try:
            yield processes
        finally:
            for process in processes:
                process.kill()
