"""Calls through the real service: those that should work, and every hostile tool with its promised answer."""

import pytest

from sandbox.client import SandboxClient
from sandbox.contract.promises import PROMISES
from sandbox.protocol import ErrorKind, Limits

ADD = "def add(a, b):\n    print('adding')\n    return a + b\n"


def test_a_tool_returns_its_value_and_its_output(client):
    reply = client.execute(ADD, "add", {"a": 1, "b": 2})
    assert (reply.status, reply.value, reply.stdout) == ("ok", 3, "adding\n")
    assert reply.usage.cpu_seconds > 0


def test_a_tool_that_raises_is_a_reply_and_names_the_line(client):
    reply = client.execute("def f():\n    return {}['missing']\n", "f", {})
    assert reply.error is not None
    assert (reply.error.kind, reply.error.message) == (ErrorKind.EXCEPTION, "KeyError: 'missing' (line 2)")


def _first_and_later(client: SandboxClient, source: str, limits: Limits | None = None) -> list[object]:
    """Return the replies to the call whose process compiles the source, and to two later ones."""
    calls = [client.execute(source, "f", {}, limits=limits or Limits()) for _ in range(3)]
    return [(reply.status, reply.value, reply.stdout, reply.error) for reply in calls]


def test_the_call_that_compiles_a_source_replies_as_later_ones(client):
    noise = "import warnings\nwarnings.warn('x')\n"
    for body in (
        "def f():\n    print('said')\n    return {'a': [1, 2.5, 'ü']}\n",
        "def f():\n    return undefined\n",
        "def f():\n    import os\n    os._exit(3)\n",
        "def f():\n    return bytearray(1 << 30)\n",
        f"{noise}def f():\n    return len(warnings.filters)\n",
        "def f(:\n",
        "raise ValueError('in the module')\n",
    ):
        first, *later = _first_and_later(client, body)
        assert later == [first, first], body


def test_a_long_source_is_compiled_out_of_its_calls_own_limits(client):
    source = "def f():\n    return 1\n" + "".join(f"a{i} = {i}\n" for i in range(20_000))
    assert _first_and_later(client, source)[0] == ("ok", 1, "", None)
    endless = source + "# another\n"
    reply = client.execute(endless, "f", {}, limits=Limits(wall_seconds=0.02))
    assert reply.error is not None
    assert reply.error.kind == ErrorKind.TIMEOUT


@pytest.mark.parametrize("promise", [pytest.param(each, id=each.name) for each in PROMISES])
def test_a_promise_is_kept(client, promise):
    assert promise.check(client, overshoot_seconds=5.0) is None  # tests share their machine; alone it takes 0.25
