"""Callers of the service: one sync, one async, one exception.

A tool's failure comes back as an `ExecuteReply`; `SandboxUnavailable` says that the service gave no answer before the
deadline, whatever the reason. It is never a reward and never text for a model. A request that is not valid in itself
(an unknown limit, arguments that JSON cannot express) is the caller's mistake and raises ValueError before any I/O.

A call carries its state and its seed, so sending it twice does no harm: an attempt that the service fails, or that has
no whole reply when one is due, is followed by another, until the deadline.
Decided: docs/decisions/tools.md, “A reply that is late is asked for again”.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp
import httpx
from pydantic import TypeAdapter
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
from sandbox.replicas import Replica, Replicas, Waits

ServiceError = Literal["http_429", "http_5xx", "connection_lost", "reply_cut", "reply_late"]
"""Why an attempt had no whole reply."""
_DEFAULT_LIMITS = Limits()
_REPLIES = TypeAdapter(list[ExecuteReply])
_MAX_BACKOFF_SECONDS = 2.0
_KNOWN_SOURCES = 4096
_FIRST_CONTACT_SECONDS = 5.0
_IDLE_CONNECTION_SECONDS = 30.0
_HEALTH_SECONDS = 2.0


class SandboxUnavailable(SandboxError):  # the name that callers are promised
    """The service did not answer a call; the call may or may not have run, and it has no result."""


class PackagesMissing(SandboxUnavailable):
    """The sandbox has not the packages that tools import, or replicas have different versions of them."""


class _Lost(Exception):
    """An attempt has no whole reply; the next one may have. Its text says why."""

    def __init__(self, kind: ServiceError, why: str):
        super().__init__(why)
        self.kind: ServiceError = kind


class _UnknownSource(Exception):
    """The server does not have, or no longer has, a source that it was sent the hash of."""


def addresses(text: str) -> list[str]:
    """Return the addresses of a service's replicas: one, or several between commas.

    Raises:
        SandboxUnavailable: there is none between two commas, or one twice.

    >>> addresses("http://a:1/, http://b:1")
    ['http://a:1', 'http://b:1']
    """
    found = [part.strip().rstrip("/") for part in text.split(",")]
    if not all(found) or len(set(found)) < len(found):
        raise SandboxUnavailable(
            f"expected the sandbox's address, or different ones between commas, found {text!r}: "
            "`astra sandbox serve` prints its own"
        )
    return found


class _BatchTooLarge(Exception):
    """The replies of a batch are more than the server holds at once; half of it may do."""


class _Session:
    """What both clients share: headers, deadlines, which sources the server knows, how a response is read."""

    def __init__(self, url: str, token: str | None, deadline_seconds: float, grace_seconds: float) -> None:
        urls = addresses(url)
        self.url = ", ".join(urls)
        self.replicas = Replicas([Replica(one) for one in urls])
        """Where the service listens, with what this client has seen of each."""
        self.waits = Waits()
        """What calls took beyond the time that they ran, since this client was made."""
        self._deadline_seconds, self._grace_seconds = deadline_seconds, grace_seconds
        self.service_errors: Counter[ServiceError] = Counter()
        """Attempts that had no whole reply, since this client was made."""
        self._known: OrderedDict[str, None] = OrderedDict()
        self._needs: dict[str, str] = {}
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

    def _texts(self, bodies: Iterator[bytes]) -> bytes:
        """The second body, to send at once: the server was started anew, or has let go of a source."""
        for body in bodies:
            return body
        raise SandboxUnavailable(f"the sandbox at {self.url} does not know a source that it was sent")

    def _waited(self, began: float, replies: list[ExecuteReply]) -> list[ExecuteReply]:
        self.waits.add(max(0.0, time.monotonic() - began - max(reply.usage.wall_seconds for reply in replies)))
        return replies

    # Called once there was an answer: until then the server may have none of these sources.
    def _remember(self, requests: Sequence[ExecuteRequest]) -> None:
        for request in requests:
            if request.source is not None:
                self._known[source_sha256(request.source)] = None
        while len(self._known) > _KNOWN_SOURCES:
            self._known.popitem(last=False)

    def _halves(self, requests: Sequence[ExecuteRequest]) -> tuple[Sequence[ExecuteRequest], Sequence[ExecuteRequest]]:
        """Two batches instead of one whose replies are too long together."""
        if len(requests) < 2:
            raise SandboxUnavailable(f"the sandbox at {self.url} refuses one call as a batch that is too large")
        middle = len(requests) // 2
        return requests[:middle], requests[middle:]

    def _due_seconds(self, requests: Sequence[ExecuteRequest] = ()) -> float:
        """When the reply to a first attempt is due: the sandbox ends a call at its wall limit, a batch's one by one."""
        return self._grace_seconds + sum(request.limits.wall_seconds for request in requests)

    def _document(self, status: int, body: bytes) -> Any:
        """The JSON of a reply; None where it has none.

        Raises:
            _Lost: it is the service that failed, or a part of the reply is missing.
            _UnknownSource: the request is to be sent with the texts of its sources.
            _BatchTooLarge: the batch is to be sent in parts.
            SandboxUnavailable: sending it again cannot help.
        """
        if status == 204:
            return None
        if status == 200:
            return _parsed(body)
        if status == 401:
            raise SandboxUnavailable(self._not_let_in())
        text = f"HTTP {status}: {_error_message(body)}"
        if status == 429 or status >= 500:
            raise _Lost("http_429" if status == 429 else "http_5xx", text)
        if status == 404 and b'"unknown_source"' in body:
            raise _UnknownSource
        if status == 413 and b'"batch_too_large"' in body:
            raise _BatchTooLarge
        if status == 409 and b'"packages_missing"' in body:
            raise PackagesMissing(f"a sandbox of {self.url} refuses the calls: {_error_message(body)}")
        raise SandboxUnavailable(f"the sandbox at {self.url} refuses the request: {text}")

    def _agreed(self, names: Sequence[str], found: Mapping[str, Any]) -> dict[str, InstalledPackage]:
        """The packages of these names as all replicas have them, by their health; calls say from now on that they need
        them.
        """
        agreed: dict[str, InstalledPackage] = {}
        where: dict[str, str] = {}
        for url, health in found.items():
            has = health.get("packages", {}) if isinstance(health, dict) else {}
            for name in names:
                version = has.get("versions", {}).get(name)
                if version is None:
                    raise PackagesMissing(
                        f"expected a sandbox whose tools may import {', '.join(names)}, found one without {name} at "
                        f"{url}: start it with `astra sandbox serve{''.join(f' --package {each}' for each in names)}`"
                    )
                if (
                    version
                    != agreed.setdefault(name, InstalledPackage(version=version, modules=has["modules"][name])).version
                ):
                    raise PackagesMissing(
                        f"expected one version of {name} on all replicas, found {agreed[name].version} at "
                        f"{where[name]} and {version} at {url}: results may depend on who answers"
                    )
                where.setdefault(name, url)
        self._needs = {name: package.version for name, package in agreed.items()}
        return agreed

    @property
    def _further_headers(self) -> dict[str, str]:
        return {PACKAGES_HEADER: written_packages(self._needs)} if self._needs else {}

    def _not_let_in(self) -> str:
        who, where = f"the sandbox at {self.url}", f"the environment of this process on {socket.gethostname()}"
        if self._has_token:
            return f"{who} refuses the token it was sent (HTTP 401): set {TOKEN_VARIABLE} in {where} to its own"
        return f"{who} wants a token (HTTP 401): set {TOKEN_VARIABLE} in {where} to the one that it was started with"

    def _pause(self, attempt: int, retry_after: str | None) -> float:
        """Seconds before the next attempt: exponential, jittered, at least a quarter of what the server asks."""
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


def _parsed(body: bytes) -> Any:
    """The JSON of a whole reply.

    Raises:
        _Lost: the reply is only the beginning of one.
        SandboxUnavailable: it is not JSON.

    >>> _parsed(b'{"status": "ok", "val')
    Traceback (most recent call last):
    sandbox.client._Lost: the reply ends in the middle, after 21 bytes
    """
    try:
        return json.loads(body)
    except ValueError as error:
        if _ends_early(body):
            raise _Lost("reply_cut", f"the reply ends in the middle, after {len(body)} bytes") from None
        raise _not_the_protocol(error) from None


def _ends_early(body: bytes) -> bool:
    # Python's own reader says of a string that has no end where it begins, so this one is asked.
    try:
        from_json(body)
    except ValueError as error:
        return str(error).startswith("EOF while parsing")
    return False


def _not_the_protocol(error: ValueError) -> SandboxUnavailable:
    return SandboxUnavailable(f"the sandbox's reply is not one of this protocol: {error}")


def _request(
    source: str, function: str, arguments: Mapping[str, Any], state: dict[str, Any] | None, seed: int, limits: Limits
) -> ExecuteRequest:
    return ExecuteRequest(
        source=source, function=function, arguments=dict(arguments), state=state, seed=seed, limits=limits
    )


def _replies(documents: Any, count: int) -> list[ExecuteReply]:
    try:
        replies = _REPLIES.validate_python(documents)
    except ValueError as error:
        raise _not_the_protocol(error) from None
    if len(replies) != count:
        raise SandboxUnavailable(f"the sandbox answered {len(replies)} of {count} calls")
    return replies


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


class SandboxClient(_Session):
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
        requests, began = [_request(source, function, arguments, state, seed, limits)], time.monotonic()
        return self._waited(began, _replies([self._post("/v1/execute", requests, batch=False)], 1))[0]

    def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        try:
            return _replies(self._post("/v1/execute_batch", requests, batch=True), len(requests))
        except _BatchTooLarge:
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
                found[replica.url] = _parsed(self._http.get(f"{replica.url}/health", timeout=_HEALTH_SECONDS).content)
            except (httpx.TransportError, _Lost):  # it may come back: its calls say what they need
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
        content, attempt, lost = next(bodies), 0, _Lost("reply_late", "not tried")
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
            except _UnknownSource:
                content, same = self._texts(bodies), replica
                continue
            except (httpx.ConnectTimeout, httpx.WriteTimeout, httpx.ReadTimeout):
                is_in_order, lost = False, _Lost("reply_late", f"no reply within {min(due_seconds, left):.3g} s")
                due_seconds *= 2
            except httpx.TransportError as error:
                is_in_order, lost = False, _Lost("connection_lost", f"{type(error).__name__}: {error}")
            except _Lost as found:
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
            raise _Lost("connection_lost", f"{replica.url}/health: {type(error).__name__}: {error}") from None
        if status != 200:
            raise _Lost("http_5xx" if status >= 500 else "connection_lost", f"{replica.url}/health is HTTP {status}")
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
                raise _Lost("reply_cut", f"{type(error).__name__}: {error}") from None
            return response.status_code, response.headers.get("retry-after"), b"".join(chunks)


class AsyncSandboxClient(_Session):
    """The same for asyncio; one per event loop. Arguments as of `SandboxClient`.

    Decided: docs/decisions/packaging.md, “The sandbox's asyncio client has aiohttp's connections”.

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
        requests, began = [_request(source, function, arguments, state, seed, limits)], time.monotonic()
        return self._waited(began, _replies([await self._post("/v1/execute", requests, batch=False)], 1))[0]

    async def execute_batch(self, requests: Sequence[ExecuteRequest]) -> list[ExecuteReply]:
        """Run independent calls at once; return the replies in the order of the requests.

        Raises:
            SandboxUnavailable: the service gave no answer, or not to all of them.
            ValueError: a request is not valid in itself.
        """
        if not requests:
            return []
        try:
            return _replies(await self._post("/v1/execute_batch", requests, batch=True), len(requests))
        except _BatchTooLarge:
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
                    found[replica.url] = _parsed((await self._once("GET", f"{replica.url}/health", b""))[2])
            except (TimeoutError, aiohttp.ClientError, _Lost):  # as above
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
            except _UnknownSource:
                content, same = self._texts(bodies), replica
                continue
            except TimeoutError:
                is_in_order, lost = False, _Lost("reply_late", f"no reply within {due_seconds:.3g} s")
                due_seconds *= 2
            except aiohttp.ClientConnectorError as error:  # its own text speaks of TLS that is not asked for
                is_in_order, lost = False, _Lost("connection_lost", f"{type(error).__name__}: {error.os_error}")
            except aiohttp.ClientPayloadError as error:
                is_in_order, lost = False, _Lost("reply_cut", f"{type(error).__name__}: {error}")
            except aiohttp.ClientError as error:
                is_in_order, lost = False, _Lost("connection_lost", f"{type(error).__name__}: {error}")
            except _Lost as found:
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
            raise _Lost("connection_lost", f"{replica.url}/health: {type(error).__name__}: {error}") from None
        if status != 200:
            raise _Lost("http_5xx" if status >= 500 else "connection_lost", f"{replica.url}/health is HTTP {status}")
        self.replicas.is_well(replica)

    async def _once(self, method: str, url: str, content: bytes) -> tuple[int, str | None, bytes]:
        # A redirect is followed no further: the token is for this service alone.
        async with self._http.request(
            method, url, data=content, allow_redirects=False, headers=self._further_headers
        ) as response:
            return response.status, response.headers.get("retry-after"), await response.read()
