"""Requests that reach no endpoint: those of web pages, and where there is a key, those without it."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator

import pytest

from tests.astra_jax.serve.running import Running, running, served
from tests.astra_jax.serve.scripted_decoder import ScriptedDecoder

REQUESTS = [
    *(("POST", path) for path in ("/v1/chat/completions", "/inference/v1/generate", "/health")),
    *(("GET", path) for path in ("/v1/models", "/v1/models/tiny", "/v1/models/none", "/", "/nowhere", "/health/")),
    *(("GET", path) for path in ("//health", "/v1/models/../../health")),
    *(("HEAD", "/v1/models"), ("DELETE", "/v1/models"), ("OPTIONS", "/v1/chat/completions")),
]


@pytest.fixture(scope="module")
def keyless(untrained) -> Iterator[Running]:
    with running(served(untrained), decoder=ScriptedDecoder(untrained.tokenizer)) as up:
        yield up


@pytest.fixture(scope="module")
def keyed(untrained) -> Iterator[Running]:
    with running(served(untrained), decoder=ScriptedDecoder(untrained.tokenizer), key="secret-key") as up:
        yield up


def reply(server: Running, method: str, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Send exactly these headers; return the status, and the code of the error. The key is in no reply."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=20)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in (*headers, ("Content-Length", "0")):
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    assert b"secret-key" not in body
    code = json.loads(body).get("error", {}).get("code") if body[:1] == b"{" else None
    return answer.status, code


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost:1", "localhost.", "[::1]:80"])
def test_a_server_without_a_key_is_asked_by_address_or_as_localhost(keyless, host):
    assert reply(keyless, "GET", "/health", ("Host", host)) == (200, None)
    assert reply(keyless, "GET", "/v1/models", ("Host", host)) == (200, None)
    assert reply(keyless, "POST", "/v1/chat/completions", ("Host", host))[0] == 400


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "evil.example:8000", "EVIL.example.", "127.0.0.1.evil.example", "localhost.evil.example"),
        *("notlocalhost", "[::1].evil.example", "[::1", "localhost@evil.example", "", ":8000", "http://127.0.0.1"),
    ],
)
@pytest.mark.parametrize(("method", "path"), [*REQUESTS[:4], ("GET", "/health")])
def test_a_name_that_leads_here_is_refused_without_a_key(keyless, host, method, path):
    assert reply(keyless, method, path, ("Host", host)) == (403, "unknown_host")


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "", "http://127.0.0.1:8000", "http://localhost"])
@pytest.mark.parametrize(("method", "path"), [*REQUESTS, ("GET", "/health")])
def test_a_web_page_is_refused_with_and_without_the_key(keyless, keyed, origin, method, path):
    here, key = ("Host", "127.0.0.1"), ("Authorization", "Bearer secret-key")
    code = None if method == "HEAD" else "web_page"
    assert reply(keyless, method, path, here, ("Origin", origin)) == (403, code)
    assert reply(keyed, method, path, here, ("oRiGiN", origin), key) == (403, code)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
@pytest.mark.parametrize(
    "given", [None, "Bearer wrong", "secret-key", "Bearer secret-key2", "Bearer ", "Bearer schl\xfc"]
)
def test_only_health_is_answered_without_the_key(keyed, method, path, given):
    headers = [("Host", "model.example")] + ([] if given is None else [("Authorization", given)])
    code = None if method == "HEAD" else "unauthorized"
    assert reply(keyed, method, path, *headers) == (401, code)
    assert reply(keyed, "GET", "/health", *headers) == reply(keyed, "HEAD", "/health", *headers) == (200, None)


def test_with_the_key_any_name_will_do_and_what_is_not_served_is_told(keyed):
    headers = (("Host", "model.example"), ("Authorization", "Bearer secret-key"))
    assert reply(keyed, "GET", "/v1/models", *headers) == (200, None)
    assert reply(keyed, "POST", "/v1/chat/completions", *headers)[0] == 400
    assert reply(keyed, "GET", "/nowhere", *headers)[0] == 404
    assert reply(keyed, "DELETE", "/v1/models", *headers)[0] == 405
