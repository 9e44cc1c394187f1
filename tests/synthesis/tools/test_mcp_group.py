"""Several real servers in one conversation: their tools together, every call at the right one."""

import asyncio
import io

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from pydantic import ValidationError

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.tools.documents import SourceServer, SourceTool, ToolDocumentFilters, normalise_server
from synthesis.tools.mcp_pool import McpGroup, Route, joined
from synthesis.tools.mcp_servers import McpServerGroup, ToolServerDied, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.tools.http_server import serving
from tests.synthesis.tools.servers import GIT, TIME, at, pool_of, scripted_server
from tests.synthesis.trajectories.test_pipeline import bytes_of

TOGETHER = McpServerGroup(name="Both", servers=("one", "two"))


def listing(name: str, *tools: str, **values) -> SourceServer:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    listed = [SourceTool(tool, f"Do {tool} with a text.", schema) for tool in tools]
    return SourceServer(name=name, origin="mcp", tools=listed, argument_values=values)


def test_a_name_that_two_servers_have_gets_the_servers_name_before_it_and_no_other_name_changes():
    source, routes = joined(TOGETHER, [listing("One", "act", "look"), listing("My Two", "act", "go to")])
    assert [tool.name for tool in source.tools] == ["one__act", "look", "my_two__act", "go to"]
    assert routes == {
        "one__act": Route(0, "act"), "look": Route(0, "look"), "my_two__act": Route(1, "act"),
        "go to": Route(1, "go to"),
    }  # fmt: skip
    document = normalise_server(source, ToolDocumentFilters())
    assert [(tool.name, tool.original_name) for tool in document.tools][-1] == ("go_to", "go to")


def test_names_that_cannot_be_told_apart_end_in_one_line():
    with pytest.raises(ToolServerUnavailable, match=r"two tools have the name 'one__act\'"):
        joined(TOGETHER, [listing("One", "act"), listing("one", "act")])


def test_known_values_of_one_server_are_none_of_the_other():
    source, _ = joined(TOGETHER, [listing("One", "act", text=["x"]), listing("Two", "go", **{"go.text": ["y"]})])
    assert source.argument_values == {"act.text": ["x"], "go.text": ["y"]}


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([{"name": "g", "servers": ["Time", "Gti"]}], "none of mcp_servers have the name 'Gti'"),
        ([{"name": "g", "servers": ["Time", "Git"]}, {"name": "h", "servers": ["Git", "Time"]}], "in one place"),
        ([{"name": "g", "servers": ["Time"]}], "at least 2 items"),
    ],
)
def test_a_group_is_of_servers_that_there_are_and_no_server_is_in_two(tmp_path, groups, said):
    with pytest.raises(ValidationError, match=said):
        TrajectoriesConfig(count=1, out=tmp_path, mcp_servers=(TIME, GIT), mcp_server_groups=groups)
    assert "mcp_server_groups" not in TrajectoriesConfig(count=1, out=tmp_path).model_dump(mode="json")


async def test_calls_reach_the_server_whose_tool_it_is_and_a_server_that_dies_costs_no_other(tmp_path, unused_tcp_port):
    near = scripted_server(tmp_path, "return f'{text} at {os.getpid()}'").model_copy(update={"name": "near"})
    async with (
        serving(unused_tcp_port),
        pool_of(near, tmp_path) as one,
        pool_of(at(unused_tcp_port), tmp_path) as other,
        asyncio.timeout(120),
    ):
        together = McpServerGroup(name="Both", servers=("near", "far"))
        source, routes = joined(together, [await pool.source_server() for pool in (one, other)])
        tools = {tool.name: tool for tool in normalise_server(source, ToolDocumentFilters()).tools}
        assert sorted(tools) == ["far__act", "near__act", "search"]
        group = McpGroup([one, other], routes)

        async def answers(group: McpGroup) -> list[str]:
            async with group.lease() as backend:
                return [(await backend.call("c", tools[name], {"text": "x"})).content for name in sorted(tools)]

        before = await answers(group)
        assert (before[0], before[1][:5], before[2]) == ("X", "x at ", "found x")
        with pytest.raises(ToolServerDied, match="'far' ended the session with HTTP 500"):
            async with group.lease() as backend:
                await backend.call("c", tools["far__act"], {"text": "http 500"})
        assert await answers(group) == before  # of the same process


@pytest.mark.slow
async def test_servers_of_a_group_killed_in_the_middle_of_calls_are_replaced_and_tasks_end_as_if_nothing_had_been(
    tmp_path, monkeypatch
):
    values = {"timezone": ("Europe/Paris",), "source_timezone": ("Asia/Tokyo",), "target_timezone": ("Europe/Oslo",)}
    git_values = {"repo_path": ("notes",), "branch_type": ("local",), "revision": ("HEAD",), "target": ("HEAD~1",)}
    day = "2026-03-02T09:00:00+0000"  # commits are named by their authors and dates
    author = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_AUTHOR_DATE": day}
    committer = {name.replace("AUTHOR", "COMMITTER"): value for name, value in author.items()}
    git = {"argument_values": git_values, "environment": author | committer}
    servers = (TIME.model_copy(update={"argument_values": values}), GIT.model_copy(update=git))
    both = McpServerGroup(name="Desk", servers=("Git", "Time"), domain="Office")
    live_call, calls, dead = McpSession.call, [], []

    async def mortal_call(session, tool, arguments):
        calls.append(tool)
        if len(calls) not in (1, 6):
            return await live_call(session, tool, arguments)
        processes = psutil.Process().children(recursive=True)
        mine = [process for process in processes if process.cwd() == str(session.workspace)]
        for process in mine:
            process.suspend()
        unanswered = asyncio.ensure_future(live_call(session, tool, arguments))
        await asyncio.sleep(0.2)
        assert not unanswered.done()
        for process in mine:
            process.kill()
        dead.extend(mine[:1])
        return await unanswered

    async def run(name: str) -> list[Trajectory]:
        config = TrajectoriesConfig(
            count=8, out=tmp_path / name, shipped_examples=False, mcp_servers=servers, mcp_server_groups=(both,),
            max_attempts_per_trajectory=20, concurrency=1,
        )  # fmt: skip
        report = await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
        assert report.rejected["tool server died"] == 0
        return list(RecordSource(tmp_path / name, Trajectory))

    async with asyncio.timeout(300):
        records = await run("undisturbed")
        monkeypatch.setattr(McpSession, "call", mortal_call)
        await run("killed")
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "undisturbed")
    assert len(dead) == 2
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in dead)
    called = [call.name for record in records for message in record.messages for call in message.tool_calls]
    assert {record.server for record in records} == {"Desk"}
    assert {"git" if name.startswith("git_") else "time" for name in called} == {"git", "time"}
    tools = [tool.name for record in records for tool in record.tools]
    assert {"get_current_time", "git_log"} <= set(tools)
    assert records == await run("again")
