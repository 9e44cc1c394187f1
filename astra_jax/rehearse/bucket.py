"""A bucket on loopback: the package gcp-storage-emulator behind a door that can fail as a real one does."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from gcp_storage_emulator.server import create_server

logging.getLogger("gcp_storage_emulator").setLevel(logging.CRITICAL)


@dataclass
class Faults:
    """Faults of the bucket, drawn by chance; each is a share of requests."""

    rng: random.Random = field(default_factory=lambda: random.Random(0))
    unavailable: float = 0.0
    """Answered with 503, before anything was done."""
    cut: float = 0.0
    """Done, but the answer is cut after half of its bytes."""
    slow: float = 0.0
    """Answered after a fifth of a second."""
    stale: float = 0.0
    """Lists answered as they were when the same list was last asked for and told; the first one is empty."""
    is_down: bool = False
    """Every connection is closed without an answer."""
    stuck: str = ""
    """Name by which a client calls this machine, such as `localhost`: its requests wait until this is another."""
    injected: int = 0

    def drawn(self, *, is_list: bool) -> str:
        for name in ("unavailable", "cut", "slow", "stale"):
            if (is_list or name != "stale") and self.rng.random() < getattr(self, name):
                self.injected += 1
                return name
        return ""


@dataclass
class Bucket:
    """The address of the door, and its faults."""

    url: str
    faults: Faults


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


@contextlib.contextmanager
def served_bucket(name: str = "bucket") -> Iterator[Bucket]:
    """Serve an empty bucket while the context lasts."""
    emulator = create_server("127.0.0.1", 0, in_memory=True, default_bucket=name)
    emulator.start()
    faults, lock = Faults(), threading.Lock()
    told: dict[str, bytes] = {}
    port = emulator._api._httpd.server_address[1]

    class Door(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if faults.is_down:
                self.close_connection = True
                return
            while faults.stuck and str(self.headers.get("Host")).startswith(faults.stuck):
                time.sleep(0.1)
            is_list = self.command == "GET" and urlsplit(self.path).path.endswith("/o")
            with lock:
                fault = faults.drawn(is_list=is_list)
            if fault == "stale":
                self._answer(200, {"Content-Type": "application/json"}, told.get(self.path, b"{}"))
                return
            if fault == "unavailable":
                self._answer(503, {}, b"try again")
                return
            if fault == "slow":
                time.sleep(0.2)
            with lock:  # the emulator keeps all in one dictionary; preconditions are looked at and met in one go
                if self._is_taken(body):
                    self._answer(412, {"Content-Type": "application/json"}, b'{"error": {"code": 412}}')
                    return
                inner = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                inner.request(self.command, *self._in_one_part(body))
                reply = inner.getresponse()
                content, status, found = reply.read(), reply.status, dict(reply.getheaders())
                inner.close()
                if is_list:
                    told[self.path] = content
            if self.command == "GET" and (generation := self._generation()):  # which the emulator does not tell
                found["X-Goog-Generation"] = generation
                if parse_qs(urlsplit(self.path).query).get("ifGenerationNotMatch") == [generation]:
                    status, content = 304, b""
            if "Location" in found:  # of an upload in parts
                found["Location"] = found["Location"].replace(f":{port}", f":{door.server_port}")
            self._answer(status, found, content, is_cut=fault == "cut")

        def _in_one_part(self, body: bytes) -> tuple[str, bytes, dict[str, str]]:
            """Return path, body and headers of an upload without its parts, in which the emulator changes bytes."""
            named = ("connection", "content-length")
            headers = {key: value for key, value in self.headers.items() if key.lower() not in named}
            boundary = re.search(r'boundary="?([^";]+)', headers.get("Content-Type", ""))
            if boundary is None:
                return self.path, body, headers
            _, told, content, _ = body.split(f"--{boundary[1]}".encode())
            content = content.split(b"\n\n", 1)[1].removesuffix(b"\n")
            if not content:  # which it takes in parts alone
                return self.path, body, headers
            name = quote(json.loads(told.split(b"\n\n", 1)[1])["name"], safe="")
            path = self.path.replace("uploadType=multipart", f"uploadType=media&name={name}")
            return path, content, headers | {"Content-Type": "application/octet-stream"}

        def _generation(self) -> str | None:
            """Return the generation of the object that is asked for."""
            found = re.fullmatch(r".*/b/([^/]+)/o/([^/]+)", urlsplit(self.path).path)
            each = found and emulator._storage.objects.get(found[1], {}).get(unquote(found[2]))
            return str(each["generation"]) if each else None

        def _is_taken(self, body: bytes) -> bool:
            """Say whether an object that must be new is there: the emulator itself does not look."""
            query = parse_qs(urlsplit(self.path).query)
            if query.get("ifGenerationMatch") != ["0"]:
                return False
            names = [*query.get("name", []), *re.findall(rb'"name": *"([^"]+)"', body[:4096])]
            return any(_text(key) in emulator._storage.objects.get(name, {}) for key in names)

        def _answer(self, status: int, headers: dict[str, str], content: bytes, *, is_cut: bool = False) -> None:
            self.send_response(status)
            for key, value in headers.items():
                if key.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(key, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
            self.close_connection = self.close_connection or is_cut

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _pass_on

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # a client that has gone away

    door = Server(("127.0.0.1", 0), Door)
    threading.Thread(target=door.serve_forever, daemon=True).start()
    try:
        yield Bucket(f"http://127.0.0.1:{door.server_address[1]}", faults)
    finally:
        door.shutdown()
        door.server_close()
        emulator.stop()
        emulator._api._httpd.server_close()
