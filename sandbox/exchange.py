"""One exchange with the service, whichever way the bytes go: what is sent, and what a reply means.

Neither client's own: no connection is opened here and nothing waits.
"""

from __future__ import annotations

import json
import random
import secrets
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

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
_REPLIES = TypeAdapter(list[ExecuteReply])
_MAX_BACKOFF_SECONDS = 2.0
_KNOWN_SOURCES = 4096


class SandboxUnavailable(SandboxError):  # the name that callers are promised
    """The service did not answer a call; the call may or may not have run, and it has no result."""


class PackagesMissing(SandboxUnavailable):
    """The sandbox has not the packages that tools import, or replicas have different versions of them."""


class Lost(Exception):
    """An attempt has no whole reply; the next one may have. Its text says why."""

    def __init__(self, kind: ServiceError, why: str):
        super().__init__(why)
        self.kind: ServiceError = kind


class SourceWanted(Exception):
    """The server does not have, or no longer has, a source that it was sent the hash of."""


class BatchTooLarge(Exception):
    """A batch is longer than the server takes, or its replies than it holds at once; half of it may do."""


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


class Session:
    """What both clients know of the service: replicas, headers, deadlines, sources it has, how its replies are read."""

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
        """Two batches instead of one that is too long, or whose replies are."""
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
            Lost: it is the service that failed, or a part of the reply is missing.
            SourceWanted: the request is to be sent with the texts of its sources.
            BatchTooLarge: the batch is to be sent in parts.
            SandboxUnavailable: sending it again cannot help.
        """
        if status == 204:
            return None
        if status == 200:
            return parsed(body)
        if status == 401:
            raise SandboxUnavailable(self._not_let_in())
        text = f"HTTP {status}: {_error_message(body)}"
        if status == 429 or status >= 500:
            raise Lost("http_429" if status == 429 else "http_5xx", text)
        if status == 404 and b'"unknown_source"' in body:
            raise SourceWanted
        if status == 413 and b'"batch_too_large"' in body:
            raise BatchTooLarge
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


def parsed(body: bytes) -> Any:
    """Return the JSON of a whole reply.

    Raises:
        Lost: the reply is only the beginning of one.
        SandboxUnavailable: it is not JSON.

    >>> parsed(b'{"status": "ok", "val')
    Traceback (most recent call last):
    sandbox.exchange.Lost: the reply ends in the middle, after 21 bytes
    """
    try:
        return json.loads(body)
    except ValueError as error:
        if _ends_early(body):
            raise Lost("reply_cut", f"the reply ends in the middle, after {len(body)} bytes") from None
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


def request_of(
    source: str, function: str, arguments: Mapping[str, Any], state: dict[str, Any] | None, seed: int, limits: Limits
) -> ExecuteRequest:
    """Return one call as the service takes it.

    Raises:
        ValueError: it is not valid in itself.
    """
    return ExecuteRequest(
        source=source, function=function, arguments=dict(arguments), state=state, seed=seed, limits=limits
    )


def replies_of(documents: Any, count: int) -> list[ExecuteReply]:
    """Return what the service says to so many calls.

    Raises:
        SandboxUnavailable: it is not what the protocol has, or not as many.
    """
    try:
        replies = _REPLIES.validate_python(documents)
    except ValueError as error:
        raise _not_the_protocol(error) from None
    if len(replies) != count:
        raise SandboxUnavailable(f"the sandbox answered {len(replies)} of {count} calls")
    return replies
