"""The eight reference servers, each called for real in whole runs of the track, and killed in the middle of calls.

    npm     @modelcontextprotocol/server-{filesystem,memory,everything,sequential-thinking}
    PyPI    mcp-server-{time,git,fetch}; mcp-server-sqlite, in an environment of its own with mcp<2

Commands are looked for on the PATH (time and git: in this environment), and a server that is not there is skipped.
"""

import asyncio
import functools
import io
import json
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import Trajectory
from synthesis.tools.documents import ToolDocumentFilters
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import McpServerConfig
from synthesis.tools.mcp_session import McpSession
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.tools.servers import GIT, TIME
from tests.synthesis.trajectories.test_pipeline import bytes_of

COUNT = 6
KILLED_CALLS = (0, 5)
"""Which calls of a run the server does not survive: the first, and one in the middle."""
FILES = "import pathlib; [pathlib.Path(n).write_text(f'{n}: tea, rice\\n') for n in ('notes.txt', 'plan.txt')]"
SHOP = (
    "import sqlite3; d = sqlite3.connect('shop.db'); d.execute('CREATE TABLE goods (name TEXT, price INTEGER)');"
    "d.execute(\"INSERT INTO goods VALUES ('tea', 4)\"); d.commit()"
)
MEMORY = (
    "import json, pathlib; entity = {'type': 'entity', 'name': 'Ana', 'entityType': 'person', 'observations': []};"
    "pathlib.Path('memory.jsonl').write_text(json.dumps(entity))"
)


SERVERS: dict[str, dict[str, Any]] = {
    "time": {
        "command": TIME.command,
        "argument_values": {
            "timezone": ["Asia/Tokyo", "Europe/Oslo"], "source_timezone": ["UTC"], "target_timezone": ["Asia/Dubai"],
        },
    },
    "git": {
        "command": GIT.command,
        "prepare": GIT.prepare,
        "argument_values": {
            "repo_path": ["notes", "shop"], "branch_name": ["draft"], "revision": ["HEAD"], "target": ["draft"],
            "files": [["readme.txt"]], "branch_type": ["local"], "max_count": [1, 2],
        },
    },
    "sqlite": {
        "command": ["mcp-server-sqlite", "--db-path", "shop.db"],
        "prepare": ["python", "-c", SHOP],
        "argument_values": {
            "table_name": ["goods"], "read_query.query": ["SELECT name FROM goods", "SELECT price FROM goods"],
            "write_query.query": ["INSERT INTO goods VALUES ('rice', 3)", "DELETE FROM goods"],
            "create_table.query": ["CREATE TABLE orders (id INTEGER)"],
        },
    },
    "filesystem": {
        "command": ["mcp-server-filesystem", "."],
        "prepare": ["python", "-c", FILES],
        "argument_values": {
            "path": ["notes.txt", "plan.txt"], "paths": [["notes.txt", "plan.txt"]], "source": ["notes.txt"],
            "list_directory.path": ["."], "directory_tree.path": ["."], "search_files.path": ["."],
            "list_directory_with_sizes.path": ["."], "create_directory.path": ["drafts"],
        },
    },
    "memory": {
        "command": ["mcp-server-memory"],
        "prepare": ["python", "-c", MEMORY],
        "environment": {"MEMORY_FILE_PATH": "{workspace}/memory.jsonl"},
        "argument_values": {"names": [["Ana"]], "query": ["Ana"], "entityNames": [["Ana"]]},
    },
    "everything": {
        "command": ["mcp-server-everything"],
        "one_task_per_process": True,
        "argument_values": {"duration": [1], "steps": [2]},
    },
    "sequential-thinking": {"command": ["mcp-server-sequential-thinking"], "one_task_per_process": True},
    "fetch": {"command": ["mcp-server-fetch", "--allow-private-ips"]},
}  # fmt: skip
"""The command of each server and the values that exist on it; `fetch` gets the address of a page of ours."""


@pytest.fixture
def page_url(tmp_path) -> Iterator[str]:
    """Serve one page on this machine."""
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "menu.html").write_text("<html><body><h1>Menu</h1><p>Rice with plums.</p></body></html>")

    class QuietHandler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(QuietHandler, directory=pages)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/menu.html"
        server.shutdown()


def processes_of(session: McpSession) -> list[psutil.Process]:
    """Return the processes that stand in a session's workspace."""
    return [
        process for process in psutil.Process().children(recursive=True) if Path(process.cwd()) == session.workspace
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "num_tools"),
    [("time", 2), ("git", 12), ("sqlite", 6), ("filesystem", 14), ("memory", 9), ("everything", 13),
     ("sequential-thinking", 1), ("fetch", 1)],
)  # fmt: skip
async def test_a_reference_server_killed_in_the_middle_of_calls_is_replaced_and_its_tasks_end_as_if_nothing_had_been(
    tmp_path, monkeypatch, page_url, name, num_tools
):
    server = McpServerConfig(**({"name": name, "argument_values": {"url": [page_url]}} | SERVERS[name]))
    if shutil.which(server.command[0]) is None:
        pytest.skip(f"needs {server.command[0]} on the PATH; its npm or PyPI package is named after it")
    pool = McpPool(server, tmp_path / "listing")
    assert len((await pool.source_server()).tools) == num_tools
    await pool.close()

    calls: list[tuple[str, bool]] = []
    dead: list[psutil.Process] = []
    live_call = McpSession.call

    async def recorded_call(session, tool, arguments):
        response = await live_call(session, tool, arguments)
        calls.append((tool, response.is_error))
        return response

    async def mortal_call(session, tool, arguments):
        ordinal = len(calls) + len(dead)
        if ordinal not in KILLED_CALLS:
            return await recorded_call(session, tool, arguments)
        processes = processes_of(session)
        for process in processes:
            process.suspend()
        unanswered = asyncio.ensure_future(live_call(session, tool, arguments))
        await asyncio.sleep(0.2)
        assert not unanswered.done()
        for process in processes:
            process.kill()
        dead.extend(processes[:1])
        return await unanswered

    async def run(out: Path) -> list[Trajectory]:
        config = TrajectoriesConfig(
            count=COUNT, out=out, shipped_examples=False, mcp_servers=(server,), refuse_share=0, ask_back_share=0,
            filters=ToolDocumentFilters(min_tools=1, min_description_words=1), max_attempts_per_trajectory=20,
            min_chain_length=1, max_chain_length=3, concurrency=1,
        )  # fmt: skip
        report = await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())
        assert report.rejected["tool server died"] == 0
        return list(RecordSource(out, Trajectory))

    async with asyncio.timeout(300):
        monkeypatch.setattr(McpSession, "call", recorded_call)
        undisturbed = await run(tmp_path / "undisturbed")
        num_calls = len(calls)
        calls.clear()
        monkeypatch.setattr(McpSession, "call", mortal_call)
        await run(tmp_path / "killed")
    assert len(undisturbed) == COUNT
    assert all(trajectory.tool_backend == "mcp" for trajectory in undisturbed)
    assert bytes_of(tmp_path / "killed") == bytes_of(tmp_path / "undisturbed")
    assert len(dead) == len(KILLED_CALLS)
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in dead)
    assert sum(not is_error for _, is_error in calls) >= COUNT
    assert len(calls) >= num_calls
    print(json.dumps({"server": name, "calls": num_calls, "tools called": len({tool for tool, _ in calls})}))
