"""Whether the other hosts of a job are still there: each holds a connection to the first, which ends with either.

On a TPU a computation that all hosts share never ends when one of them is gone, and a host that waits for anything else
of another never does. JAX's own heartbeats end the process after 100 s, with words of many lines.

    first    listens ── hears the secret ── says it, too ── hears that it was heard ── watches
    another             says the secret ─── hears it ────── says so ────────────────── watches

Decided: docs/decisions/hosts.md, “Each host holds a connection to the first host, and its end is the host's end”.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

import psutil

_CONNECT_SECONDS = 5.0
_REPLY_SECONDS = 1.0
"""One that connects speaks at once; who is silent holds up the others for so long."""
_LEAVE_SECONDS = 2.0
_KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4}
"""A host that went down without a word is noticed after 20 + 4 × 10 = 60 s, where the system has these options."""
_SECRET_BYTES = 16
_HEARD, _GOODBYE = b"!", b"."


class OtherHosts:
    """The connections of one host: the first has one to each other host, these have one to the first.

    Args:
        number: of this host, from 0.
        count: of all hosts.
        gather: returns what each host gives, in their order; all call it.
        when_lost: called once, on a thread of its own, when a connection ends without a goodbye. The other
            connections have been cut by then: those hosts learn of it from this one.
    """

    def __init__(
        self, number: int, count: int, gather: Callable[[bytes], Sequence[bytes]], when_lost: Callable[[], None]
    ) -> None:
        self._when_lost = when_lost
        self._leaving = threading.Lock()
        self._connections = _accepted(count - 1, gather) if number == 0 else _connected(gather)
        for connection in self._connections:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        threading.Thread(target=self._watch, name="other hosts", daemon=True).start()

    @property
    def num_watched(self) -> int:
        """How many hosts' ends are noticed here; fewer than there are where a connection did not come about."""
        return len(self._connections)

    def leave(self) -> None:
        """Say goodbye: from now on nobody takes this host for lost, nor this host any other.

        When the first has left, the others no longer hear of one another.
        """
        self.fall_silent()
        for connection in self._connections:
            with contextlib.suppress(OSError):  # the other is gone, well or not
                connection.sendall(_GOODBYE)
                connection.shutdown(socket.SHUT_WR)

    def fall_silent(self) -> None:
        """Notice nothing more, and say no goodbye: the others shall see that this host is gone."""
        # Who has lost another is leaving, on the other thread, and has said why: nothing is added to it.
        self._leaving.acquire(timeout=_LEAVE_SECONDS)

    def _watch(self) -> None:
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for connection in self._connections:
                stack.enter_context(connection)
                selector.register(connection, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    selector.unregister(key.fileobj)
                    if not _said_goodbye(key.fileobj) and self._leaving.acquire(blocking=False):
                        for connection in self._connections:
                            with contextlib.suppress(OSError):  # that of the lost one
                                connection.shutdown(socket.SHUT_RDWR)
                        self._when_lost()
                        return


def _said_goodbye(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == _GOODBYE
    except OSError:  # reset, or nothing heard for a minute
        return False


def _accepted(count: int, gather: Callable[[bytes], Sequence[bytes]]) -> list[socket.socket]:
    """Tell all hosts where this one listens, and wait a while for each of them."""
    secret = secrets.token_bytes(_SECRET_BYTES)
    connections: list[socket.socket] = []
    try:
        listener = socket.create_server(("", 0), backlog=count)
    except OSError:  # the others wait to be told something
        gather(json.dumps({"addresses": []}).encode())
        return connections
    with listener:
        port = listener.getsockname()[1]
        gather(json.dumps({"addresses": _own_addresses(), "port": port, "secret": secret.hex()}).encode())
        deadline = time.monotonic() + _CONNECT_SECONDS
        while len(connections) < count and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            connection.settimeout(_REPLY_SECONDS)
            # Another program may have come, or a host that lost its way here by an address that each machine has; and
            # a host that has given up waiting for this reply is none that could be lost.
            with contextlib.suppress(OSError):
                if secrets.compare_digest(_received(connection, len(secret)), secret):
                    connection.sendall(secret)
                    if _received(connection, 1) == _HEARD:
                        connections.append(connection)
                        continue
            connection.close()
    return connections


def _connected(gather: Callable[[bytes], Sequence[bytes]]) -> list[socket.socket]:
    """Hear where the first host listens, and connect to it; nothing where no address leads there."""
    first = json.loads(gather(b"")[0])
    coordinator = os.environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]  # which leads to the first
    addresses = [*filter(None, [coordinator]), *first["addresses"]] if first["addresses"] else []
    deadline = time.monotonic() + _CONNECT_SECONDS
    for address in addresses:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((address, first["port"]), timeout=_REPLY_SECONDS)
            connection.settimeout(max(_REPLY_SECONDS, deadline - time.monotonic()))
            with contextlib.suppress(OSError):
                secret = bytes.fromhex(first["secret"])
                connection.sendall(secret)
                if _received(connection, len(secret)) == secret:
                    connection.sendall(_HEARD)
                    return [connection]
            connection.close()
    return []


def _received(connection: socket.socket, count: int) -> bytes:
    """Return so many bytes, fewer where the other ends the connection before."""
    received = b""
    while len(received) < count and (more := connection.recv(count - len(received))):
        received += more
    return received


def _own_addresses() -> list[str]:
    """IPv4, those that only this machine knows last."""
    addresses = [
        each.address for of_card in psutil.net_if_addrs().values() for each in of_card if each.family == socket.AF_INET
    ]
    return sorted(addresses, key=lambda address: address.startswith("127."))
