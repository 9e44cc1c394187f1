"""Tool servers at addresses: their faults, and keys from the environment that appear in no output."""

import asyncio
import io
import json
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from pydantic import ValidationError

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.tools.documents import ToolDocumentFilters
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import McpServerConfig, ToolServerDied, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.tools.http_server import TOKEN, VALUE, serving
from tests.synthesis.tools.servers import at, pool_of, said_to

SHOWN = {"bearer": {"bearer_env": "FAR_KEY"}, "header": {"header_env": {"X-Key": "FAR_KEY"}}}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("synthesis.tools.mcp_pool._RECONNECT_SECONDS", 0.3)


@pytest.mark.parametrize(
    ("kind", "key", "headers"), [("bearer", TOKEN, "Bearer [key] None"), ("header", VALUE, "None [key]")]
)
async def test_a_server_gets_the_key_of_the_environment_which_shows_nowhere_and_refuses_another_in_one_line(
    tmp_path, unused_tcp_port, monkeypatch, kind, key, headers
):
    config = at(unused_tcp_port, **SHOWN[kind])
    async with serving(unused_tcp_port, kind):
        monkeypatch.setenv("FAR_KEY", key)
        async with pool_of(config, tmp_path) as pool:
            tools = (await pool.source_server()).tools
            async with pool.lease() as session:
                assert await said_to(session, "headers") == headers
        monkeypatch.setenv("FAR_KEY", f"wrong-{key}")
        async with pool_of(config, tmp_path) as pool:
            with pytest.raises(ToolServerUnavailable, match=r"'far' refuses us .*FAR_KEY") as refused:
                await pool.source_server()
    assert [tool.name for tool in tools] == ["act", "search"]
    assert kind == "header" or tools[1].description == "Search something for a text, as [key] may."
    assert "\n" not in str(refused.value)
    assert key not in str(refused.value)
    assert "FAR_KEY" not in config.model_dump_json()


@pytest.mark.parametrize("value", [None, "", "two\nlines", " token", "schlüssel"])
def test_a_key_that_is_missing_or_cannot_be_sent_is_named_and_not_shown(tmp_path, monkeypatch, value):
    monkeypatch.setenv("FAR_KEY", value or "")
    if value is None:
        monkeypatch.delenv("FAR_KEY")
    with pytest.raises(ToolServerUnavailable, match="FAR_KEY") as refused:
        McpPool(at(1, bearer_env="FAR_KEY"), tmp_path / "w")
    assert not value or value not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://u:pass-word-1@far.example/mcp", "https://far.example/mcp?api_key=sk-12345678"]
)
def test_an_address_with_a_key_in_it_is_refused_and_not_shown(tmp_path, url):
    with pytest.raises(ToolServerUnavailable, match=r"its address holds .*, and may hold no key") as refused:
        McpPool(McpServerConfig(name="far", url=url), tmp_path / "w")
    said = str(refused.value) + str(refused.value.__cause__)
    assert "pass-word-1" not in said
    assert "sk-12345678" not in said


async def test_a_server_that_was_started_anew_between_two_calls_does_not_know_the_session_which_is_no_response(
    tmp_path, unused_tcp_port
):
    async with pool_of(at(unused_tcp_port), tmp_path) as pool:
        async with serving(unused_tcp_port):
            lease = pool.lease()
            session = await lease.__aenter__()
            assert await said_to(session, "far") == "FAR"
        async with serving(unused_tcp_port):
            with pytest.raises(ToolServerDied, match=r"HTTP 404|ended"):
                await said_to(session, "far")
            await lease.__aexit__(None, None, None)
            async with pool.lease() as other:
                assert await said_to(other, "far") == "FAR"


@pytest.mark.parametrize(("text", "ended"), [("sleep", r"within 2 s"), ("http 500", "ended the session with HTTP 500")])
async def test_a_call_that_hangs_or_fails_ends_its_session_and_the_next_one_works(
    tmp_path, unused_tcp_port, text, ended
):
    config = at(unused_tcp_port, call_seconds=2)
    async with serving(unused_tcp_port), pool_of(config, tmp_path) as pool, asyncio.timeout(60):
        with pytest.raises(ToolServerDied, match=ended):
            async with pool.lease() as session:
                await said_to(session, text)
        async with pool.lease() as other:
            assert await said_to(other, "far") == "FAR"


async def test_a_server_that_accepts_and_says_nothing_ends_in_one_line(tmp_path, unused_tcp_port):
    with socket.create_server(("127.0.0.1", unused_tcp_port)):
        async with pool_of(at(unused_tcp_port, start_seconds=0.3), tmp_path) as pool:
            with pytest.raises(ToolServerUnavailable, match=r"within 0\.3 s"):
                await pool.source_server()


@pytest.mark.parametrize("num_early", [1, 2])
async def test_a_server_that_is_on_its_way_up_is_asked_once_more_and_no_third_time(tmp_path, monkeypatch, num_early):
    starts = []

    async def start(session):
        starts.append(session)
        if len(starts) <= num_early:
            raise ToolServerUnavailable("not yet")

    monkeypatch.setattr(McpSession, "start", start)
    async with pool_of(at(1), tmp_path) as pool:
        if num_early == 1:
            async with pool.lease() as session:
                assert session is starts[-1]
        else:
            with pytest.raises(ToolServerUnavailable, match="not yet"):
                await pool.source_server()
    assert len(starts) == 2


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "either `command` or `url`"),
        ({"command": ("x",), "url": "http://x"}, "either `command` or `url`"),
        ({"command": ("x",), "bearer_env": "T"}, "environment_from"),
        ({"url": "http://x", "environment": {"A": "b"}}, "beside `command`"),
        ({"url": "http://x", "readable": ["/srv"]}, "readable beside `command`"),
        ({"sse_url": "http://x"}, "sse_url\n.*Extra inputs are not permitted"),
        ({"url": "http://x", "bearer_env": "T", "header_env": {"authorization": "U"}}, "expected one of"),
    ],
)
def test_settings_that_contradict_one_another_end_in_one_line(settings, said):
    with pytest.raises(ValidationError, match=said):
        McpServerConfig(name="x", **settings)


def run_with(out: Path, server: McpServerConfig, **changes) -> TrajectoriesConfig:
    """Return the config of a run of a few conversations with one server of two tools."""
    small = {"count": 4, "shipped_examples": False, "refuse_share": 0, "ask_back_share": 0, "min_chain_length": 1}
    filters = ToolDocumentFilters(min_tools=2)
    some = {"out": out, "mcp_servers": (server,), "filters": filters, "max_attempts_per_trajectory": 20}
    return TrajectoriesConfig(**(small | some | changes))


async def test_a_run_with_a_server_behind_a_token_writes_the_token_nowhere(
    tmp_path, unused_tcp_port, monkeypatch, capfd, caplog
):
    caplog.set_level("DEBUG")
    monkeypatch.setenv("FAR_KEY", TOKEN)
    async with serving(unused_tcp_port, "bearer"):
        server = at(unused_tcp_port, **SHOWN["bearer"], argument_values={"text": ["headers", "far"]})
        config = run_with(tmp_path / "out", server)
        line = io.StringIO()
        await synthesize_trajectories(config, ProceduralTeacher(), progress=line)
    records = list(RecordSource(tmp_path / "out", Trajectory))
    assert {record.tool_backend for record in records} == {"mcp"}
    contents = [message.content for record in records for message in record.messages if message.role == "tool"]
    assert any("[key]" in content for content in contents)
    files = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    out, err = capfd.readouterr()
    for place in (files, out.encode(), err.encode(), line.getvalue().encode(), json.dumps(str(config)).encode()):
        assert TOKEN.encode() not in place
    ours = [record for record in caplog.records if record.name.startswith(("synthesis", "mcp", "httpx2"))]
    assert not any(TOKEN in record.getMessage() for record in ours)


async def test_a_server_that_is_gone_stops_the_run_in_one_line_and_the_same_command_goes_on_to_the_same_records(
    tmp_path, unused_tcp_port, monkeypatch
):
    far = at(unused_tcp_port, argument_values={"text": ["near", "far"]}, start_seconds=10)

    async def run(name: str) -> dict[str, bytes]:
        config = run_with(tmp_path / name, far, count=5, concurrency=1)
        await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
        return {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}

    live_call, calls = McpSession.call, []
    async with AsyncExitStack() as server:
        await server.enter_async_context(serving(unused_tcp_port))
        undisturbed = await run("undisturbed")

        async def mortal_call(session, tool, arguments):
            calls.append(tool)
            if len(calls) == 3:
                await server.aclose()
            return await live_call(session, tool, arguments)

        monkeypatch.setattr(McpSession, "call", mortal_call)
        with pytest.raises(ToolServerUnavailable, match="'far' does not start: ConnectError") as stopped:
            await run("killed")
    assert "\n" not in str(stopped.value)
    async with serving(unused_tcp_port):
        assert await run("killed") == undisturbed
