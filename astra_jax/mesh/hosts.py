"""The hosts of a run: they join before anything else touches JAX, end together, and share a disk.

Decided: docs/decisions/hosts.md, “All hosts end 30 seconds after one is gone”.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from astra_jax.config import ConfigError
from astra_jax.errors import AstraError, UsageError
from astra_jax.mesh.watch import HostWatch, patience_seconds
from synthesis.run.places import address_of

T = TypeVar("T")

_END_WITHIN_MS = 5000
"""Milliseconds in which hosts that fail for the same reason all do so."""
_HEARTBEAT_SECONDS = 60
"""Seconds after which JAX aborts all hosts of which one is gone, if no `HostWatch` has ended them before."""
_PIECE_BYTES = 1 << 20
_SHARED_WITHIN_SECONDS = 5.0
"""Seconds after which a network disk certainly shows a new file to other hosts."""


class HostFailed(AstraError):
    """Another host of this job has failed, is gone, or was never found; the message says what is known."""


class HostsEnd(AstraError):
    """A signal at one of several hosts ends all of them, in the middle of a computation of all."""


_times_asked = itertools.count(1)
_watches: list[HostWatch] = []
"""The watch of this job, while it runs."""


def hosts_are_to_end() -> bool:
    """Say whether a signal at any host ends all of them here: each asks equally often, and all hear the same."""
    host_goes_on()
    # JAX ends all hosts when they ask the next time after the latest at which any has asked (0 if none has).
    return multihost_utils.reached_preemption_sync_point(next(_times_asked))


def host_goes_on() -> None:
    """Note that this host goes on: one that does not when all others do is named, after a while, by all of them."""
    for watch in _watches:
        watch.step()


def stood_still_seconds() -> float:
    """Return for how long this host's process has not run since the job began: stopped, or without a core."""
    return sum(watch.still_seconds for watch in _watches)


def join_hosts() -> None:
    """Join the other hosts of this job, before anything else touches JAX; a host that is alone stays alone.

    Cloud TPU, Slurm and Kubernetes announce the hosts. Elsewhere three variables of the environment do, on every
    host: JAX_COORDINATOR_ADDRESS (host:port of the first), JAX_NUM_PROCESSES, JAX_PROCESS_ID.

    Raises:
        ConfigError: one of the three is missing or makes no sense.
        HostFailed: a cluster is announced, but its announcement cannot be used.
    """
    announced = _announced_by_environment()
    try:
        jax.distributed.initialize(**announced, heartbeat_timeout_seconds=_HEARTBEAT_SECONDS)
    except (ValueError, RuntimeError) as error:
        # JAX says this if no cluster is announced.
        if "coordinator_address should be defined" not in str(error):
            raise HostFailed(f"the hosts of this job did not find each other; check its cluster: {error}") from error


def are_hosts_announced() -> bool:
    """Say whether the environment names this process as one host of a job."""
    return "JAX_COORDINATOR_ADDRESS" in os.environ


def _announced_by_environment() -> dict[str, Any]:
    """Return this host's number and the number of hosts, as the three variables say; nothing without them."""
    if not are_hosts_announced():
        return {}
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if missing := [name for name in names if name not in os.environ]:
        raise ConfigError(f"JAX_COORDINATOR_ADDRESS is set without {' and '.join(missing)}; set all three")
    texts = [os.environ[name] for name in names]
    if not all(text.isdecimal() for text in texts) or not int(texts[1]) < int(texts[0]):
        raise ConfigError(
            f"expected JAX_NUM_PROCESSES = n and JAX_PROCESS_ID = 0 … n - 1, found {texts[0]!r} and {texts[1]!r}"
        )
    address = os.environ["JAX_COORDINATOR_ADDRESS"]
    port = address.rpartition(":")[2]
    if ":" not in address or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise ConfigError(f"expected JAX_COORDINATOR_ADDRESS = host:port of the first host, found {address!r}")
    return {"num_processes": int(texts[0]), "process_id": int(texts[1])}


@contextlib.contextmanager
def ending_with_other_hosts() -> Iterator[None]:
    """End a failed host soon, where JAX alone would wait 300 s for the other hosts. Every host calls it.

    Hosts that wait in a computation or a save for one that is gone, or that does nothing, are ended by a `HostWatch`.

    Raises:
        HostFailed: a computation of all hosts has failed because one is gone.
    """
    if jax.process_count() == 1:
        yield
        return
    try:
        with HostWatch(patience_seconds()) as watch:
            _watches.append(watch)
            try:
                yield
            finally:
                _watches.remove(watch)
    except (Exception, KeyboardInterrupt) as error:
        is_lost = isinstance(error, jax.errors.JaxRuntimeError | ValueError) and "Gloo" in str(error)
        if is_lost or not _all_hosts_end():
            # At the end of a process JAX waits for all others; this comes before.
            code = 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, UsageError) else 1
            atexit.register(_leave, code)
        if is_lost:
            raise HostFailed(
                f"one of the {jax.process_count()} hosts is gone: it has failed and says why, or it was killed, or its "
                "machine or network is down; the same command on every host goes on from the last checkpoint "
                f"({' '.join(str(error).split())[:200]})"
            ) from error
        raise


def _all_hosts_end() -> bool:
    import orbax.checkpoint as ocp  # 28 MB, which a process that only decodes does without

    try:
        ocp.multihost.get_barrier_sync_fn()(key="a host has failed", timeout_ms=_END_WITHIN_MS)
    except jax.errors.JaxRuntimeError:
        return False
    return True


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def enter_on_all_hosts(stack: contextlib.ExitStack, context: contextlib.AbstractContextManager[T], what: str) -> T:
    """Enter a context on every host; if one of them cannot, all end. Every host calls it.

    Raises:
        HostFailed: another host could not enter it; the message names the context by `what`.
    """
    failure, entered = None, None
    try:
        entered = stack.enter_context(context)
    except Exception as error:  # noqa: BLE001 - raised when the others have heard of it
        failure = error
    if jax.process_count() > 1:
        failed_H = gather_from_hosts(np.array(failure is not None))
        if failure is None and failed_H.any():
            hosts = ", ".join(map(str, np.flatnonzero(failed_H)))
            raise HostFailed(f"host {hosts} could not get {what}; all {len(failed_H)} hosts need it")
    if failure is not None:
        raise failure
    return entered  # type: ignore[return-value]


def gather_from_hosts(own: np.ndarray) -> np.ndarray:
    """Return the arrays of all hosts in their order [H, …], all of one shape and type. Every host calls it."""
    return np.asarray(multihost_utils.process_allgather(own)).reshape(jax.process_count(), *own.shape)


def gather_bytes_from_hosts(own: bytes) -> list[bytes]:
    """Return the bytes of all hosts in their order. Every host calls it."""
    if jax.process_count() == 1:
        return [own]
    counts = gather_from_hosts(np.array(len(own), np.int32))
    # Sent in pieces: one program serves any length, and takes little memory of the devices.
    padded = np.zeros(-(-int(counts.max()) // _PIECE_BYTES) * _PIECE_BYTES, np.uint8)
    padded[: len(own)] = np.frombuffer(own, np.uint8)
    pieces = [gather_from_hosts(piece) for piece in padded.reshape(-1, _PIECE_BYTES)]
    return [b"".join(piece[host] for piece in pieces)[:count] for host, count in enumerate(counts)]


def require_shared_folder(out: Path) -> None:
    """Raise ConfigError on all hosts unless each can write in `out` and sees a file of the first; all hosts call it."""
    if jax.process_count() == 1 or address_of(out):  # a host that may not write to a bucket says so itself
        return
    # A name that no earlier attempt has used: a file left by one would vouch for a disk that is not shared.
    random_words = multihost_utils.broadcast_one_to_all(np.frombuffer(secrets.token_bytes(8), np.uint32))
    folder, is_new = out / f".hosts-{random_words.tobytes().hex()}", not out.exists()
    try:
        # All have written before any looks: a network disk remembers for a while that a file was missing.
        _require_of_all_hosts(_can_write(folder / str(jax.process_index())), f"cannot write in {out}; allow it")
        _require_of_all_hosts(
            _appears(folder / "0"), f"does not see the files of host 0 in {out}; mount one folder there"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with contextlib.suppress(OSError):  # not empty, or taken away by another host
                out.rmdir()


def _require_of_all_hosts(is_so: bool, fault_and_advice: str) -> None:
    is_so_H = multihost_utils.process_allgather(np.int32(is_so))
    if not is_so_H.all():
        hosts = ", ".join(map(str, np.flatnonzero(is_so_H == 0)))
        raise ConfigError(f"host {hosts} {fault_and_advice} on all {len(is_so_H)} hosts")


def _can_write(file: Path) -> bool:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    except OSError:
        return False
    return True


def _appears(file: Path) -> bool:
    deadline = time.monotonic() + _SHARED_WITHIN_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def host_folder(out: Path) -> Path:
    """Return where this host writes its metrics: the first in the run's folder, host i in `hosts/i` below it."""
    return out if jax.process_index() == 0 else out / "hosts" / str(jax.process_index())
