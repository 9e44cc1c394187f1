"""Requests that reach no endpoint: those of web pages, and where there is a key, those without it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import JSONResponse

from astra_jax.serve.server import Admission

REQUESTS = [
    *(("POST", path) for path in ("/v1/chat/completions", "/inference/v1/generate", "/health")),
    *(("GET", path) for path in ("/v1/models", "/v1/models/tiny", "/", "/nowhere", "/health/", "//health")),
    *(("HEAD", "/v1/models"), ("DELETE", "/v1/models"), ("OPTIONS", "/v1/chat/completions")),
    ("GET", "/v1/models/../../health"),
]
HERE, KEY = ("host", "127.0.0.1"), ("authorization", "Bearer secret-key")


def reply(key: str | None, method: str, path: str, *headers: tuple[str, str]) -> tuple[int, str | None]:
    """Return the status, and the code of the error, for exactly these headers; the key is in no reply."""
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    scope = {"type": "http", "method": method, "path": path, "headers": raw}
    asyncio.run(Admission(JSONResponse({}), SimpleNamespace(num_taken=0), key)(scope, None, send))
    assert b"secret-key" not in sent[1]["body"]
    return sent[0]["status"], json.loads(sent[1]["body"]).get("error", {}).get("code")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost:1", "localhost.", "[::1]:80"])
def test_a_server_without_a_key_is_asked_by_address_or_as_localhost(host):
    for method, path in REQUESTS:
        assert reply(None, method, path, ("host", host)) == (200, None)
    assert reply(None, "GET", "/health") == (200, None)  # every browser names a host


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "EVIL.example.", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("notlocalhost", "[::1].evil.example", "[::1", "localhost@evil.example", "", ":8000", "http://127.0.0.1"),
    ],
)
def test_a_name_that_leads_here_is_refused_without_a_key(host):
    for method, path in [*REQUESTS, ("GET", "/health")]:
        assert reply(None, method, path, ("host", host)) == (403, "unknown_host")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://127.0.0.1:8000", "http://localhost"])
def test_a_web_page_is_refused_with_and_without_the_key(origin):
    for method, path in [*REQUESTS, ("GET", "/health")]:
        for key in (None, "secret-key"):
            assert reply(key, method, path, HERE, KEY, ("origin", origin)) == (403, "web_page")


@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "secret-key", "Bearer secret-key2", "Bearer ", "Bearer schl\xfc"]
)
def test_only_health_is_answered_without_the_key(given):
    headers = [("host", "model.example")] + ([] if given is None else [("authorization", given)])
    for method, path in REQUESTS:
        assert reply("secret-key", method, path, *headers) == (401, "unauthorized")
        assert reply("secret-key", method, path, ("host", "model.example"), KEY) == (200, None)
    for method in ("GET", "HEAD"):
        assert reply("secret-key", method, "/health", *headers) == (200, None)
