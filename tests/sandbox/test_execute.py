"""Calls that should work, through the real service."""

from sandbox.client import AsyncSandboxClient, SandboxClient
from sandbox.protocol import ErrorKind, ExecuteRequest, Limits

ADD = "def add(a, b):\n    print('adding')\n    return a + b\n"
STATEFUL = "def push(item, state):\n    state.setdefault('items', []).append(item)\n    return len(state['items'])\n"


def test_a_tool_returns_its_value_and_what_it_printed(client: SandboxClient) -> None:
    reply = client.execute(ADD, "add", {"a": 1, "b": 2})
    assert (reply.status, reply.value, reply.stdout) == ("ok", 3, "adding\n")
    assert reply.usage.cpu_seconds > 0


def test_state_travels_with_the_call_and_comes_back_changed(client: SandboxClient) -> None:
    first = client.execute(STATEFUL, "push", {"item": "x"}, state={})
    second = client.execute(STATEFUL, "push", {"item": "y"}, state=first.state)
    assert (first.value, second.value, second.state) == (1, 2, {"items": ["x", "y"]})


def test_a_tool_that_raises_is_a_reply_and_names_the_line(client: SandboxClient) -> None:
    reply = client.execute("def f():\n    return {}['missing']\n", "f", {})
    assert reply.error is not None
    assert (reply.error.kind, reply.error.message) == (ErrorKind.EXCEPTION, "KeyError: 'missing' (line 2)")


def test_an_endless_loop_ends_at_its_limit(client: SandboxClient) -> None:
    reply = client.execute(
        "def f():\n    while True: pass\n", "f", {}, limits=Limits(wall_seconds=0.5, cpu_seconds=0.2)
    )
    assert reply.error is not None
    assert reply.error.kind == ErrorKind.TIMEOUT
    assert reply.usage.wall_seconds < 3.0  # tests share their machine; the benchmark measures the overshoot


def test_a_batch_is_answered_in_order(client: SandboxClient) -> None:
    requests = [ExecuteRequest(source=ADD, function="add", arguments={"a": i, "b": 1}) for i in range(20)]
    assert [reply.value for reply in client.execute_batch(requests)] == list(range(1, 21))


async def test_the_async_client_says_the_same(sandbox_url: str) -> None:
    async with AsyncSandboxClient(sandbox_url) as client:
        assert (await client.execute(ADD, "add", {"a": 1, "b": 2})).value == 3
        assert (await client.health())["tier"] == "namespaces"


def test_a_source_the_server_forgot_is_sent_again(client: SandboxClient, sandbox_url: str) -> None:
    with SandboxClient(sandbox_url) as fresh:
        source = "def g():\n    return 'never sent before'\n"
        fresh._known[__import__("hashlib").sha256(source.encode()).hexdigest()] = None
        assert fresh.execute(source, "g", {}).value == "never sent before"
