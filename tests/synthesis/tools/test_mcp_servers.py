"""Real MCP servers: started, listed, called, isolated, replaced when they die."""

import asyncio
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from synthesis.stage import Rejected
from synthesis.tools.backends import ToolResponse
from synthesis.tools.documents import ToolDocumentFilters, normalise_server
from synthesis.tools.mcp_credentials import credentials_of
from synthesis.tools.mcp_group import McpBackend
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import McpServerConfig, ToolServerDied, ToolServerUnavailable, environment_of
from synthesis.tools.mcp_session import McpSession

RAW_SERVER = Path(__file__).with_name("raw_server.py")
CLOCK = "2026-03-02T09:00:00+00:00"
TIME = McpServerConfig(
    name="Time",
    command=("python", "-m", "synthesis.tools.frozen_clock", CLOCK, "mcp_server_time", "--local-timezone=UTC"),
)
GIT = McpServerConfig(
    name="Git",
    command=("python", "-m", "mcp_server_git", "--repository", "."),
    prepare=("python", "-m", "synthesis.tools.demo_repositories"),
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


def processes(script: str) -> list[psutil.Process]:
    """Return the servers that run a script; their numbers in their own namespaces are others."""
    return [each for each in psutil.Process().children(recursive=True) if script in each.cmdline()]


async def test_a_clock_that_stands_still_makes_time_answers_the_same_on_any_day(tmp_path):
    pool = McpPool(TIME, tmp_path / "time")
    try:
        server = normalise_server(await pool.source_server(), ToolDocumentFilters(min_tools=2))
        now, convert = server.tools
        async with pool.lease() as session:
            backend = McpBackend([session], {})
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
    pool = McpPool(scripted_server(tmp_path, "return text", call_seconds=5), tmp_path / "w")
    try:
        async with asyncio.timeout(30):
            async with pool.lease() as session:
                for process in processes(str(tmp_path / "server.py")):
                    process.kill()
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


def test_what_prepares_a_workspace_has_the_environment_of_its_server_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("SERVER_TOKEN", "tok-0123456789")
    writes = "import json, os, pathlib; pathlib.Path('env.json').write_text(json.dumps(dict(os.environ)))"
    config = McpServerConfig(
        name="test",
        command=("python", "-c", ""),
        prepare=("python", "-c", writes),
        environment={"GREETING": "hi"},
        environment_from=("SERVER_TOKEN",),
    )
    McpPool(config, tmp_path / "w")
    found = json.loads((tmp_path / "w" / "pristine" / "env.json").read_text())
    assert (found["GREETING"], found["SERVER_TOKEN"]) == ("hi", "tok-0123456789")
    assert "OPENAI_API_KEY" not in found
    assert found.keys() - environment_of(config, home="/tmp").keys() <= {
        "LC_CTYPE",
        "__CF_USER_TEXT_ENCODING",
    }  # set at its start


@pytest.mark.parametrize("after", [0, 290, 5000])
def test_a_key_in_what_a_failed_preparation_says_is_masked_before_it_is_cut(tmp_path, monkeypatch, after):
    secret = "tok-0123456789-" + "x" * 20
    monkeypatch.setenv("SERVER_TOKEN", secret)
    says = f"import os, sys; sys.exit('refused:\\n' + os.environ['SERVER_TOKEN'] + '!' * {after})"
    config = McpServerConfig(
        name="test", command=("python", "-c", ""), prepare=("python", "-c", says), environment_from=("SERVER_TOKEN",)
    )
    with pytest.raises(ToolServerUnavailable, match="its `prepare` command failed") as told:
        McpPool(config, tmp_path / "w")
    message = str(told.value)
    assert not any(secret[start : start + 6] in message for start in range(len(secret) - 6))
    assert ("[key]" in message) == (after < 300)
    assert "\n" not in message
    assert not (tmp_path / "w").exists()


def test_a_key_of_several_lines_is_masked_in_what_is_said_of_a_fault(tmp_path, monkeypatch):
    secret = "-----BEGIN-----\nschlüssel-0123456789\n-----END-----"
    monkeypatch.setenv("SERVER_TOKEN", secret)
    config = McpServerConfig(name="test", command=("python", "-c", ""), environment_from=("SERVER_TOKEN",))

    async def line() -> str:
        return McpSession(config, tmp_path, credentials_of(config))._line(RuntimeError(f"no entry with {secret}"))

    assert asyncio.run(line()) == "RuntimeError: no entry with [key]"
    for ascii_only in (True, False):
        written = json.dumps({"said": secret}, ensure_ascii=ascii_only)
        assert credentials_of(config).masked(written) == '{"said": "[key]"}'


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


def raw_server(*arguments: str, **settings) -> McpServerConfig:
    """Name a server that is written against the protocol itself."""
    return McpServerConfig(name="raw", command=("python", str(RAW_SERVER), *arguments), **settings)


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"])
async def test_servers_of_every_version_of_the_protocol_are_listed_and_called(tmp_path, version):
    pool = McpPool(raw_server(version), tmp_path / "w")
    try:
        assert [tool.name for tool in (await pool.source_server()).tools] == ["act"]
        async with pool.lease() as session:
            assert "FAR" in (await session.call("act", {"text": "far"})).content
    finally:
        await pool.close()


async def test_what_a_server_prints_between_its_messages_is_no_answer(tmp_path):
    pool = McpPool(raw_server("2025-11-25", "chatter"), tmp_path / "w")
    try:
        async with pool.lease() as session:
            assert (await session.call("act", {"text": "far"})).content == '{"answer": "FAR"}'
    finally:
        await pool.close()


async def test_a_version_that_nobody_knows_ends_in_one_clear_line(tmp_path):
    pool = McpPool(raw_server("2031-01-01"), tmp_path / "w")
    try:
        with pytest.raises(ToolServerUnavailable, match=r"'raw' does not start: .*2031-01-01") as raised:
            await pool.source_server()
        assert "\n" not in str(raised.value)
    finally:
        await pool.close()


@pytest.mark.parametrize("text", ["refuse", "refuse with the code of a closed connection"])
async def test_a_call_that_the_server_refuses_is_a_response_and_no_death(tmp_path, text):
    pool = McpPool(raw_server("2025-11-25"), tmp_path / "w")
    try:
        async with pool.lease() as session:
            assert await session.call("act", {"text": text}) == ToolResponse("no such place", is_error=True)
        async with pool.lease() as other:
            assert other is session
    finally:
        await pool.close()


@pytest.mark.parametrize("text", ["answer without content", "break the output schema"])
async def test_an_answer_that_breaks_the_protocol_rejects_the_trajectory_and_not_the_run(tmp_path, text):
    pool = McpPool(raw_server("2025-11-25"), tmp_path / "w")
    try:
        with pytest.raises(Rejected, match=r"tool broke the protocol: raw\.act") as rejected:
            async with pool.lease() as session:
                await session.call("act", {"text": text})
        assert "\n" not in str(rejected.value)
        async with pool.lease() as session:
            assert not (await session.call("act", {"text": "far"})).is_error
    finally:
        await pool.close()


async def test_tools_are_listed_page_by_page(tmp_path):
    pool = McpPool(raw_server("2025-11-25", "list-in-pages"), tmp_path / "w")
    try:
        assert [tool.name for tool in (await pool.source_server()).tools] == ["act_first", "act"]
    finally:
        await pool.close()


@pytest.mark.parametrize("fault", ["list-without-end", "die-when-listed", "list-nonsense"])
async def test_a_server_that_cannot_be_listed_ends_in_one_clear_line(tmp_path, fault):
    pool = McpPool(raw_server("2025-11-25", fault, start_seconds=2), tmp_path / "w")
    try:
        with pytest.raises(ToolServerUnavailable, match="'raw' cannot be listed") as raised:
            await pool.source_server()
        assert "\n" not in str(raised.value)
    finally:
        await pool.close()


async def test_a_session_whose_call_was_given_up_is_not_lent_again(tmp_path):
    pool = McpPool(raw_server("2025-11-25"), tmp_path / "w")
    try:
        with pytest.raises(TimeoutError):  # as a conversation's deadline does
            async with pool.lease() as session, asyncio.timeout(0.3):
                await session.call("act", {"text": "sleep"})
        async with pool.lease() as other:
            assert other is not session
            assert (await other.call("act", {"text": "count"})).content == '{"answer": "1"}'
    finally:
        await pool.close()


async def test_servers_that_were_killed_while_they_waited_cost_a_task_one_try(tmp_path):
    pool = McpPool(raw_server("2025-11-25", max_sessions=3), tmp_path / "w")
    try:
        async with pool.lease(), pool.lease(), pool.lease():
            servers = processes(str(RAW_SERVER))
        assert len(servers) == 3
        for process in servers:
            process.kill()
        with pytest.raises(ToolServerDied):
            async with pool.lease() as session:
                await session.call("act", {"text": "far"})
        async with pool.lease() as session:
            assert not (await session.call("act", {"text": "far"})).is_error
    finally:
        await pool.close()


@pytest.mark.parametrize(("alone", "counts"), [(False, ["1", "2"]), (True, ["1", "1"])])
async def test_a_server_that_remembers_its_calls_can_be_started_for_every_task(tmp_path, alone, counts):
    pool = McpPool(raw_server("2025-11-25", one_task_per_process=alone), tmp_path / "w")
    try:
        found = []
        for _ in range(2):
            async with pool.lease() as session:
                found.append((await session.call("act", {"text": "count"})).content)
        assert found == [f'{{"answer": "{count}"}}' for count in counts]
        assert len(list((tmp_path / "w").glob("session-*"))) == (0 if alone else 1)
    finally:
        await pool.close()


async def test_a_server_is_told_where_its_workspace_is_by_argument_and_by_environment(tmp_path):
    body = "return ' '.join([os.getcwd(), sys.argv[1], os.environ['NOTES']])"
    config = scripted_server(tmp_path, body, environment={"NOTES": "{workspace}/notes"})
    pool = McpPool(config.model_copy(update={"command": (*config.command, "--in={workspace}")}), tmp_path / "w")
    try:
        async with pool.lease() as session:
            assert (await session.call("act", {"text": ""})).content == ". --in=. notes"
    finally:
        await pool.close()


def test_a_setting_left_at_its_default_does_not_change_what_a_run_is_called():
    assert "one_task_per_process" not in GIT.model_dump(mode="json")
