"""A watch over the hosts of a job: if all stand still, the one that has come least far is named, and all end.

A host that is killed, or whose machine is gone, is noticed by JAX. A host that lives and does nothing, because a disk
or a lock never answers, is not: the others wait for it in a computation without end.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import jax

from astra_jax.config import ConfigError

PATIENCE_VARIABLE: Final = "ASTRA_HOSTS_PATIENCE_SECONDS"
_PATIENCE_SECONDS: Final = 3600.0
"""Seconds in which no host asks for the next program: longer than the longest compilation, save or restoration."""
_FOLDER: Final = "astra/steps/"
_END_SECONDS: Final = 5.0


def patience_seconds() -> float:
    """Return how long a job may stand still: ASTRA_HOSTS_PATIENCE_SECONDS, or an hour.

    Raises:
        ConfigError: the variable is no number above 0.
    """
    text = os.environ.get(PATIENCE_VARIABLE) or str(_PATIENCE_SECONDS)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,3})?", text) or float(text) == 0:
        raise ConfigError(f"{PATIENCE_VARIABLE}: expected seconds above 0, found {text!r}")
    return float(text)


def told(seconds: float, steps_of_hosts: Mapping[int, int], num_hosts: int) -> str:
    """Name the hosts that have come least far; those that have told nothing have come nowhere.

    >>> told(3600, {0: 18, 1: 17, 3: 18}, 4)
    'no host has gone on for 3600 s; host 2 has come least far (0 programs, others 18): its process lives but is idle'
    >>> told(3600, {0: 18, 1: 18}, 2)
    'no host has gone on for 3600 s; all 2 have come to program 18: it does not end, or a host is late for the next'
    """
    steps = {host: steps_of_hosts.get(host, 0) for host in range(num_hosts)}
    least, most = min(steps.values()), max(steps.values())
    still = f"no host has gone on for {seconds:.0f} s"
    if least == most:
        return f"{still}; all {num_hosts} have come to program {most}: it does not end, or a host is late for the next"
    last = ", ".join(str(host) for host, step in steps.items() if step == least)
    return f"{still}; host {last} has come least far ({least} programs, others {most}): its process lives but is idle"


class HostWatch:
    """A thread that tells the other hosts how far this one has come, and ends this process if it stands still."""

    def __init__(self, patience: float):
        """Wait `patience` seconds for the next step."""
        self._patience, self._steps = patience, 0
        self._since = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="host watch", daemon=True)

    def __enter__(self) -> HostWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join(timeout=_END_SECONDS)  # it may wait for a service that is gone

    def step(self) -> None:
        """Note that this host goes on to its next program."""
        self._steps += 1
        self._since = time.monotonic()

    def _watch(self) -> None:
        # Without the service, which ends with the first host, JAX ends the others by itself.
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._tell_and_look()

    def _tell_and_look(self) -> None:
        client, host = _client(), jax.process_index()
        often = min(5.0, self._patience / 4)
        told_steps = -1
        while not self._closed.wait(often):
            if self._steps != told_steps:
                told_steps = self._steps
                client.key_value_set(f"{_FOLDER}{host}", str(told_steps), allow_overwrite=True)
            if (seconds := time.monotonic() - self._since) > self._patience:
                # Hosts began to wait at different times: all have told how far they are before any reads it.
                if self._closed.wait(2 * often):
                    return
                if time.monotonic() - self._since > self._patience:
                    self._end(client, seconds)

    def _end(self, client: Any, seconds: float) -> None:
        steps = {int(key.rpartition("/")[2]): int(step) for key, step in client.key_value_dir_get(_FOLDER)}
        print(
            f"astra: HostFailed: {told(seconds, steps, jax.process_count())}; look at its machine. The same command on "
            f"every host goes on from the last checkpoint; {PATIENCE_VARIABLE} allows more time",
            flush=True,
            file=sys.stderr,
        )
        os._exit(1)


def _client() -> Any:
    """Return JAX's client of the service that the hosts of a job share, which has no public name."""
    from jax._src import distributed

    return distributed.global_state.client
