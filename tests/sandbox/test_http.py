"""The service's HTTP side: malformed requests, refused callers, a full queue, callers that leave."""

import http.client
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from sandbox import server
from sandbox.client import SandboxClient
from sandbox.endpoints import application
from sandbox.execution import Execution
from sandbox.isolation import Tier
from sandbox.local import local_sandbox
from sandbox.pool import Pool
from tests.sandbox.processes import wait_until
from tests.sandbox.services import ROOT, own, refusal

ADD = "def add(a, b):\n    return a + b\n"
CALL: dict[str, Any] = {"source": ADD, "function": "add", "arguments": {"a": 1, "b": 2}}


def changed(**fields: Any) -> bytes:
    return json.dumps({**CALL, **fields}).encode()


def with_argument(text: str) -> bytes:
    return changed(arguments={"a": 0}).replace(b"0", text.encode())


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"{", 400, "not JSON"),
        (b"\xff\xfe", 400, "not JSON"),
        (with_argument("1e999"), 400, "1e999 is too large"),
        (with_argument("1" * 5000), 400, "4300 digits"),
        (with_argument("[" * 961 + "]" * 961), 400, "too deeply"),
        (changed(**{"\ud800": 1}), 400, "unable to parse"),
        (changed(limits={"\ud800": 1}), 400, "unable to parse"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'{"source": NaN}', 400, "NaN"),
        (b"[]", 400, "valid dictionary"),
        (b'{"function": "f"}', 400, "exactly one of"),
        (changed(source_sha256="0" * 64), 400, "exactly one of"),
        (changed(surprise=1), 400, "surprise"),
        (changed(arguments=[1]), 400, "arguments"),
        (changed(seed=-1), 400, "seed"),
        (changed(limits={"wall_seconds": 0}), 400, "wall_seconds"),
        (changed(limits={"wall_seconds": 61}), 400, "maximum is 60"),
        (changed(limits={"memory_bytes": 1 << 40}), 400, "maximum is"),
        (json.dumps({"source_sha256": "0" * 64, "function": "f"}).encode(), 404, "send its text"),
        (b" " * (9 << 20), 413, "the server takes"),
    ],
)
def test_a_malformed_request_is_refused_in_one_line(http_client, content, status, words):
    response = http_client.post("/v1/execute", content=content)
    assert response.status_code == status
    message = response.json()["error"]["message"]
    assert words in message
    assert "\n" not in message


def test_unknown_paths_and_methods_are_json_errors(http_client):
    assert http_client.get("/nowhere").json()["error"]["code"] == "not_served"
    assert http_client.get("/v1/execute").status_code == 405
    # Parts of a batch that is too long may do.
    response = http_client.post("/v1/execute_batch", content=b" " * (9 << 20))
    assert (response.status_code, response.json()["error"]["code"]) == (413, "batch_too_large")


def test_metrics_count_calls_by_result(http_client):
    http_client.post("/v1/execute", json=CALL)
    values = dict(line.rsplit(" ", 1) for line in http_client.get("/metrics").text.splitlines())
    assert float(values['sandbox_calls_total{result="ok"}']) >= 1
    assert float(values["sandbox_workers_ready"]) == 2
    assert float(values["sandbox_call_wall_seconds_sum"]) > 0


def test_a_full_queue_is_429_with_a_time_to_come_back():
    sleep = {"source": "import time\ndef f():\n    time.sleep(0.6)\n", "function": "f"}
    with local_sandbox(1, options=("--max-queue", "2")) as url:

        def call(_):  # a connection each: the threads share no pool, which may close one in use
            return httpx.post(f"{url}/v1/execute", json=sleep, timeout=30, trust_env=False)

        with ThreadPoolExecutor(60) as threads:
            replies = list(threads.map(call, range(60)))
        assert {(reply.status_code, reply.headers.get("retry-after")) for reply in replies} == {(200, None), (429, "1")}
        with SandboxClient(url) as patient, ThreadPoolExecutor(60) as threads:
            values = list(threads.map(lambda i: patient.execute(ADD, "add", {"a": i, "b": 1}).value, range(60)))
        assert values == list(range(1, 61))


GIVEN = {"authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("token", "headers", "code"),
    [
        ("", {}, None),
        ("", {"host": "localhost:8377"}, None),
        ("", {"origin": "https://evil.example"}, "web_page"),
        ("", {"origin": "null"}, "web_page"),
        ("", {"host": "evil.example:8377"}, "unknown_host"),
        ("", {"host": "127.0.0.1.evil.example"}, "unknown_host"),
        ("", {"x-sandbox-packages": "numpy==2.4.6"}, "packages_missing"),
        ("secret", {}, "unauthorized"),
        ("secret", {"authorization": "Bearer wrong"}, "unauthorized"),
        ("secret", GIVEN, None),
        ("secret", {**GIVEN, "host": "astra-sandbox:8377"}, None),
        ("secret", {**GIVEN, "origin": "http://astra-sandbox"}, "web_page"),
    ],
)
async def test_web_pages_names_that_lead_here_and_callers_without_the_token_are_refused(token, headers, code):
    app = application(Execution(Pool(Tier.NAMESPACES, 1)), token=token)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8377") as caller:
        response = await caller.post("/v1/execute", content=b"{", headers=headers)
        assert response.json()["error"]["code"] == (code or "invalid_request")
        health, metrics = [(await caller.get(path, headers=headers)).status_code for path in ("/health", "/metrics")]
    statuses = {"web_page": 403, "unknown_host": 421, "packages_missing": 409, "unauthorized": 401, None: 400}
    assert response.status_code == statuses[code]
    # Load balancers have no token.
    assert health == (response.status_code if code in ("web_page", "unknown_host") else 503)
    assert metrics == (200 if code in (None, "packages_missing") else response.status_code)


def test_an_address_that_will_not_do_is_said_in_one_line(sandbox_url):
    assert "refuses to start: 0.0.0.0 can be reached by others" in refusal(**own("--host", "0.0.0.0"))
    port = sandbox_url.rsplit(":", 1)[1]
    log = refusal(**own("--port", port))
    assert log.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{port}" in log


def test_the_calls_of_a_caller_that_leaves_are_ended_wherever_they_are():
    source = "import time\ndef f():\n    time.sleep(30)\n"
    call = {"source": source, "function": "f", "limits": {"wall_seconds": 40}}
    with local_sandbox(1) as url, SandboxClient(url) as others:

        def queue():
            return others.health()["queue"]

        host, port = url.removeprefix("http://").split(":")
        callers = [http.client.HTTPConnection(host, int(port)) for _ in range(30)]
        for number, caller in enumerate(callers):
            path, document = ("/v1/execute", call) if number % 2 else ("/v1/execute_batch", [call] * 2)
            caller.request("POST", path, json.dumps(document))
        wait_until(lambda: queue()["in_flight"] == 24 and queue()["waiting"] > 0)
        for caller in callers:
            caller.close()
        wait_until(lambda: queue()["in_flight"] == queue()["waiting"] == 0)
        assert others.execute(ADD, "add", {"a": 1, "b": 2}).value == 3


def test_a_low_soft_limit_of_descriptors_is_raised():
    program = (
        "from sandbox.server import _raise_descriptor_limit as f; import resource as r; f(); print(*r.getrlimit(7))"
    )
    command = ["bash", "-c", 'ulimit -Sn 256; exec "$0" -c "$1"', sys.executable, program]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    soft, hard = map(int, found.split())
    assert soft == min(hard if hard >= 0 else 1 << 16, 1 << 16) > 256


def test_a_reply_does_not_wait_for_the_caller_to_acknowledge_its_head():
    """asyncio turns Nagle's algorithm off for sockets that say that they are of TCP."""
    with server._listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
