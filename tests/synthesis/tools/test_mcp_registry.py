"""Listings of MCP registries: stated tools are taken; a server without them becomes an address to ask."""

from __future__ import annotations

import asyncio
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from synthesis.record_io import RecordSource
from synthesis.records import ServerDocument
from synthesis.run.destination import DestinationRefused
from synthesis.stage import NothingKept
from synthesis.tools.ingestion import synthesize_tools
from synthesis.tools.mcp_servers import McpServerConfig
from synthesis.trajectories.config import TrajectoriesConfig

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"name": name, "description": f"{name} of a city in words", "inputSchema": SCHEMA}
    for name in ("rain", "wind", "sun")
]
OFFICIAL = "io.modelcontextprotocol.registry/official"


def official(name: str, meta: dict[str, Any] | None = None, **described: Any) -> dict[str, Any]:
    return {"server": {"name": name, "description": "x", **described}, "_meta": {OFFICIAL: meta or {"isLatest": True}}}


def secret(name: str) -> dict[str, Any]:
    return {"name": name, "isRequired": True, "isSecret": True}


NPM = {"registryType": "npm", "identifier": "@x/y", "version": "1.2.0", "environmentVariables": [secret("Y_KEY")]}
REMOTE = {
    "type": "streamable-http", "url": "https://a.example/mcp", "headers": [secret("Authorization"), secret("X-Key")],
}  # fmt: skip
PAGE = {
    "servers": [
        official("io.x/tools", remotes=[], _meta={"io.x/provided": {"tools": [*TOOLS, None]}}),
        official("io.x/remote", remotes=[{"type": "sse", "url": "https://a.example/sse"}, REMOTE]),
        official("io.x/package", packages=[NPM], tools=["search", "fetch", "list"]),
        official("io.x/old", {"isLatest": False}, packages=[NPM]),
        official("io.x/gone", {"isLatest": True, "status": "deleted"}, packages=[NPM]),
        official("io.x/templated", remotes=[{"type": "streamable-http", "url": "https://{tenant}.example/mcp"}]),
        {"name": "io.x/early", "packages": [{"registry_name": "pypi", "name": "early", "version": "2"}]},
    ],
    "metadata": {"nextCursor": None},
}  # fmt: skip
SMITHERY = [
    {"qualifiedName": "a/weather", "displayName": "Weather", "tools": TOOLS, "deploymentUrl": "https://w.example"},
    {"qualifiedName": "a/bare", "connections": [{"type": "http", "deploymentUrl": "https://b.example/mcp"}]},
]


def ingest(folder: Path, *documents: Any) -> Any:
    for number, document in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(document))
    return asyncio.run(synthesize_tools([folder / f"{n}.json" for n in range(len(documents))], folder / "out"))


def test_tools_are_taken_where_they_are_and_every_other_server_is_counted_by_reason(tmp_path: Path) -> None:
    report = ingest(
        tmp_path, PAGE, {**SMITHERY[0], "tools": [{**tool, "name": f"{tool['name']}_now"} for tool in TOOLS]}
    )
    kept = list(RecordSource(tmp_path / "out", ServerDocument))
    assert [(server.name, server.origin, len(server.tools)) for server in kept] == [
        ("io.x/tools", "mcp_registry", 3),
        ("Weather", "mcp_registry", 3),
    ]
    assert kept[0].repairs == ("tool left out: number 4 (tool that is no object)",)
    assert report.read == 8
    assert report.rejected == {"listed without tools": 4, "not the latest version": 1, "withdrawn from the registry": 1}


def test_servers_without_tools_are_written_as_a_config_takes_them(tmp_path: Path) -> None:
    with pytest.raises(NothingKept):
        ingest(tmp_path, {"servers": PAGE["servers"][1:]}, {"servers": SMITHERY[1:]})
    tables = tomllib.loads((tmp_path / "out.mcp_servers.toml").read_text())["mcp_servers"]
    assert tables == [
        {
            "name": "io.x/remote", "url": "https://a.example/mcp", "bearer_env": "REMOTE_TOKEN",
            "header_env": {"X-Key": "REMOTE_X_KEY"},
        },
        {"name": "io.x/package", "command": ["npx", "-y", "@x/y@1.2.0"], "environment_from": ["Y_KEY"]},
        {"name": "io.x/early", "command": ["uvx", "early@2"]},
        {"name": "a/bare", "url": "https://b.example/mcp"},
    ]  # fmt: skip
    assert [McpServerConfig.model_validate(table).name for table in tables] == [table["name"] for table in tables]
    assert "mcp_servers" in TrajectoriesConfig.model_fields
    ingest(tmp_path, PAGE["servers"][:1])
    assert not (tmp_path / "out.mcp_servers.toml").exists()
    (tmp_path / "out.mcp_servers.toml").write_text("name = 'mine'")
    with pytest.raises(DestinationRefused, match="not a listing of this command"):
        ingest(tmp_path, {"servers": PAGE["servers"][1:]})


@pytest.mark.parametrize(
    "document", [{"servers": []}, {"servers": [{"name": "x"}]}, {"mcpServers": {}}, {"name": "x", "tools": TOOLS}, []]
)
def test_other_documents_are_no_listing(document: Any, tmp_path: Path) -> None:
    from synthesis.tools.mcp_registry import read_registry

    assert read_registry(document) is None
