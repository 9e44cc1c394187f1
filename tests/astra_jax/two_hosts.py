"""Two processes that are the two hosts of one job, and find each other over loopback."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Mapping, Sequence

from astra_jax.rehearse.job import hosts_of_job
from tests.astra_jax.killed_process import ROOT


def two_hosts(
    arguments: Sequence[str],
    *,
    devices_per_host: int,
    of_host: tuple[Sequence[str], Sequence[str]] = ((), ()),
    variables: Sequence[Mapping[str, str]] = ({}, {}),
) -> contextlib.AbstractContextManager[list[subprocess.Popen[str]]]:
    """Run `python ARGUMENTS` twice; each is told how to join the other, and neither outlives the context.

    `of_host` are further arguments, and `variables` those of the environment, of each host its own.
    """
    return hosts_of_job(
        [[*arguments, *own] for own in of_host],
        devices_per_host=devices_per_host,
        variables_H=variables,
        folder=ROOT,
    )


def finish(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Return the standard error of each process.

    Raises:
        AssertionError: one did not exit with 0.
    """
    errors = [process.communicate(timeout=900)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return errors
