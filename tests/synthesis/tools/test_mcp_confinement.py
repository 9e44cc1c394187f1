"""MCP servers that are started by a command: the files that they see, the machine that cannot confine them."""

import json
import os
import socket
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the extra `mcp`")

from synthesis.tools import mcp_confinement
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import McpServerConfig, ToolServerUnavailable
from tests.synthesis.tools.servers import pool_of, said_to, session_of

SERVER = """
import glob, json, os, pathlib, socket, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("test")

def tried(what):
    try:
        return what()
    except OSError as error:
        return type(error).__name__

@server.tool()
def act(text: str) -> str:
    "Try what a server of others may try."
    asked = json.loads(text)
    return json.dumps({
        "home": tried(lambda: pathlib.Path(asked["home"], "secret").read_text()),
        "own home": tried(lambda: sorted(path.name for path in pathlib.Path.home().iterdir() if path.is_file())),
        "named": tried(lambda: pathlib.Path(asked["named"], "data").read_text()),
        "not named": tried(lambda: pathlib.Path(asked["named"]).with_name("other").joinpath("data").read_text()),
        "named file": tried(lambda: pathlib.Path(os.environ["TABLE"]).read_text()),
        "write to named": tried(lambda: pathlib.Path(asked["named"], "mine").write_text("mine")),
        "write to code": tried(lambda: pathlib.Path(__file__).write_text("mine")),
        "workspace": tried(lambda: pathlib.Path("mine").write_text("mine")),
        "process": tried(lambda: os.kill(asked["process"], 0)),
        "network": tried(lambda: socket.create_connection(("127.0.0.1", asked["port"])).close()),
        "mcp": tried(lambda: len(glob.glob("/proc/*"))),
    })

server.run()
"""


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A home with a secret, a folder and a file that a server may read, and the server."""
    for name in ("home", "named", "other", "code"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "secret").write_text("secret")
    for name in ("named", "other"):
        (tmp_path / name / "data").write_text("data")
    (tmp_path / "table").write_text("table")
    (tmp_path / "code" / "server.py").write_text(SERVER)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    mcp_confinement._say_once.cache_clear()
    return tmp_path


def server_in(places: Path, **settings) -> McpServerConfig:
    return McpServerConfig(
        name="test",
        command=("python", f"{places}/code/server.py"),
        environment={"TABLE": f"{places}/table"},
        **settings,
    )


async def answer(config: McpServerConfig, places: Path) -> dict:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        asked = {"home": f"{places}/home", "named": f"{places}/named", "process": os.getpid()}
        async with session_of(config, places) as session:
            return json.loads(await said_to(session, json.dumps({**asked, "port": listening.getsockname()[1]})))


async def test_a_server_reads_named_files_writes_into_its_workspace_and_has_the_network(places, capfd):
    assert await answer(server_in(places, readable=(places / "named",)), places) == {
        "home": "FileNotFoundError",
        "own home": [],
        "named": "data",
        "not named": "FileNotFoundError",
        "named file": "table",
        "write to named": "OSError",
        "write to code": "OSError",
        "workspace": 4,
        "process": "ProcessLookupError",
        "network": None,
        "mcp": 0,
    }
    assert (places / "code" / "server.py").read_text() == SERVER
    assert "unconfined" not in capfd.readouterr().err


def test_the_command_that_prepares_a_workspace_is_confined_as_its_server_is(places):
    script = (
        "import os, pathlib\n"
        f"found = os.path.exists({str(places / 'home')!r})\n"
        "pathlib.Path('deep').mkdir()\npathlib.Path('deep/found').write_text(f'{found} {os.environ[\"HOME\"]}')"
    )
    McpPool(server_in(places, prepare=("python", "-c", script)), places / "w")
    assert (places / "w" / "pristine" / "deep" / "found").read_text() == "False /tmp"


async def test_no_link_that_a_server_makes_leads_this_process_out_of_the_workspace(places, monkeypatch):
    (places / "elsewhere").mkdir()
    removed = Path.iterdir

    def and_a_link_is_made(folder):
        yield from removed(folder)
        if folder.name == "session-1" and not (folder / "deep").is_symlink():
            (folder / "deep").symlink_to(places / "elsewhere")

    config = server_in(places, prepare=("/bin/sh", "-c", "mkdir deep; touch deep/file"))
    async with pool_of(config, places) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(Path, "iterdir", and_a_link_is_made)
            with pytest.raises(
                ToolServerUnavailable, match=r"deep was written between two tasks .*; set one_task_per_process"
            ):
                await pool.source_server()
    assert list((places / "elsewhere").iterdir()) == []


async def test_where_a_machine_cannot_confine_it_a_server_runs_and_one_line_says_so(places, monkeypatch, capfd):
    monkeypatch.setattr(mcp_confinement, "why_not_confined", lambda: "PermissionError: unshare")
    found = await answer(server_in(places), places)
    assert (found["home"], found["workspace"], found["network"]) == ("secret", 4, None)
    mcp_confinement.is_confined(server_in(places))
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("astra: ")]
    assert said == ["astra: MCP servers that are started by a command run unconfined, as you: PermissionError: unshare"]


@pytest.mark.parametrize(
    ("readable", "message"),
    [
        ("nowhere", "nowhere of `readable` does not exist"),
        (".", "holds the user's home"),
        ("/", "holds the user's home"),
    ],
)
async def test_a_path_that_cannot_be_shown_is_one_line_and_starts_nothing(places, readable, message):
    (places / "code" / "server.py").write_text(f"open({str(places / 'ran')!r}, 'w').close()")
    async with pool_of(server_in(places, readable=(places / readable,)), places) as pool:
        with pytest.raises(ToolServerUnavailable, match=f"'test'.*{message}") as told:
            await pool.source_server()
    assert "\n" not in str(told.value)
    assert str(told.value).count("'test'") == 1
    assert not (places / "ran").exists()


async def test_a_server_that_lacks_a_folder_is_told_how_to_name_it(places):
    (places / "code" / "beside.py").touch()
    (places / "code" / "server.py").write_text("import beside\n")
    async with pool_of(server_in(places), places) as pool:
        with pytest.raises(ToolServerUnavailable, match=r"it runs confined: name folders .* in `readable`"):
            await pool.source_server()
