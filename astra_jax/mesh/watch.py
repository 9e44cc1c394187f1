"""A watch over the hosts of a job: one that is gone, or that all others wait for, is named, and all end.

A host that is killed, or whose machine is gone, gives no sign of life. A host that lives and does nothing, because a
disk or a lock never answers, does: the others wait for it in a computation without end.

Decided: docs/decisions/hosts.md, “All hosts end 30 seconds after one is gone”.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jax

from astra_jax.config import ConfigError

PATIENCE_VARIABLE: Final = "ASTRA_HOSTS_PATIENCE_SECONDS"
_PATIENCE_SECONDS: Final = 3600.0
"""Seconds in which no host asks for the next program: longer than the longest compilation, save or restoration."""
_GONE_SECONDS: Final = 30.0
"""Seconds without a sign of life after which a host is taken for gone."""
_LOOK_SECONDS: Final = 5.0
_TICK_SECONDS: Final = 0.1
_FOLDER: Final = "astra/signs/"
_ENDED: Final = "ended"
"""Last sign of a host that has ended as it should."""
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


def told_gone(hosts: Sequence[int], num_hosts: int) -> str:
    """Name the hosts that are gone.

    >>> told_gone([3], 4)
    'one of the 4 hosts is gone: host 3 was killed, or its machine or network is down'
    """
    names = ", ".join(map(str, sorted(hosts)))
    return f"one of the {num_hosts} hosts is gone: host {names} was killed, or its machine or network is down"


class HostWatch:
    """A thread that tells the other hosts how far this one has come, and ends this process if one of them is lost."""

    def __init__(self, patience: float):
        """Wait `patience` seconds for the next step."""
        self._patience, self._steps = patience, 0
        self._since = time.monotonic()
        self.still_seconds = 0.0
        """Seconds in which this process did not run: it was stopped, or other processes had its cores."""
        self._closed, self._has_failed = threading.Event(), False
        self._thread = threading.Thread(target=self._watch, name="host watch", daemon=True)

    def __enter__(self) -> HostWatch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._has_failed = kind is not None
        self._closed.set()
        self._thread.join(timeout=_END_SECONDS)  # it may wait for a service that is gone

    def step(self) -> None:
        """Note that this host goes on to its next program."""
        self._steps += 1
        self._since = time.monotonic()

    def _watch(self) -> None:
        client, own = _client(), f"{_FOLDER}{jax.process_index()}"
        often = min(_LOOK_SECONDS, self._patience / 4)
        seen: dict[int, str] = {}
        looks: dict[int, int] = {}
        looked = time.monotonic()
        for sign in itertools.count():
            while time.monotonic() < looked + often:
                if self._is_closed_within_a_tick():
                    if not self._has_failed:
                        with contextlib.suppress(jax.errors.JaxRuntimeError):
                            client.key_value_set(own, f"{self._steps} {_ENDED}", allow_overwrite=True)
                    return
            looked = time.monotonic()
            try:
                client.key_value_set(own, f"{self._steps} {sign}", allow_overwrite=True)
                signs = {int(key.rpartition("/")[2]): text for key, text in client.key_value_dir_get(_FOLDER)}
            except jax.errors.JaxRuntimeError:
                continue  # the service is late; if it has ended with the first host, JAX ends this one
            # Counted in looks, not in seconds: all hosts may have been stopped, and go on together.
            is_same = {host: text == seen.get(host) and not text.endswith(_ENDED) for host, text in signs.items()}
            looks = {host: looks.get(host, 0) + 1 if same else 0 for host, same in is_same.items()}
            seen = signs
            if gone := [host for host in signs if looks[host] * often >= _GONE_SECONDS]:
                _end(told_gone(gone, jax.process_count()))
            # Hosts began to wait at different times: all have told how far they are before any speaks.
            if looked - self._since > self._patience + 2 * often:
                steps = {host: int(text.split()[0]) for host, text in signs.items()}
                still = told(self._patience, steps, jax.process_count())
                _end(f"{still}; {PATIENCE_VARIABLE} allows more time")

    def _is_closed_within_a_tick(self) -> bool:
        asked = time.monotonic()
        is_closed = self._closed.wait(_TICK_SECONDS)
        self.still_seconds += max(0.0, time.monotonic() - asked - _TICK_SECONDS)
        return is_closed


def _end(what: str) -> None:
    print(
        f"astra: HostFailed: {what}. The same command on every host goes on from the last checkpoint",
        flush=True,
        file=sys.stderr,
    )
    os._exit(1)


def _client() -> Any:
    """Return JAX's client of the service that the hosts of a job share, which has no public name."""
    from jax._src import distributed

    return distributed.global_state.client
