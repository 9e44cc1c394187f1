"""Real MCP servers: started, listed, called, isolated, replaced when they die."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from synthesis.trajectories.mcp_servers import (
    McpBackend,
    McpPool,
    McpServerConfig,
    ToolServerDied,
    ToolServerUnavailable,
)
from synthesis.trajectories.tool_documents import ToolDocumentFilters, normalise_server

CLOCK = "2026-03-02T09:00:00+00:00"
TIME = McpServerConfig(
    name="Time",
    command=("python", "-m", "synthesis.trajectories.frozen_clock", CLOCK, "mcp_server_time", "--local-timezone=UTC"),
)
GIT = McpServerConfig(
    name="Git",
    command=("python", "-m", "mcp_server_git", "--repository", "."),
    prepare=("python", "-m", "synthesis.trajectories.demo_repositories"),
    max_sessions=1,
)


def scripted_server(tmp_path, body: str, **settings) -> McpServerConfig:
    """Write a server of our own whose one tool misbehaves."""
    path = tmp_path / "server.py"
    source = f"""
    import os, sys, time
    from mcp.server.mcpserver import MCPServer

    server = MCPServer("test")

    @server.tool()
    def act(text: str) -> str:
        "Do something with a text."
        {body}

    server.run()
    """
    path.write_text(textwrap.dedent(source))
    return McpServerConfig(name="test", command=("python", str(path)), **settings)


async def test_a_clock_that_stands_still_makes_time_answers_the_same_on_any_day(tmp_path):
    pool = McpPool(TIME, tmp_path / "time")
    try:
        server = normalise_server(await pool.source_server(), ToolDocumentFilters(min_tools=2))
        now, convert = server.tools
        async with pool.lease() as session:
            backend = McpBackend(session)
            response = await backend.call("c1", now, {"timezone": "Europe/Paris"})
            assert '"datetime": "2026-03-02T10:00:00+01:00"' in response.content
            converted = {"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "UTC"}
            assert "-9.0h" in (await backend.call("c2", convert, converted)).content
            failed = await backend.call("c3", now, {"timezone": "Nowhere"})
            assert failed.is_error
    finally:
        await pool.close()
    assert not (tmp_path / "time").exists()


async def test_every_lease_finds_the_workspace_as_it_was_prepared_and_no_path_of_the_machine_comes_back(tmp_path):
    pool = McpPool(GIT, tmp_path / "git")
    try:
        tools = {tool.name: tool for tool in (await pool.source_server()).tools}
        assert len(tools) == 12
        async with pool.lease() as session:
            first = await session.call("git_log", {"repo_path": "notes", "max_count": 1})
            created = await session.call("git_create_branch", {"repo_path": "notes", "branch_name": "new"})
            outside = await session.call("git_status", {"repo_path": "../.."})
            pid = session
        async with pool.lease() as session:
            assert session is pid
            assert await session.call("git_log", {"repo_path": "notes", "max_count": 1}) == first
            assert not (await session.call("git_create_branch", {"repo_path": "notes", "branch_name": "new"})).is_error
        assert not created.is_error
        assert outside.is_error
        assert str(tmp_path) not in first.content + created.content + outside.content
    finally:
        await pool.close()


async def test_a_server_that_dies_in_a_call_is_replaced_by_the_next_lease(tmp_path):
    pool = McpPool(scripted_server(tmp_path, "os._exit(3) if text == 'die' else None; return text"), tmp_path / "w")
    try:
        async with asyncio.timeout(30):
            with pytest.raises(ToolServerDied):
                async with pool.lease() as session:
                    await session.call("act", {"text": "die"})
            async with pool.lease() as other:
                assert other is not session
                assert (await other.call("act", {"text": "alive"})).content == "alive"
    finally:
        await pool.close()


async def test_a_killed_server_is_noticed_and_replaced(tmp_path):
    body = "return str(os.getpid()) if text == 'pid' else text"
    pool = McpPool(scripted_server(tmp_path, body, call_seconds=5), tmp_path / "w")
    try:
        async with asyncio.timeout(30):
            async with pool.lease() as session:
                os.kill(int((await session.call("act", {"text": "pid"})).content), signal.SIGKILL)
                with pytest.raises(ToolServerDied):
                    await session.call("act", {"text": "after"})
            async with pool.lease() as other:
                assert (await other.call("act", {"text": "alive"})).content == "alive"
    finally:
        await pool.close()


async def test_a_call_that_hangs_ends_at_its_time_limit(tmp_path):
    pool = McpPool(scripted_server(tmp_path, "time.sleep(60)", call_seconds=0.3), tmp_path / "w")
    try:
        with pytest.raises(ToolServerDied, match=r"within 0\.3 s"):
            async with pool.lease() as session:
                await session.call("act", {"text": "x"})
    finally:
        await pool.close()


@pytest.mark.parametrize("command", [("no-such-program-anywhere",), (sys.executable, "-c", "print('not a server')")])
async def test_a_server_that_does_not_start_ends_in_one_clear_line(tmp_path, command):
    pool = McpPool(McpServerConfig(name="broken", command=command, start_seconds=10), tmp_path / "w")
    try:
        with pytest.raises(ToolServerUnavailable, match="'broken'"):
            await pool.source_server()
    finally:
        await pool.close()


async def test_a_server_sees_nothing_of_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    pool = McpPool(scripted_server(tmp_path, "return os.environ.get(text, 'unset')"), tmp_path / "w")
    try:
        async with pool.lease() as session:
            assert (await session.call("act", {"text": "OPENAI_API_KEY"})).content == "unset"
    finally:
        await pool.close()


def test_a_server_is_reached_by_command_or_by_address_and_not_by_both():
    with pytest.raises(ValueError, match="either `command` or `url`"):
        McpServerConfig(name="x")


async def test_a_server_at_an_address_is_listed_and_called_over_streamable_http(tmp_path, unused_tcp_port):
    path = tmp_path / "server.py"
    path.write_text(
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('test')\n"
        "@server.tool()\n"
        "def act(text: str) -> str:\n"
        "    'Do something with a text.'\n"
        "    return text.upper()\n"
        f"server.run(transport='streamable-http', host='127.0.0.1', port={unused_tcp_port})\n"
    )
    process = subprocess.Popen([sys.executable, path], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{unused_tcp_port}/mcp"
        async with asyncio.timeout(30):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
                except OSError:
                    await asyncio.sleep(0.05)
                else:
                    writer.close()
                    break
            pool = McpPool(McpServerConfig(name="remote", url=url), tmp_path / "w")
            assert [tool.name for tool in (await pool.source_server()).tools] == ["act"]
            async with pool.lease() as session:
                assert (await session.call("act", {"text": "far"})).content == "FAR"
            await pool.close()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "num_tools", "tool", "arguments", "answer"),
    [
        ("mcp-server-memory", 9, "read_graph", {}, '"entities"'),
        ("mcp-server-everything", 13, "echo", {"message": "far"}, "Echo: far"),
        ("mcp-server-filesystem", 14, "list_directory", {"path": "."}, "[FILE] note.txt"),
        ("mcp-server-sequential-thinking", 1, "sequentialthinking", {
            "thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1,
        }, '"thoughtHistoryLength": 1'),
        ("mcp-server-sqlite", 6, "list_tables", {}, "[]"),
    ],
)  # fmt: skip
async def test_the_reference_servers_are_listed_called_and_replaced_when_killed(
    tmp_path, program, num_tools, tool, arguments, answer
):
    if shutil.which(program) is None:
        pytest.skip(f"needs {program} on the PATH; the npm and PyPI packages are named after it")
    command = {"mcp-server-filesystem": (program, "."), "mcp-server-sqlite": (program, "--db-path", "shop.db")}
    prepare = ("python", "-c", "open('note.txt', 'w').close()")
    config = McpServerConfig(name=program, command=command.get(program, (program,)), prepare=prepare, start_seconds=120)
    pool = McpPool(config, tmp_path / "w")
    try:
        server = normalise_server(await pool.source_server(), ToolDocumentFilters(min_tools=1, min_description_words=1))
        assert len(server.tools) == num_tools
        document = next(document for document in server.tools if document.name == tool)
        async with asyncio.timeout(300):
            async with pool.lease() as session:
                response = await McpBackend(session).call("call_1", document, arguments)
                assert answer in response.content
                assert not response.is_error
                for process in psutil.Process().children(recursive=True):
                    process.kill()
                with pytest.raises(ToolServerDied):
                    await session.call(tool, arguments)
            async with pool.lease() as other:
                assert answer in (await McpBackend(other).call("call_1", document, arguments)).content
    finally:
        await pool.close()
