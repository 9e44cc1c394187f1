"""A fake network for tests and benchmarks: a proxy in front of a sandbox that loses some of the replies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping

SHARES = {"hang": 0.05, "http_500": 0.05, "cut": 0.02}
"""The share of all replies that each fault loses."""


def fault_of(drawn: float, shares: Mapping[str, float]) -> str:
    """Return the fault that a number of [0, 1) stands for; mostly none.

    >>> [fault_of(drawn, SHARES) for drawn in (0.01, 0.07, 0.11, 0.5)]
    ['hang', 'http_500', 'cut', '']
    """
    for fault, share in shares.items():
        if drawn < share:
            return fault
        drawn -= share
    return ""


class FaultyProxy:
    """Passes calls on to `service`; `fault` decides the fate of each reply by the body of its request."""

    def __init__(self, fault, service=""):
        self.service, self._fault = service, fault
        self.replies = self.connections = self.hanging = 0
        self.lost: Counter[str] = Counter()
        self._server: asyncio.Server | None = None

    async def __aenter__(self):
        """Listen; return the address."""
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0, backlog=1024)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_):
        """Listen no more."""
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _pass_on(self, reader, writer):
        self.connections += 1
        writers = [writer]
        try:
            host, port = self.service.removeprefix("http://").split(":")
            service_reader, service_writer = await asyncio.open_connection(host, int(port))
            writers.append(service_writer)
            while True:
                try:
                    head, body = await _message(reader)
                except asyncio.IncompleteReadError:  # the caller has hung up
                    return
                service_writer.write(head + body)
                reply = b"".join(await _message(service_reader))  # it has run, also if its reply gets lost
                self.replies += 1
                if fault := self._fault(body):
                    self.lost[fault] += 1
                match fault:
                    case "hang":
                        self.hanging += 1
                        await reader.read()  # until its caller hangs up
                        self.hanging -= 1
                        return
                    case "http_500":
                        reply = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\noops\n"
                    case "cut":
                        writer.write(reply[: random.Random(body).randrange(1, len(reply))])
                        return
                writer.write(reply)
        except (OSError, asyncio.IncompleteReadError):
            self.lost["service_dead"] += 1
        finally:
            for open_writer in writers:
                open_writer.close()
            self.connections -= 1


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Return head and body of the next request or reply.

    Raises:
        IncompleteReadError: it ends first.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return head, await reader.readexactly(int(length.partition(b":")[2]))
