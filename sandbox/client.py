"""Callers of the service: one client for asyncio, and a blocking one that runs it in a thread.

A tool's failure comes back as an `ExecuteReply`. `SandboxUnavailable` says that the service gave no answer before the
deadline; it is never a reward and never text for a model. A request that is not valid in itself raises ValueError.
A call carries its state and its seed, so to send it twice does no harm. `AsyncSandboxClient._send` is the only retry
loop: it repeats a call that the service failed, or that has no whole reply when one is due, until the deadline.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import random
import secrets
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Container, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import aiohttp
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from sandbox.bearer_token import TOKEN_VARIABLE, token_or_none
from sandbox.errors import SandboxError
from sandbox.protocol import (
    PACKAGES_HEADER,
    ExecuteReply,
    ExecuteRequest,
    InstalledPackage,
    Limits,
    source_sha256,
    written_packages,
)

ServiceError = Literal["http_429", "http_5xx", "connection_lost", "reply_cut", "reply_late"]
"""Reason why an attempt had no whole reply."""
_Result = TypeVar("_Result")
_REPLIES = TypeAdapter(list[ExecuteReply])
_DEFAULT_LIMITS = Limits()
_FIRST_CONTACT_SECONDS = 5.0
_IDLE_CONNECTION_SECONDS = 30.0  # less than the service keeps an idle connection
_KNOWN_SOURCES = 4096
_IN_PARTS_BYTES = 2**20
_MAX_BACKOFF_SECONDS = 2.0


class SandboxUnavailable(SandboxError):  # the name that callers are promised
    """The service did not answer a call; the call may or may not have run, and it has no result."""


class PackagesMissing(SandboxUnavailable):
    """The sandbox lacks packages that tools import, or has other versions of them."""


class Lost(Exception):
    """An attempt has no whole reply; the next one may have one. The text gives the reason."""

    def __init__(self, kind: ServiceError, why: str, retry_after: str | None = None):
        super().__init__(why)
        self.kind: ServiceError = kind
        self.retry_after = retry_after


class SourceWanted(Exception):
    """The server does not know the source of a hash that it was sent."""


class BatchTooLarge(Exception):
    """A batch is longer than the server takes, or its replies than it holds at once; half of it may do."""


def first_contact(url: str) -> None:
    """Check that a sandbox listens at `url`; wait some seconds for it to start.

    Raises:
        SandboxUnavailable: nothing listens there, or something that is not a sandbox.
    """
    with SandboxClient(url, deadline_seconds=_FIRST_CONTACT_SECONDS) as client:
        try:
            health = client.health()
        except SandboxUnavailable as error:
            raise SandboxUnavailable(
                f"no sandbox answers at {url}: {error}; `astra sandbox serve` starts one"
            ) from None
    if "workers" not in health:
        raise SandboxUnavailable(f"the service at {url} is not a sandbox; `astra sandbox serve` starts one")


class _Packages(BaseModel):
    """The packages of a service in its health."""

    versions: dict[str, str]
    modules: dict[str, tuple[str, ...]]


class AsyncSandboxClient:
    """A client for asyncio; each event loop needs its own.

    Args:
      url: where the service, or a load balancer before several, listens, such as `http://127.0.0.1:8377`.
      token: the bearer token, if the service needs one; by default the environment's ASTRA_SANDBOX_TOKEN, "" for none.
      deadline_seconds: the longest time that one call may take: waiting, running, further attempts.
      grace_seconds: the time that a reply may take beyond the wall limits of its calls (queue, compilation, network)
        before the call is sent again. After each reply that did not come in time the next may take twice as long.
      max_connections: the largest number of requests at one time; further ones wait.

    Raises:
        InvalidToken: the token cannot stand in a header.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline_seconds: float = 120.0,
        grace_seconds: float = 10.0,
        max_connections: int = 256,
    ) -> None:
        self.url = url.rstrip("/")
        self.service_errors: Counter[ServiceError] = Counter()
        """Number of attempts without a whole reply, by reason, since this client was made."""
        self._deadline_seconds, self._grace_seconds = deadline_seconds, grace_seconds
        self._known: OrderedDict[str, None] = OrderedDict()
        self._headers = {"content-type": "application/json", "x-sandbox-client": secrets.token_hex(8)}
        self._token = token_or_none(token)
        if self._token is not None:
            self._headers["authorization"] = f"Bearer {self._token}"
        self._opened: aiohttp.ClientSession | None = None
        self._connections = asyncio.Semaphore(max_connections)

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
        request = ExecuteRequest(
            source=source, function=function, arguments=dict(arguments), state=state, seed=seed, limits=limits
        )
        return (await self._post("/v1/execute", [request]))[0]

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        try:
            return await self._post("/v1/execute_batch", requests)
        except BatchTooLarge:
            if len(requests) < 2:
                raise SandboxUnavailable(
                    f"the sandbox at {self.url} refuses one call as a batch that is too large"
                ) from None
        middle = len(requests) // 2
        return await self.execute_batch(requests[:middle]) + await self.execute_batch(requests[middle:])

    async def health(self) -> dict[str, Any]:
        """Return the service's report of its isolation and load; its workers may still be starting.

        Raises:
            SandboxUnavailable: the service gave no answer, or is not a sandbox.
        """
        health = await self._send("GET", "/health", iter([b""]), self._grace_seconds)
        if not isinstance(health, dict):
            raise SandboxUnavailable(f"the service at {self.url} is not a sandbox: its health is no JSON object")
        return health

    async def require_packages(self, names: Sequence[str]) -> dict[str, InstalledPackage]:
        """Check that the service has these packages; return them by name.

        From now on each call states this need, so that a service with other packages refuses it.

        Raises:
            PackagesMissing: the service lacks one.
            SandboxUnavailable: the service gave no answer, or does not say which packages it has.
        """
        if not names:
            return {}
        try:
            has = _Packages.model_validate((await self.health()).get("packages"))
        except ValidationError:
            raise SandboxUnavailable(
                f"the service at {self.url} does not say which packages tools may import: give the address of an "
                "`astra sandbox serve` of this version as --sandbox"
            ) from None
        for name in names:
            if name not in has.versions or name not in has.modules:
                raise PackagesMissing(
                    f"the sandbox at {self.url} lacks {name} of the packages that tools may import "
                    f"({', '.join(names)}): run `pip install --target FOLDER {' '.join(names)}`, then "
                    "`astra sandbox serve --packages FOLDER`, and give its address as --sandbox"
                )
        found = {name: InstalledPackage(version=has.versions[name], modules=has.modules[name]) for name in names}
        self._headers[PACKAGES_HEADER] = written_packages({name: each.version for name, each in found.items()})
        return found

    async def close(self) -> None:
        """Close the connections."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _post(self, path: str, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        # The service ends a call at its wall limit, and may run the calls of a batch one after the other.
        due_seconds = self._grace_seconds + sum(request.limits.wall_seconds for request in requests)
        is_batch = path.endswith("batch")
        document = await self._send("POST", path, self._bodies(requests, is_batch), due_seconds)
        # Only an answer shows that the service has the sources.
        self._known.update((source_sha256(request.source), None) for request in requests if request.source is not None)
        while len(self._known) > _KNOWN_SOURCES:
            self._known.popitem(last=False)
        return _replies_of(document if is_batch else [document], len(requests))

    def _bodies(self, requests: Sequence[ExecuteRequest], is_batch: bool) -> Iterator[bytes]:
        """Yield a body with hashes for the sources that the server should know, then one with every source's text."""
        known: Container[str]
        for known in (self._known, ()):
            documents = []
            for request in requests:
                document = {key: value for key, value in request.model_dump().items() if value is not None}
                if request.source is not None and (sha256 := source_sha256(request.source)) in known:
                    document["source_sha256"] = sha256
                    del document["source"]
                documents.append(document)
            text = json.dumps(documents if is_batch else documents[0], allow_nan=False, separators=(",", ":"))
            yield text.encode()

    async def _send(self, method: str, path: str, bodies: Iterator[bytes], due_seconds: float) -> Any:
        """Send a request until it is answered or the deadline is over; return the JSON of the answer."""
        content, attempt, why = next(bodies), 0, "no reply yet"
        try:
            async with asyncio.timeout(self._deadline_seconds):
                while True:
                    try:
                        return await self._attempt(method, path, content, due_seconds)
                    except SourceWanted:  # the server was started anew, or has dropped a source
                        content = next(bodies, b"")
                        if not content:
                            raise SandboxUnavailable(
                                f"the sandbox at {self.url} does not know a source that it was sent"
                            ) from None
                    except Lost as lost:
                        self.service_errors[lost.kind] += 1
                        why = str(lost)
                        if lost.kind == "reply_late":
                            due_seconds *= 2
                        await asyncio.sleep(_pause_seconds(attempt, lost.retry_after))
                        attempt += 1
        except TimeoutError:
            raise SandboxUnavailable(
                f"no answer from the sandbox at {self.url} in {self._deadline_seconds:g} s: {why}"
            ) from None

    async def _attempt(self, method: str, path: str, content: bytes, due_seconds: float) -> Any:
        """Send a request once; return the JSON of its answer.

        Raises:
            Lost: the service failed, or there is no whole reply when one is due.
            SourceWanted: the request must be sent with the texts of its sources.
            BatchTooLarge: the batch must be sent in parts.
            SandboxUnavailable: to send the request again cannot help.
        """
        if self._opened is None:  # opened by the first call: a session belongs to the event loop that runs then
            self._opened = aiohttp.ClientSession(
                # `_connections` bounds the connections, and `_send` has the clock.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                cookie_jar=aiohttp.DummyCookieJar(),
                trust_env=False,  # no proxy and no .netrc of the environment: the token is for this service alone
            )
        # No redirect is followed: the token is for this service alone.
        # aiohttp sends a file in parts; bytes at once, and it warns of so many.
        data = content if len(content) < _IN_PARTS_BYTES else io.BytesIO(content)
        options: dict[str, Any] = {"data": data, "allow_redirects": False, "headers": self._headers}
        try:
            # The clock starts once there is a connection: to wait for one is no failure of the service.
            async with (
                self._connections,
                asyncio.timeout(due_seconds),
                self._opened.request(method, f"{self.url}{path}", **options) as response,
            ):
                status, body = response.status, await response.read()
        except TimeoutError:
            raise Lost("reply_late", f"no reply within {due_seconds:.3g} s") from None
        except aiohttp.ClientError as error:
            # The text of an error of the connector speaks of TLS; the system's own error does not. A resolver's errors
            # have negative numbers, which `strerror` does not know.
            said: Exception | str = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            if isinstance(said, OSError) and said.errno is not None and said.errno > 0:
                said = os.strerror(said.errno)
            is_cut = isinstance(error, aiohttp.ClientPayloadError)
            why = f"{type(error).__name__}: {said}"
            raise Lost("reply_cut" if is_cut else "connection_lost", why) from None
        is_starting = path == "/health" and status == 503 and b'"workers"' in body
        if status == 200 or is_starting:
            return _parsed(body)
        if status == 401:
            raise SandboxUnavailable(self._not_let_in())
        message = _error_message(body)
        if status == 429 or status >= 500:
            kind: ServiceError = "http_429" if status == 429 else "http_5xx"
            raise Lost(kind, f"HTTP {status}: {message}", response.headers.get("retry-after"))
        if status == 404 and b'"unknown_source"' in body:
            raise SourceWanted
        if status == 413 and b'"batch_too_large"' in body:
            raise BatchTooLarge
        if status == 409 and b'"packages_missing"' in body:
            raise PackagesMissing(f"the sandbox at {self.url} refuses the calls: {message}")
        raise SandboxUnavailable(f"the sandbox at {self.url} refuses the request: HTTP {status}: {message}")

    def _not_let_in(self) -> str:
        who, where = f"the sandbox at {self.url}", f"the environment of this process on {socket.gethostname()}"
        if self._token is not None:
            return f"{who} refuses the token it was sent (HTTP 401): set {TOKEN_VARIABLE} in {where} to its own"
        return f"{who} wants a token (HTTP 401): set {TOKEN_VARIABLE} in {where} to the one that it was started with"


class SandboxClient:
    """A blocking client; threads may share it. Arguments, methods and errors are those of `AsyncSandboxClient`.

    The event loop of its `AsyncSandboxClient` runs in a thread of its own.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._client = AsyncSandboxClient(url, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox client", daemon=True)
        self._thread.start()

    def execute(self, source: str, function: str, arguments: Mapping[str, Any], **options: Any) -> ExecuteReply:
        """Run one call and return its reply."""
        return self._result(self._client.execute(source, function, arguments, **options))

    def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run calls and return their replies in order."""
        return self._result(self._client.execute_batch(requests))

    def health(self) -> dict[str, Any]:
        """Return the state of the service."""
        return self._result(self._client.health())

    def require_packages(self, names: Sequence[str]) -> dict[str, InstalledPackage]:
        """Require packages of the service."""
        return self._result(self._client.require_packages(names))

    def close(self) -> None:
        """Close the connections and end the thread."""
        if not self._loop.is_closed():
            self._result(self._client.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _result(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        working = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return working.result()
        finally:
            working.cancel()  # has an effect only after an interrupt of this thread


def _pause_seconds(attempt: int, retry_after: str | None) -> float:
    """Return the seconds before the next attempt: exponential, jittered, at least a quarter of the server's wish."""
    backoff = min(_MAX_BACKOFF_SECONDS, 0.05 * 2**attempt)
    asked = float(retry_after) if retry_after and retry_after.isdigit() else 0.0
    return max(backoff, asked / 2) * (0.5 + random.random())


def _error_message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:200].decode("utf-8", "replace") or "no message"


def _parsed(body: bytes) -> Any:
    """Return the JSON of a whole reply; a reply without its end is lost.

    >>> _parsed(b'{"status": "ok", "val')
    Traceback (most recent call last):
    sandbox.client.Lost: the reply ends in the middle, after 21 bytes
    """
    try:
        return json.loads(body)
    except ValueError as error:
        # Python's own reader gives the beginning of a string that has no end, so this one is asked.
        try:
            from_json(body)
        except ValueError as other:
            if str(other).startswith("EOF while parsing"):
                raise Lost("reply_cut", f"the reply ends in the middle, after {len(body)} bytes") from None
        raise _not_the_protocol(error) from None


def _not_the_protocol(error: ValueError) -> SandboxUnavailable:
    return SandboxUnavailable(f"the sandbox's reply is not one of this protocol: {error}")


def _replies_of(documents: Any, count: int) -> list[ExecuteReply]:
    """Return the service's replies, which must be as many as the calls."""
    try:
        replies = _REPLIES.validate_python(documents)
    except ValueError as error:
        raise _not_the_protocol(error) from None
    if len(replies) != count:
        raise SandboxUnavailable(f"the sandbox answered {len(replies)} of {count} calls")
    return replies
