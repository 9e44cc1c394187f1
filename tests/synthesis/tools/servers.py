"""Tool servers for tests: how each is started or reached, and pools of their sessions."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import McpServerConfig
from synthesis.tools.mcp_session import McpSession

RAW_SERVER = Path(__file__).with_name("raw_server.py")
CLOCK = "2026-03-02T09:00:00+00:00"
TIME = McpServerConfig(
    name="Time",
    command=(
        "python",
        "-m",
        "astra_jax.recipes.tool_servers",
        "clock",
        CLOCK,
        "mcp_server_time",
        "--local-timezone=UTC",
    ),
)
GIT = McpServerConfig(
    name="Git",
    command=("python", "-m", "mcp_server_git", "--repository", "."),
    prepare=("python", "-m", "astra_jax.recipes.tool_servers", "repositories"),
    max_sessions=1,
)


def scripted_server(tmp_path: Path, body: str, **settings: Any) -> McpServerConfig:
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


def raw_server(*arguments: str, **settings: Any) -> McpServerConfig:
    """Name a server that is written against the protocol itself."""
    return McpServerConfig(name="raw", command=("python", str(RAW_SERVER), *arguments), **settings)


def at(port: int, **settings: Any) -> McpServerConfig:
    """Name a server at an address of this machine."""
    return McpServerConfig(**({"name": "far", "url": f"http://127.0.0.1:{port}/mcp"} | settings))


@asynccontextmanager
async def pool_of(config: McpServerConfig, tmp_path: Path) -> AsyncIterator[McpPool]:
    """Yield a pool whose workspaces lie in a folder of `tmp_path`, and close it at the end."""
    pool = McpPool(config, tmp_path / f"w-{config.name}")
    try:
        yield pool
    finally:
        await pool.close()


@asynccontextmanager
async def session_of(config: McpServerConfig, tmp_path: Path) -> AsyncIterator[McpSession]:
    """Yield one session of a server."""
    async with pool_of(config, tmp_path) as pool, pool.lease() as session:
        yield session


async def said_to(session: McpSession, text: str) -> str:
    """Return the response of the tool `act` to a text."""
    return (await session.call("act", {"text": text})).content
