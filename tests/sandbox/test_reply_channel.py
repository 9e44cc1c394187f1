"""A tool that writes to the channel of its own reply harms its own reply only."""

from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox.protocol import ExecuteReply
from tests.sandbox.services import altered, own, refusal

# Writes bytes as they are, or in the frame of a genuine reply, whose nonce it finds in its own process.
WRITE = """
import os, sys
def f(data, framed, status):
    data = bytes.fromhex(data)
    if framed:
        frame = sys._getframe()
        while 'finish' not in frame.f_locals: frame = frame.f_back
        finish = frame.f_locals['finish']
        bound = dict(zip(finish.__code__.co_freevars, (cell.cell_contents for cell in finish.__closure__)))
        data = bound['pack'](bound['nonce'], len(data)) + data
    while data: data = data[os.write(3, data):]
    os._exit(status)
"""
NEIGHBOUR = {"source": "def f(x):\n    return 2 * x\n", "function": "f", "arguments": {"x": 21}}

texts = st.sampled_from(
    (
        '"ok" "error" "timeout" "crashed" "memory" null 1 {} [] 1e999 -1e400 NaN Infinity -0 1.0 1.50 "" x \xff '
        '"\\ud800" {"a":1,"a":2} {"kind":"exception","message":"m"} {"kind":"service_fault","message":1} '
        f'{{"kind":[],"message":"m"}} {"1" * 5000} {"[" * 150 + "]" * 150} {"[" * 3000}'
    ).split(" ")
)
documents = st.dictionaries(
    st.sampled_from(["status", "value", "state", "stdout", "stderr", "error", "usage"]), texts, max_size=7
).map(lambda parts: ("{" + ",".join(f'"{name}":{text}' for name, text in parts.items()) + "}").encode("latin-1"))
well_meant = texts.map(lambda text: f'{{"status":"ok","value":{text},"state":null,"stdout":""}}'.encode("latin-1"))
words = st.sampled_from([b"not restricted!!", b"restricted", b"\x00" * 16, b"e" + bytes(60), b'{"ready": false}'])


def attack(client: httpx.Client, data: bytes, framed: bool, status: int = 0) -> ExecuteReply:
    """The reply to a tool that writes `data`, between two neighbours in a batch that must not notice."""
    arguments: dict[str, Any] = {"data": data.hex(), "framed": framed, "status": status}
    batch = [NEIGHBOUR, {"source": WRITE, "function": "f", "arguments": arguments}, NEIGHBOUR]
    response = client.post("/v1/execute_batch", json=batch)
    assert response.status_code == 200, response.text
    first, reply, last = (ExecuteReply.model_validate(document) for document in response.json())
    assert first.value == last.value == 42
    return reply


def proof(max_examples: int) -> settings:
    return settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


@proof(25)
@given(
    data=st.binary(max_size=200) | st.builds(bytes.__add__, words, st.binary(max_size=60)), status=st.integers(0, 255)
)
def test_any_bytes_on_the_channel_end_that_call_alone(http_client, data, status):
    reply = attack(http_client, data, framed=False, status=status)
    assert reply.error is not None
    assert reply.error.kind == ("forbidden" if data else "crashed")


@proof(60)
@given(body=documents | well_meant | st.binary(max_size=200))
def test_any_body_in_a_genuine_frame_is_a_reply_or_that_calls_error(http_client, body):
    reply = attack(http_client, body, framed=True)
    assert reply.error is None or reply.error.kind in ("invalid_result", "exception", "memory"), reply


@pytest.mark.parametrize(
    ("instead_of_restrictions", "reason"),
    [
        ("raise OSError(5, 'no filter today')", "could not be isolated: OSError: [Errno 5] no filter today"),
        ("os._exit(0)", "could not be isolated: its process ended first, wait status 0"),
    ],
)
def test_a_call_that_was_not_restricted_is_the_services_fault(instead_of_restrictions, reason, tmp_path):
    altered(tmp_path, "jail/harness.py", "            install_filter()\n", f"            {instead_of_restrictions}\n")
    assert reason in refusal(**own("--min-tier", "namespaces", root=tmp_path))
