# ruff: noqa: E501 - a row of a table is one case
"""Real MCP servers: started, listed, called, isolated, replaced when they die."""

import asyncio
import json
import sys

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from mcp.types import CallToolResult

from synthesis.stage import Rejected
from synthesis.tools.backends import ToolResponse
from synthesis.tools.documents import ToolDocumentFilters, normalise_server
from synthesis.tools.mcp_messages import shown_answer, text_of_answer
from synthesis.tools.mcp_pool import McpBackend, McpPool
from synthesis.tools.mcp_servers import Credentials, McpServerConfig, ToolServerDied, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from tests.synthesis.tools.raw_server import LATEST
from tests.synthesis.tools.servers import (
    GIT,
    RAW_SERVER,
    TIME,
    pool_of,
    raw_server,
    said_to,
    scripted_server,
    session_of,
)


def processes(script: str) -> list[psutil.Process]:
    """Return the servers that run a script; their numbers in their own namespaces are others."""
    return [each for each in psutil.Process().children(recursive=True) if script in each.cmdline()]


async def test_a_clock_that_stands_still_makes_time_answers_the_same_on_any_day(tmp_path):
    async with pool_of(TIME, tmp_path) as pool:
        now, convert = normalise_server(await pool.source_server(), ToolDocumentFilters(min_tools=2)).tools
        async with pool.lease() as session:
            backend = McpBackend(session)
            response = await backend.call("c1", now, {"timezone": "Europe/Paris"})
            assert '"datetime": "2026-03-02T10:00:00+01:00"' in response.content
            converted = {"source_timezone": "Asia/Tokyo", "time": "16:30", "target_timezone": "UTC"}
            assert "-9.0h" in (await backend.call("c2", convert, converted)).content
            assert (await backend.call("c3", now, {"timezone": "Nowhere"})).is_error
    assert list(tmp_path.iterdir()) == []


async def test_every_lease_finds_the_workspace_as_it_was_prepared_and_no_path_of_the_machine_comes_back(tmp_path):
    log, branch = {"repo_path": "notes", "max_count": 1}, {"repo_path": "notes", "branch_name": "new"}
    async with pool_of(GIT, tmp_path) as pool:
        assert len((await pool.source_server()).tools) == 12
        async with pool.lease() as session:
            first = await session.call("git_log", log)
            created = await session.call("git_create_branch", branch)
            outside = await session.call("git_status", {"repo_path": "../.."})
        async with pool.lease() as again:
            assert again is session
            assert await session.call("git_log", log) == first
            assert not (await session.call("git_create_branch", branch)).is_error
    assert (created.is_error, outside.is_error) == (False, True)
    assert str(tmp_path) not in first.content + created.content + outside.content


@pytest.mark.parametrize("command", [("no-such-program-anywhere",), (sys.executable, "-c", "print('not a server')")])
async def test_a_server_that_does_not_start_ends_in_one_clear_line(tmp_path, command):
    async with pool_of(McpServerConfig(name="broken", command=command, start_seconds=10), tmp_path) as pool:
        with pytest.raises(ToolServerUnavailable, match="'broken'"):
            await pool.source_server()


async def test_a_server_and_its_prepare_command_have_the_variables_that_are_named_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("SERVER_TOKEN", "tok-0123456789")
    writes = "import json, os, pathlib; pathlib.Path('env.json').write_text(json.dumps(dict(os.environ)))"
    body = "return ' '.join([os.getcwd(), sys.argv[1], os.environ['NOTES'], os.environ['SERVER_TOKEN'], *os.environ])"
    config = scripted_server(
        tmp_path,
        body,
        prepare=("python", "-c", writes),
        environment={"NOTES": "{workspace}/notes"},
        environment_from=("SERVER_TOKEN",),
    )
    config = config.model_copy(update={"command": (*config.command, "--in={workspace}")})
    async with session_of(config, tmp_path) as session:
        prepared = json.loads((session.workspace / "env.json").read_text())
        found, at_argument, notes, token, *variables = (await said_to(session, "")).split()
    assert (found, at_argument, notes, token) == (".", "--in=.", "notes", "[key]")
    assert prepared["SERVER_TOKEN"] == "tok-0123456789"
    inherited, set_at_its_start = {"PATH", "HOME", "TMPDIR", "PYTHONPATH"}, {"LC_CTYPE", "__CF_USER_TEXT_ENCODING"}
    # The SDK adds names of the user and the terminal to a server's variables.
    for names in (prepared, set(variables) - {"LOGNAME", "SHELL", "TERM", "USER"}):
        assert set(names) <= inherited | {"NOTES", "SERVER_TOKEN"} | set_at_its_start


@pytest.mark.parametrize("after", [0, 290, 5000])
def test_a_key_in_the_output_of_a_failed_preparation_is_masked_before_it_is_cut(tmp_path, monkeypatch, after):
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


async def test_a_key_of_several_lines_is_masked_in_the_message_of_a_fault(tmp_path, monkeypatch):
    secret = "-----BEGIN-----\nschlüssel-0123456789\n-----END-----"
    monkeypatch.setenv("SERVER_TOKEN", secret)
    config = McpServerConfig(name="test", command=("python", "-c", ""), environment_from=("SERVER_TOKEN",))
    session = McpSession(config, tmp_path, Credentials(config))
    assert session._line(RuntimeError(f"no entry with {secret}")) == "RuntimeError: no entry with [key]"
    for ascii_only in (True, False):
        written = json.dumps({"said": secret}, ensure_ascii=ascii_only)
        assert Credentials(config).masked(written) == '{"said": "[key]"}'


async def test_a_server_without_a_handshake_is_listed_and_called(tmp_path):
    async with pool_of(raw_server("2026-07-28"), tmp_path) as pool:
        assert [tool.name for tool in (await pool.source_server()).tools] == ["act"]
        async with pool.lease() as session:
            assert "FAR" in await said_to(session, "far")


@pytest.mark.parametrize("text", ["refuse", "refuse with the code of a closed connection"])
async def test_a_call_that_the_server_refuses_is_a_response_and_no_death(tmp_path, text):
    async with pool_of(raw_server(LATEST), tmp_path) as pool:
        async with pool.lease() as session:
            assert await session.call("act", {"text": text}) == ToolResponse("no such place", is_error=True)
        async with pool.lease() as other:
            assert other is session


@pytest.mark.parametrize("text", ["answer without content", "break the output schema"])
async def test_an_answer_that_breaks_the_protocol_rejects_the_trajectory_and_not_the_run(tmp_path, text):
    async with pool_of(raw_server(LATEST), tmp_path) as pool:
        with pytest.raises(Rejected, match=r"tool broke the protocol: raw\.act") as rejected:
            async with pool.lease() as session:
                await said_to(session, text)
        assert "\n" not in str(rejected.value)
        async with pool.lease() as session:
            assert not (await session.call("act", {"text": "far"})).is_error


async def test_tools_are_listed_page_by_page_and_text_between_messages_is_no_answer(tmp_path):
    async with pool_of(raw_server(LATEST, "list-in-pages"), tmp_path) as pool:
        assert [tool.name for tool in (await pool.source_server()).tools] == ["act_first", "act"]
        async with pool.lease() as session:
            assert await said_to(session, "far") == '{"answer": "FAR"}'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("2031-01-01",), "does not start: .*2031-01-01"),  # a version that the SDK does not know
        *(
            ((LATEST, fault), "cannot be listed")
            for fault in ("list-new-tools-without-end", "die-when-listed", "list-nonsense")
        ),
    ],
)
async def test_a_server_that_cannot_be_listed_ends_in_one_clear_line(tmp_path, arguments, said):
    async with pool_of(raw_server(*arguments, start_seconds=2), tmp_path) as pool:
        with pytest.raises(ToolServerUnavailable, match=f"'raw' {said}") as raised:
            await pool.source_server()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("fault", "names", "repairs"),
    [
        ("list-without-end", ["act"], ("listing ended after 2 pages: its cursor or its tools came again",)),
        ("list-again-without-end", ["act"], ("listing ended after 2 pages: its cursor or its tools came again",)),
        ("list-odd-tools", ["bare", "odd", "out", "act"], tuple(
            f"tool left out: number {place} of its page (tool without a name)" for place in (1, 2)
        )),
    ],
)  # fmt: skip
async def test_what_is_odd_in_a_listing_is_named_and_the_other_tools_can_be_called(tmp_path, fault, names, repairs):
    async with pool_of(raw_server(LATEST, fault), tmp_path) as pool:
        listing = await pool.source_server()
        assert [tool.name for tool in listing.tools] == names
        assert set(repairs) <= {*listing.repairs}
        async with pool.lease() as session:
            assert await said_to(session, "far") == '{"answer": "FAR"}'


def content(*blocks: dict) -> list:
    return CallToolResult.model_validate(shown_answer({"content": list(blocks)})).content


RESOURCE = {"uri": "repo://a.md", "mimeType": "text/markdown", "text": "# Body"}


@pytest.mark.parametrize(
    ("blocks", "structure", "said"),
    [
        ([{"type": "text", "text": "got it"}, {"type": "resource", "resource": RESOURCE}], None, "got it\n# Body"),
        ([{"type": "resource", "resource": {"uri": "f://a.pdf", "mimeType": "application/pdf", "blob": "AAAA"}}], None, "[resource f://a.pdf, application/pdf, 4 characters in base64]"),
        ([{"type": "resource_link", "uri": "f://q.csv", "name": "q.csv", "description": "sums"}], None, "[resource f://q.csv: q.csv, sums]"),
        ([{"type": "image", "data": "AAAA", "mimeType": "image/png"}], None, "[image, image/png, 4 characters in base64]"),
        ([{"type": "video", "url": "x"}, {"type": "text", "text": "t"}], None, '{"type": "video", "url": "x"}\nt'),
        ([{"type": "text", "text": "half \ud83d"}], {"a": "\ud83d"}, 'half \ud83d\n{"a": "?"}'),
        ([{"type": "text", "text": "one issue: #12"}], {"count": 1}, 'one issue: #12\n{"count": 1}'),
        ([{"type": "text", "text": '{"count":  1}'}], {"count": 1}, '{"count": 1}'),
        ([{"type": "text", "text": "ok"}], {"result": "ok"}, "ok"),
        ([{"type": "text", "text": '{"a": 1}'}, {"type": "resource", "resource": RESOURCE}], {"a": 1}, '{"a": 1}\n# Body\n{"a": 1}'),
        ([{"type": "text", "text": "1"}, {"type": "text", "text": "2"}], {"result": [1, 2]}, "[1, 2]"),
        ([], {"a": float("nan"), "b": [float("inf")]}, '{"a": null, "b": [null]}'),
    ],
)  # fmt: skip
def test_all_that_a_tool_says_is_in_its_response(blocks, structure, said):
    assert text_of_answer(content(*blocks), structure) == said


async def test_a_session_whose_call_was_given_up_is_not_lent_again(tmp_path):
    async with pool_of(raw_server(LATEST), tmp_path) as pool:
        with pytest.raises(TimeoutError):  # as a conversation's deadline does
            async with pool.lease() as session, asyncio.timeout(0.3):
                await said_to(session, "sleep")
        async with pool.lease() as other:
            assert other is not session
            assert await said_to(other, "count") == '{"answer": "1"}'


async def test_servers_that_ended_in_a_call_or_while_they_waited_cost_a_task_one_try(tmp_path):
    async with pool_of(raw_server(LATEST, max_sessions=3), tmp_path) as pool, asyncio.timeout(30):
        async with pool.lease(), pool.lease(), pool.lease():
            servers = processes(str(RAW_SERVER))
        assert len(servers) == 3
        for process in servers:
            process.kill()
        for text in ("far", "die"):
            with pytest.raises(ToolServerDied):
                async with pool.lease() as session:
                    await said_to(session, text)
            async with pool.lease() as session:
                assert not (await session.call("act", {"text": "far"})).is_error


@pytest.mark.parametrize(("alone", "counts"), [(False, ["1", "2"]), (True, ["1", "1"])])
async def test_a_server_that_remembers_its_calls_can_be_started_for_every_task(tmp_path, alone, counts):
    async with pool_of(raw_server(LATEST, one_task_per_process=alone), tmp_path) as pool:
        found = []
        for _ in range(2):
            async with pool.lease() as session:
                found.append(await said_to(session, "count"))
        assert found == [f'{{"answer": "{count}"}}' for count in counts]
        assert len(list(tmp_path.glob("*/session-*"))) == (0 if alone else 1)
