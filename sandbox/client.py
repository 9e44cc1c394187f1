"""Callers of the service: one sync, one async, one exception.

A tool's failure comes back as an `ExecuteReply`; `SandboxUnavailable` says that the service gave no answer before the
deadline, whatever the reason. It is never a reward and never text for a model. A request that is not valid in itself
(an unknown limit, arguments that JSON cannot express) is the caller's mistake and raises ValueError before any I/O.

A call carries its state and its seed, so sending it twice does no harm: an attempt that the service fails, or that has
no whole reply when one is due, is followed by another, until the deadline.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import httpx

from sandbox.exchange import (
    BatchTooLarge,
    Lost,
    PackagesMissing,
    SandboxUnavailable,
    ServiceError,
    Session,
    SourceWanted,
    addresses,
    parsed,
    replies_of,
    request_of,
)
from sandbox.protocol import ExecuteReply, ExecuteRequest, InstalledPackage, Limits, source_sha256
from sandbox.replicas import Replica

__all__ = [
    "AsyncSandboxClient",
    "PackagesMissing",
    "SandboxClient",
    "SandboxUnavailable",
    "ServiceError",
    "first_contact",
]
_DEFAULT_LIMITS = Limits()
_FIRST_CONTACT_SECONDS = 5.0
_IDLE_CONNECTION_SECONDS = 30.0
_HEALTH_SECONDS = 2.0


def first_contact(url: str) -> None:
    """See to it that a sandbox listens at `url`, or at one of several addresses; one that is still starting does.

    Raises:
        SandboxUnavailable: none does, or something else listens there.
    """
    deadline, urls, why = time.monotonic() + _FIRST_CONTACT_SECONDS, addresses(url), ""
    with httpx.Client(trust_env=False, timeout=_FIRST_CONTACT_SECONDS) as http:
        while True:
            for one in urls:
                try:
                    response = http.get(f"{one}/health")
                except httpx.TransportError as error:
                    why = str(error) or type(error).__name__
                    continue
                _require_sandbox(one, response)
                return
            if time.monotonic() > deadline:
                raise SandboxUnavailable(
                    f"no sandbox listens at {url}: {why}; `astra sandbox serve` starts one"
                ) from None
            time.sleep(0.25)


def _require_sandbox(url: str, response: httpx.Response) -> None:
    try:
        is_sandbox = "workers" in json.loads(response.content)
    except (ValueError, TypeError):
        is_sandbox = False
    if not is_sandbox:
        raise SandboxUnavailable(f"expected a sandbox at {url}, found HTTP {response.status_code} from something else")


class SandboxClient(Session):
    """A blocking client; safe to share between threads.

    Args:
      url: where the service listens, such as `http://127.0.0.1:8377`; several addresses, of replicas that share
        nothing, stand between commas, and a call goes to the one with the fewest of this client's calls.
      token: the bearer token, if the service wants one; by default the environment's ASTRA_SANDBOX_TOKEN, "" for none.
      deadline_seconds: the most that one call may take altogether: waiting, running, further attempts.
      grace_seconds: what a reply may take beyond the wall limits of its calls (the queue, compilation, the way) before
        the call is sent again. After each reply that did not come in time the next may take twice as long.
      max_connections: size of the connection pool.

    Raises:
        InvalidToken: the token cannot travel in a header.
        SandboxUnavailable: `url` has no address between two commas, or one twice.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        deadline_seconds: float = 120.0,
        grace_seconds: float = 10.0,
        max_connections: int = 64,
    ) -> None:
        super().__init__(url, token, deadline_seconds, grace_seconds)
        limits = httpx.Limits(
            max_connections=max_connections,
            max_keepalive_connections=max_connections,
            keepalive_expiry=_IDLE_CONNECTION_SECONDS,
        )
        # No proxy and no .netrc of the environment: the token is for this service alone.
        self._http = httpx.Client(headers=self._headers, limits=limits, trust_env=False)

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
        requests, began = [request_of(source, function, arguments, state, seed, limits)], time.monotonic()
        return self._waited(began, replies_of([self._post("/v1/execute", requests, batch=False)], 1))[0]

    def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        try:
            return replies_of(self._post("/v1/execute_batch", requests, batch=True), len(requests))
        except BatchTooLarge:
            first, second = self._halves(requests)
            return self.execute_batch(first) + self.execute_batch(second)

    def put_source(self, source: str) -> str:
        """Leave a source with the service and return its SHA-256.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        sha256 = source_sha256(source)
        text = source.encode("utf-8", "surrogatepass")
        self._send("PUT", f"/v1/sources/{sha256}", iter([text]), self._due_seconds())
        self._known[sha256] = None
        return sha256

    def health(self) -> dict[str, Any]:
        """Return the service's own account of its isolation and load.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        return self._send("GET", "/health", iter([b""]), self._due_seconds())

    def require_packages(self, names: Sequence[str]) -> dict[str, InstalledPackage]:
        """See that every replica that answers has these packages, in one version; return them by name.

        From now on each call says that it needs them, so that one that reaches another replica is refused.

        Raises:
            PackagesMissing: one has not, or another version.
            SandboxUnavailable: none answers.
        """
        if not names:
            return {}
        found = {self.replicas.all[0].url: self.health()} if len(self.replicas.all) == 1 else {}
        for replica in self.replicas.all if not found else ():
            try:
                found[replica.url] = parsed(self._http.get(f"{replica.url}/health", timeout=_HEALTH_SECONDS).content)
            except (httpx.TransportError, Lost):  # it may come back: its calls say what they need
                continue
        if not found:
            self.health()  # which says why nobody answers
        return self._agreed(names, found)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _post(self, path: str, requests: Sequence[ExecuteRequest], batch: bool) -> Any:
        document = self._send("POST", path, self._bodies(requests, batch), self._due_seconds(requests))
        self._remember(requests)
        return document

    def _send(self, method: str, path: str, bodies: Iterator[bytes], due_seconds: float) -> Any:
        deadline = time.monotonic() + self._deadline_seconds
        content, attempt, lost = next(bodies), 0, Lost("reply_late", "not tried")
        tried: set[Replica] = set()
        same: Replica | None = None
        while (left := deadline - time.monotonic()) > 0:
            retry_after, is_in_order, replica = None, None, self.replicas.take(tried, same)
            same = None
            try:
                if replica.rest_seconds:
                    self._see_to_health(replica, min(left, _HEALTH_SECONDS))
                url = f"{replica.url}{path}"
                status, retry_after, body = self._once(method, url, content, min(due_seconds, left), left)
                document = self._document(status, body)
                is_in_order = True
                return document
            except SourceWanted:
                content, same = self._texts(bodies), replica
                continue
            except (httpx.ConnectTimeout, httpx.WriteTimeout, httpx.ReadTimeout):
                is_in_order, lost = False, Lost("reply_late", f"no reply within {min(due_seconds, left):.3g} s")
                due_seconds *= 2
            except httpx.TransportError as error:
                is_in_order, lost = False, Lost("connection_lost", f"{type(error).__name__}: {error}")
            except Lost as found:
                is_in_order, lost = None if found.kind == "http_429" else False, found
            finally:
                self.replicas.give_back(replica, is_in_order=is_in_order)
            self.service_errors[lost.kind] += 1
            tried.add(replica)
            if self.replicas.has_another(tried):
                continue
            tried.clear()
            pause = self._pause(attempt, retry_after)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            attempt += 1
        raise self._gone(str(lost))

    def _see_to_health(self, replica: Replica, seconds: float) -> None:
        try:
            status = self._http.get(f"{replica.url}/health", timeout=seconds).status_code
        except httpx.TransportError as error:
            raise Lost("connection_lost", f"{replica.url}/health: {type(error).__name__}: {error}") from None
        if status != 200:
            raise Lost("http_5xx" if status >= 500 else "connection_lost", f"{replica.url}/health is HTTP {status}")
        self.replicas.is_well(replica)

    def _once(
        self, method: str, url: str, content: bytes, seconds: float, left: float
    ) -> tuple[int, str | None, bytes]:
        timeout = httpx.Timeout(seconds, pool=left)  # that all connections are in use is no failure of the service
        with self._http.stream(
            method, url, content=content, timeout=timeout, headers=self._further_headers
        ) as response:
            # httpx limits the wait for each piece, so an answer that trickles needs a clock of our own.
            chunks, end = [], time.monotonic() + seconds
            try:
                for chunk in response.iter_raw():
                    chunks.append(chunk)
                    if time.monotonic() > end:
                        raise httpx.ReadTimeout("the answer trickles")
            except httpx.RemoteProtocolError as error:
                raise Lost("reply_cut", f"{type(error).__name__}: {error}") from None
            return response.status_code, response.headers.get("retry-after"), b"".join(chunks)


class AsyncSandboxClient(Session):
    """The same for asyncio; one per event loop. Arguments as of `SandboxClient`.

    Raises:
        InvalidToken: the token cannot travel in a header.
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
        super().__init__(url, token, deadline_seconds, grace_seconds)
        self._opened: aiohttp.ClientSession | None = None
        self._connections = asyncio.Semaphore(max_connections)

    @property
    def _http(self) -> aiohttp.ClientSession:
        # Opened by the first call: a session belongs to the event loop that runs then.
        if self._opened is None:
            self._opened = aiohttp.ClientSession(
                headers=self._headers,
                # `_attempts` counts the connections, and has the clock.
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_CONNECTION_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
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
        requests, began = [request_of(source, function, arguments, state, seed, limits)], time.monotonic()
        return self._waited(began, replies_of([await self._post("/v1/execute", requests, batch=False)], 1))[0]

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        try:
            return replies_of(await self._post("/v1/execute_batch", requests, batch=True), len(requests))
        except BatchTooLarge:
            first, second = self._halves(requests)
            return await self.execute_batch(first) + await self.execute_batch(second)

    async def put_source(self, source: str) -> str:
        """Leave a source with the service and return its SHA-256.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        sha256 = source_sha256(source)
        text = source.encode("utf-8", "surrogatepass")
        await self._send("PUT", f"/v1/sources/{sha256}", iter([text]), self._due_seconds())
        self._known[sha256] = None
        return sha256

    async def health(self) -> dict[str, Any]:
        """Return the service's own account of its isolation and load.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        return await self._send("GET", "/health", iter([b""]), self._due_seconds())

    async def require_packages(self, names: Sequence[str]) -> dict[str, InstalledPackage]:
        """See that every replica that answers has these packages, in one version; return them by name.

        From now on each call says that it needs them, so that one that reaches another replica is refused.

        Raises:
            PackagesMissing: one has not, or another version.
            SandboxUnavailable: none answers.
        """
        if not names:
            return {}
        found = {self.replicas.all[0].url: await self.health()} if len(self.replicas.all) == 1 else {}
        for replica in self.replicas.all if not found else ():
            try:
                async with asyncio.timeout(_HEALTH_SECONDS):
                    found[replica.url] = parsed((await self._once("GET", f"{replica.url}/health", b""))[2])
            except (TimeoutError, aiohttp.ClientError, Lost):  # as above
                continue
        if not found:
            await self.health()
        return self._agreed(names, found)

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

    async def _post(self, path: str, requests: Sequence[ExecuteRequest], batch: bool) -> Any:
        document = await self._send("POST", path, self._bodies(requests, batch), self._due_seconds(requests))
        self._remember(requests)
        return document

    async def _send(self, method: str, path: str, bodies: Iterator[bytes], due_seconds: float) -> Any:
        why = ["no reply yet"]  # a list, which outlives the cancelled attempts that have written their reason there
        try:
            async with asyncio.timeout(self._deadline_seconds):
                return await self._attempts(method, path, bodies, due_seconds, why)
        except TimeoutError:
            raise self._gone(why[0]) from None

    async def _attempts(
        self, method: str, path: str, bodies: Iterator[bytes], due_seconds: float, why: list[str]
    ) -> Any:
        content, attempt = next(bodies), 0
        tried: set[Replica] = set()
        same: Replica | None = None
        while True:
            retry_after, is_in_order, replica = None, None, self.replicas.take(tried, same)
            same = None
            try:
                if replica.rest_seconds:
                    await self._see_to_health(replica)
                # That all connections are in use is no failure of the service: the clock starts after that.
                async with self._connections, asyncio.timeout(due_seconds):
                    status, retry_after, body = await self._once(method, f"{replica.url}{path}", content)
                document = self._document(status, body)
                is_in_order = True
                return document
            except SourceWanted:
                content, same = self._texts(bodies), replica
                continue
            except TimeoutError:
                is_in_order, lost = False, Lost("reply_late", f"no reply within {due_seconds:.3g} s")
                due_seconds *= 2
            except aiohttp.ClientConnectorError as error:  # its own text speaks of TLS that is not asked for
                is_in_order, lost = False, Lost("connection_lost", f"{type(error).__name__}: {error.os_error}")
            except aiohttp.ClientPayloadError as error:
                is_in_order, lost = False, Lost("reply_cut", f"{type(error).__name__}: {error}")
            except aiohttp.ClientError as error:
                is_in_order, lost = False, Lost("connection_lost", f"{type(error).__name__}: {error}")
            except Lost as found:
                is_in_order, lost = None if found.kind == "http_429" else False, found
            finally:
                self.replicas.give_back(replica, is_in_order=is_in_order)
            why[0] = str(lost)
            self.service_errors[lost.kind] += 1
            tried.add(replica)
            if self.replicas.has_another(tried):
                continue
            tried.clear()
            await asyncio.sleep(self._pause(attempt, retry_after))
            attempt += 1

    async def _see_to_health(self, replica: Replica) -> None:
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                status, _, _ = await self._once("GET", f"{replica.url}/health", b"")
        except (TimeoutError, aiohttp.ClientError) as error:
            raise Lost("connection_lost", f"{replica.url}/health: {type(error).__name__}: {error}") from None
        if status != 200:
            raise Lost("http_5xx" if status >= 500 else "connection_lost", f"{replica.url}/health is HTTP {status}")
        self.replicas.is_well(replica)

    async def _once(self, method: str, url: str, content: bytes) -> tuple[int, str | None, bytes]:
        # A redirect is followed no further: the token is for this service alone.
        async with self._http.request(
            method, url, data=content, allow_redirects=False, headers=self._further_headers
        ) as response:
            return response.status, response.headers.get("retry-after"), await response.read()
