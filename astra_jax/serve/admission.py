"""The requests that reach an endpoint: none of a web page, and where there is a key, only those that carry it."""

from __future__ import annotations

import secrets

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from astra_jax.serve.metrics import ServerMetrics
from astra_jax.serve.refusal import RequestRefused, reply_of
from sandbox.web_pages import is_local_name

_OPEN_TO_ALL = {("GET", "/health"), ("HEAD", "/health")}


class Admission:
    """An ASGI application that refuses requests before another one looks at them, whatever their path and method.

    403 for a request of a web page: one with an Origin header, or, where there is no key, one whose Host is neither an
    address nor `localhost`. 401 for a request without the key; `GET /health` needs none.

    Decided: docs/decisions/serve.md, “Only /health is open to all, and nothing to a web page”.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, key: str | None):
        self._app, self._metrics = app, metrics
        self._expected = f"Bearer {key}".encode() if key else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or hand it on."""
        refused = self._refusal(Headers(scope=scope), (scope["method"], scope["path"]))
        if refused is None:
            await self._app(scope, receive, send)
            return
        self._metrics.count_reply("not let in", refused.status)
        await reply_of(refused)(scope, receive, send)

    def _refusal(self, headers: Headers, asked: tuple[str, str]) -> RequestRefused | None:
        if "origin" in headers:
            return RequestRefused(403, "requests of web pages (with an Origin header) are refused", code="web_page")
        given = headers.get("authorization", "").encode()
        if self._expected is None:  # then the server listens on loopback alone
            if is_local_name(headers.get("host")):
                return None
            why = (
                f"expected localhost or an address as Host, found {headers['host'][:100]!r}: set a key to serve by name"
            )
            return RequestRefused(403, why, code="unknown_host")
        if asked in _OPEN_TO_ALL or secrets.compare_digest(given, self._expected):
            return None
        return RequestRefused(401, "the key is missing or wrong: send it as a bearer token", code="unauthorized")
