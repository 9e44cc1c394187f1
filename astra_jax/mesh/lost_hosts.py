"""Whether the other hosts of a job are still there: each holds a connection to the first, which ends with its host.

A computation that all hosts share does not end without one of them on a TPU, and on CPUs not where it waits for a new
group of hosts to form; JAX's own heartbeats end the process after 100 s, with words of many lines.

Decided: docs/decisions/hosts.md, “Hosts hold connections that end with them”.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

import psutil

_CONNECT_SECONDS = 5.0
_LEAVE_SECONDS = 2.0
_KEEP_ALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 4}
"""A host that went down without a word is noticed after 20 + 4 × 10 = 60 s."""
_GOODBYE = b"."


class OtherHosts:
    """The connections of one host: the first has one to each other host, these have one to the first.

    Args:
        number: of this host, from 0.
        count: of all hosts.
        gather: returns what each host gives, in their order; all call it.
        when_lost: called once, on a thread of its own, when a connection ends without a goodbye.
    """

    def __init__(
        self, number: int, count: int, gather: Callable[[bytes], Sequence[bytes]], when_lost: Callable[[], None]
    ) -> None:
        self._when_lost = when_lost
        self._leaving = threading.Lock()
        if number == 0:
            self._connections = _accepted(count - 1, gather)
        else:
            self._connections = _connected(gather)
        for connection in self._connections:
            connection.settimeout(None)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEP_ALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
        threading.Thread(target=self._watch, name="other hosts", daemon=True).start()

    @property
    def num_watched(self) -> int:
        """How many hosts' ends are noticed here; fewer than there are where a connection did not come about."""
        return len(self._connections)

    def leave(self) -> None:
        """Say goodbye: from now on nobody takes this host for lost, nor this host any other."""
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
                        self._when_lost()
                        return


def _said_goodbye(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == _GOODBYE
    except OSError:  # reset, or nothing heard for a minute
        return False


def _accepted(count: int, gather: Callable[[bytes], Sequence[bytes]]) -> list[socket.socket]:
    """Tell all hosts where this one listens, and wait a while for each of them."""
    secret = secrets.token_bytes(16)
    with socket.create_server(("", 0), backlog=count) as listener:
        port = listener.getsockname()[1]
        gather(json.dumps({"addresses": _own_addresses(), "port": port, "secret": secret.hex()}).encode())
        deadline = time.monotonic() + _CONNECT_SECONDS
        connections: list[socket.socket] = []
        while len(connections) < count and (left := deadline - time.monotonic()) > 0:
            listener.settimeout(left)
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            connection.settimeout(_CONNECT_SECONDS)
            # Another program may have come, or a host that lost its way here by an address that each machine has.
            with contextlib.suppress(OSError):
                if secrets.compare_digest(connection.recv(len(secret), socket.MSG_WAITALL), secret):
                    connection.sendall(secret)
                    connections.append(connection)
                    continue
            connection.close()
    return connections


def _connected(gather: Callable[[bytes], Sequence[bytes]]) -> list[socket.socket]:
    """Hear where the first host listens, and connect to it; nothing where no address leads there."""
    first = json.loads(gather(b"")[0])
    secret = bytes.fromhex(first["secret"])
    for address in first["addresses"]:
        with contextlib.suppress(OSError):
            connection = socket.create_connection((address, first["port"]), timeout=1.0)
            with contextlib.suppress(OSError):
                connection.sendall(secret)
                if connection.recv(len(secret), socket.MSG_WAITALL) == secret:
                    return [connection]
            connection.close()
    return []


def _own_addresses() -> list[str]:
    """IPv4, those that only this machine knows last."""
    addresses = [
        each.address for of_card in psutil.net_if_addrs().values() for each in of_card if each.family == socket.AF_INET
    ]
    return sorted(addresses, key=lambda address: address.startswith("127."))
