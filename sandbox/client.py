"""Callers of the service: one sync, one async, one exception.

A tool's failure comes back as an `ExecuteReply`; `SandboxUnavailable` says that the service gave no answer before the
deadline, whatever the reason. It is never a reward and never text for a model. A request that is not valid in itself
(an unknown limit, arguments that JSON cannot express) is the caller's mistake and raises ValueError before any I/O.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import httpx

from sandbox.bearer_token import TOKEN_VARIABLE, token_or_none
from sandbox.errors import SandboxError
from sandbox.protocol import ExecuteReply, ExecuteRequest, Limits, source_sha256

_DEFAULT_LIMITS = Limits()
_RETRIED = frozenset({429, 502, 503, 504})
_MAX_BACKOFF_SECONDS = 2.0
_KNOWN_SOURCES = 4096
_FIRST_CONTACT_SECONDS = 5.0
_IDLE_CONNECTION_SECONDS = 30.0


class SandboxUnavailable(SandboxError):  # the name that callers are promised
    """The service did not answer a call; the call may or may not have run, and it has no result."""


class _Session:
    """What both clients share: headers, deadlines, which sources the server knows, how a response is read."""

    def __init__(self, url: str, token: str | None, deadline_seconds: float, max_connections: int) -> None:
        self.url = url.rstrip("/")
        self._deadline_seconds = deadline_seconds
        self._known: OrderedDict[str, None] = OrderedDict()
        self._max_connections = max_connections
        self._headers = {"content-type": "application/json", "x-sandbox-client": secrets.token_hex(8)}
        token = token_or_none(token)
        self._has_token = token is not None
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def _bodies(self, requests: Sequence[ExecuteRequest], batch: bool) -> Iterator[bytes]:
        """The body to send first, with hashes for sources that the server should know, and one with every text."""
        short, full = [], []
        for request in requests:
            document = {key: value for key, value in request.model_dump().items() if value is not None}
            full.append(document)
            sha256 = source_sha256(request.source) if request.source is not None else ""
            if sha256 in self._known:
                document = {key: value for key, value in document.items() if key != "source"}
                document["source_sha256"] = sha256
            short.append(document)
        yield _encode(short if batch else short[0])
        yield _encode(full if batch else full[0])

    # Called once there was an answer: until then the server may have none of these sources.
    def _remember(self, requests: Sequence[ExecuteRequest]) -> None:
        for request in requests:
            if request.source is not None:
                self._known[source_sha256(request.source)] = None
        while len(self._known) > _KNOWN_SOURCES:
            self._known.popitem(last=False)

    def _verdict(self, status: int, body: bytes) -> str | None:
        """None when the body is a reply, else why to retry.

        Raises:
            SandboxUnavailable: retrying cannot help.
        """
        if status in (200, 204):
            return None
        if status == 401:
            raise SandboxUnavailable(self._not_let_in())
        text = _error_message(body)
        if status in _RETRIED:
            return f"HTTP {status}: {text}"
        raise SandboxUnavailable(f"the sandbox at {self.url} refuses the request: HTTP {status}: {text}")

    def _not_let_in(self) -> str:
        who, where = f"the sandbox at {self.url}", f"the environment of this process on {socket.gethostname()}"
        if self._has_token:
            return f"{who} refuses the token it was sent (HTTP 401): set {TOKEN_VARIABLE} in {where} to its own"
        return f"{who} wants a token (HTTP 401): set {TOKEN_VARIABLE} in {where} to the one that it was started with"

    def _pause(self, attempt: int, retry_after: str | None) -> float:
        """Seconds to wait before the next attempt: exponential, jittered, at least half of what the server asks."""
        backoff = min(_MAX_BACKOFF_SECONDS, 0.05 * 2**attempt)
        asked = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
        return max(backoff, asked / 2) * (0.5 + random.random())

    def _gone(self, why: str) -> SandboxUnavailable:
        return SandboxUnavailable(f"no answer from the sandbox at {self.url} in {self._deadline_seconds:g} s: {why}")


def _encode(document: object) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no message"


def _is_unknown_source(status: int, body: bytes) -> bool:
    return status == 404 and b'"unknown_source"' in body


def _request(
    source: str, function: str, arguments: Mapping[str, Any], state: dict[str, Any] | None, seed: int, limits: Limits
) -> ExecuteRequest:
    return ExecuteRequest(
        source=source, function=function, arguments=dict(arguments), state=state, seed=seed, limits=limits
    )


def _replies(body: bytes, count: int) -> list[ExecuteReply]:
    try:
        documents = json.loads(body)
        replies = [ExecuteReply.model_validate(document) for document in documents]
    except ValueError as error:
        raise SandboxUnavailable(f"the sandbox's reply is not one of this protocol: {error}") from None
    if len(replies) != count:
        raise SandboxUnavailable(f"the sandbox answered {len(replies)} of {count} calls")
    return replies


def first_contact(url: str) -> None:
    """See to it that a sandbox listens at `url`; one that is still starting does.

    Raises:
        SandboxUnavailable: none does, or something else listens there.
    """
    deadline = time.monotonic() + _FIRST_CONTACT_SECONDS
    with httpx.Client(trust_env=False, timeout=_FIRST_CONTACT_SECONDS) as http:
        while True:
            try:
                response = http.get(f"{url.rstrip('/')}/health")
                break
            except httpx.TransportError as error:
                if time.monotonic() > deadline:
                    why = str(error) or type(error).__name__
                    raise SandboxUnavailable(
                        f"no sandbox listens at {url}: {why}; `astra sandbox serve` starts one"
                    ) from None
                time.sleep(0.25)
    try:
        is_sandbox = "workers" in json.loads(response.content)
    except (ValueError, TypeError):
        is_sandbox = False
    if not is_sandbox:
        raise SandboxUnavailable(f"expected a sandbox at {url}, found HTTP {response.status_code} from something else")


class SandboxClient(_Session):
    """A blocking client; safe to share between threads.

    Args:
      url: where the service listens, such as `http://127.0.0.1:8377`.
      token: the bearer token, if the service wants one; by default the environment's ASTRA_SANDBOX_TOKEN, "" for none.
      deadline_seconds: the most that one call may take altogether: waiting, running, retries.
      max_connections: size of the connection pool.

    Raises:
        InvalidToken: the token cannot travel in a header.
    """

    def __init__(
        self, url: str, *, token: str | None = None, deadline_seconds: float = 120.0, max_connections: int = 64
    ) -> None:
        super().__init__(url, token, deadline_seconds, max_connections)
        limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_IDLE_CONNECTION_SECONDS,
        )
        # No proxy and no .netrc of the environment: the token is for this service alone.
        self._http = httpx.Client(base_url=self.url, headers=self._headers, limits=limits, trust_env=False)

    def execute(
        self,
        source: str,
        function: str,
        arguments: Mapping[str, Any],
        *,
        state: dict[str, Any] | None = None,
        seed: int = 0,
        limits: Limits = _DEFAULT_LIMITS,
    ) -> ExecuteReply:
        """Call `function(**arguments)` of the module `source`; a failure of the tool is a reply.

        Raises:
            SandboxUnavailable: the service gave no answer.
            ValueError: the request is not valid in itself.
        """
        requests = [_request(source, function, arguments, state, seed, limits)]
        return _replies(b"[" + self._post("/v1/execute", requests, batch=False) + b"]", 1)[0]

    def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        return _replies(self._post("/v1/execute_batch", requests, batch=True), len(requests)) if requests else []

    def put_source(self, source: str) -> str:
        """Leave a source with the service and return its SHA-256.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        sha256 = source_sha256(source)
        self._send("PUT", f"/v1/sources/{sha256}", source.encode("utf-8", "surrogatepass"), self._deadline())
        self._known[sha256] = None
        return sha256

    def health(self) -> dict[str, Any]:
        """Return the service's own account of its isolation and load.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        return json.loads(self._send("GET", "/health", b"", self._deadline())[1])

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deadline(self) -> float:
        return time.monotonic() + self._deadline_seconds

    def _post(self, path: str, requests: Sequence[ExecuteRequest], batch: bool) -> bytes:
        deadline = self._deadline()
        bodies = self._bodies(requests, batch)
        status, body = self._send("POST", path, next(bodies), deadline)
        # The server was started anew, or has let go of a source: the texts once more, within the same deadline.
        if _is_unknown_source(status, body):
            status, body = self._send("POST", path, next(bodies), deadline)
        self._verdict(status, body)
        self._remember(requests)
        return body

    def _send(self, method: str, path: str, content: bytes, deadline: float) -> tuple[int, bytes]:
        """Send until there is an answer worth reading or the deadline has passed."""
        why, attempt = "not tried", 0
        while (left := deadline - time.monotonic()) > 0:
            retry_after = None
            try:
                status, retry_after, body = self._once(method, path, content, left, deadline)
                if _is_unknown_source(status, body):
                    return status, body
                reason = self._verdict(status, body)
                if reason is None:
                    return status, body
                why = reason
            except httpx.TransportError as error:
                why = f"{type(error).__name__}: {error}"
            pause = self._pause(attempt, retry_after)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            attempt += 1
        raise self._gone(why)

    def _once(
        self, method: str, path: str, content: bytes, left: float, deadline: float
    ) -> tuple[int, str | None, bytes]:
        with self._http.stream(method, path, content=content, timeout=left) as response:
            # httpx limits the wait for each piece, so an answer that trickles needs a clock of our own.
            chunks = []
            for chunk in response.iter_raw():
                chunks.append(chunk)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("the answer trickles")
            return response.status_code, response.headers.get("retry-after"), b"".join(chunks)


class AsyncSandboxClient(_Session):
    """The same for asyncio; one per event loop. Arguments as of `SandboxClient`.

    Decided: docs/decisions/packaging.md, “The sandbox's asyncio client has aiohttp's connections”.

    Raises:
        InvalidToken: the token cannot travel in a header.
    """

    def __init__(
        self, url: str, *, token: str | None = None, deadline_seconds: float = 120.0, max_connections: int = 256
    ) -> None:
        super().__init__(url, token, deadline_seconds, max_connections)
        self._opened: aiohttp.ClientSession | None = None

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Opened by the first call: a session belongs to the event loop that runs then.
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=self._max_connections, keepalive_timeout=_IDLE_CONNECTION_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),  # `_within_deadline` has the clock
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # as above
            )
        return self._opened

    async def execute(
        self,
        source: str,
        function: str,
        arguments: Mapping[str, Any],
        *,
        state: dict[str, Any] | None = None,
        seed: int = 0,
        limits: Limits = _DEFAULT_LIMITS,
    ) -> ExecuteReply:
        """Call `function(**arguments)` of the module `source`; a failure of the tool is a reply.

        Raises:
            SandboxUnavailable: the service gave no answer.
            ValueError: the request is not valid in itself.
        """
        requests = [_request(source, function, arguments, state, seed, limits)]
        return _replies(b"[" + await self._post("/v1/execute", requests, batch=False) + b"]", 1)[0]

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        return _replies(await self._post("/v1/execute_batch", requests, batch=True), len(requests))

    async def put_source(self, source: str) -> str:
        """Leave a source with the service and return its SHA-256.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        sha256 = source_sha256(source)
        await self._within_deadline("PUT", f"/v1/sources/{sha256}", [source.encode("utf-8", "surrogatepass")])
        self._known[sha256] = None
        return sha256

    async def health(self) -> dict[str, Any]:
        """Return the service's own account of its isolation and load.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        return json.loads(await self._within_deadline("GET", "/health", [b""]))

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _post(self, path: str, requests: Sequence[ExecuteRequest], batch: bool) -> bytes:
        body = await self._within_deadline("POST", path, self._bodies(requests, batch))
        self._remember(requests)
        return body

    async def _within_deadline(self, method: str, path: str, bodies: Iterator[bytes] | list[bytes]) -> bytes:
        """Send the first body until there is an answer, and the next one when the server lacks a source."""
        why = ["not tried"]  # a list, which outlives the cancelled `_send` that has written its reason there
        try:
            async with asyncio.timeout(self._deadline_seconds):
                status, body = 404, b""
                for content in bodies:
                    status, body = await self._send(method, path, content, why)
                    if not _is_unknown_source(status, body):
                        break
                self._verdict(status, body)
                return body
        except TimeoutError:
            raise self._gone(why[0]) from None

    async def _send(self, method: str, path: str, content: bytes, why: list[str]) -> tuple[int, bytes]:
        attempt = 0
        while True:
            retry_after = None
            try:
                url = f"{self.url}{path}"
                # A redirect is followed no further: the token is for this service alone.
                async with self._http.request(method, url, data=content, allow_redirects=False) as response:
                    status, body = response.status, await response.read()
                    retry_after = response.headers.get("retry-after")
                if _is_unknown_source(status, body):
                    return status, body
                reason = self._verdict(status, body)
                if reason is None:
                    return status, body
                why[0] = reason
            except aiohttp.ClientConnectorError as error:
                why[0] = f"{type(error).__name__}: {error.os_error}"  # its own text speaks of TLS that is not asked for
            except aiohttp.ClientError as error:
                why[0] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(self._pause(attempt, retry_after))
            attempt += 1
