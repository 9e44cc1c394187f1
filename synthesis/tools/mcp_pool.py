"""The sessions of real tool servers: lent to one trajectory, restored, replaced when they die.

Each session is a process of its own with a workspace of its own. A trajectory leases it alone, and finds the workspace
as it was prepared, so that trajectories see nothing of one another and their order changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, Literal

from sandbox.program import give
from synthesis.records import InjectedFailure, JsonObject, ToolDocument
from synthesis.tools.backends import ToolResponse
from synthesis.tools.documents import SourceServer
from synthesis.tools.mcp_confinement import is_confined, started
from synthesis.tools.mcp_servers import ORIGIN, Credentials, McpServerConfig, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from synthesis.tools.tools_list import listed_tool

_RECONNECT_SECONDS: Final = 2.0
_PREPARE_SECONDS: Final = 120.0
_MOST_SHOWN_CHARACTERS: Final = 300


class McpPool:
    """The sessions of one server: at most `max_sessions`, started when needed, replaced when they die."""

    def __init__(self, config: McpServerConfig, folder: Path):
        """Prepare the workspace in `folder`, which is emptied first and removed at the end.

        Raises:
            ToolServerUnavailable: the command of `prepare` failed, or a key is missing.
        """
        self.config = config
        self._credentials = Credentials(config)
        self._idle: list[McpSession] = []
        self._slots = asyncio.Semaphore(config.max_sessions)
        self._started = 0
        self._folder = folder.resolve()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._pristine = self._folder / "pristine"
        self._pristine.mkdir(parents=True)
        try:
            if config.prepare:
                self._prepare()
        except ToolServerUnavailable:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def _prepare(self) -> None:
        command, environment = started(self.config.prepare, self.config, self._pristine)
        try:
            done = subprocess.run(
                command, cwd=self._pristine, env=environment, capture_output=True, timeout=_PREPARE_SECONDS, check=False
            )
            failed, output = f"exit code {done.returncode}:" if done.returncode else "", done.stderr
        except (OSError, subprocess.TimeoutExpired) as error:
            failed, output = str(error), b""
        if failed:
            # First masked, then cut: half of a key would not be recognised.
            failed, said = (
                " ".join(self._credentials.masked(text).split()) for text in (failed, output.decode(errors="replace"))
            )
            said = f"its `prepare` command failed: {failed} {said[-_MOST_SHOWN_CHARACTERS:]}"
            raise self.config.unavailable(said.rstrip())

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[McpSession]:
        """Lend a session to one trajectory, its workspace as it was prepared; waits while all are out.

        A session that died is not lent again, nor are those that waited beside it: the same cause may have ended them.

        Raises:
            ToolServerUnavailable: a new session does not start.
        """
        async with self._slots:
            session = self._idle.pop() if self._idle else await self._new_session()
            try:
                # Before each task, not after it: so nothing is left of a server's own start, either.
                self._restore(session.workspace)
                yield session
            finally:
                if not session.is_alive:
                    idle, self._idle = self._idle, []
                    await asyncio.gather(*(self._end(each) for each in (session, *idle)))
                elif self.config.one_task_per_process:
                    await self._end(session)
                else:
                    self._idle.append(session)

    @staticmethod
    async def _end(session: McpSession) -> None:
        await session.stop()
        shutil.rmtree(session.workspace, ignore_errors=True)

    async def _new_session(self) -> McpSession:
        self._started += 1
        workspace = self._folder / f"session-{self._started}"
        workspace.mkdir()
        self._restore(workspace)
        try:
            session = McpSession(self.config, workspace, self._credentials)
            await session.start()
        except ToolServerUnavailable:
            if not self.config.url:
                raise
            await asyncio.sleep(_RECONNECT_SECONDS)  # it may be on its way up again
            session = McpSession(self.config, workspace, self._credentials)
            await session.start()
        return session

    def _restore(self, workspace: Path) -> None:
        """Make a workspace equal to the pristine one; the folder itself stays, for the server stands in it."""
        fresh = self._folder / f"fresh-{workspace.name}"
        shutil.copytree(self._pristine, fresh, symlinks=True)
        if is_confined(self.config):
            give(fresh)
        for entry in workspace.iterdir():  # a link is removed, and not its target
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        for entry in fresh.iterdir():
            # Moved, not copied: the server runs, and a link that it makes now must not lead this process elsewhere.
            try:
                entry.rename(workspace / entry.name)
            except OSError as error:
                fault = f"{entry.name} was written between two tasks ({error.strerror}); set one_task_per_process"
                raise self.config.unavailable(fault) from None
        fresh.rmdir()

    async def source_server(self) -> SourceServer:
        """List the server's tools, as a source like any other.

        Raises:
            ToolServerUnavailable: the server does not start, or cannot be listed.
        """
        async with self.lease() as session:
            tools = await session.list_tools()
            left_out = tuple(session.left_out)
        config, values = self.config, {name: list(values) for name, values in self.config.argument_values.items()}
        listed = [listed_tool(tool) for tool in tools]
        return SourceServer(config.name, ORIGIN, listed, config.domain, "", config.language, values, left_out)

    async def close(self) -> None:
        """End every session and remove the workspaces."""
        for session in self._idle:
            await session.stop()
        self._idle.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


class McpBackend:
    """Answers the calls of one trajectory from a leased session."""

    kind: Literal["mcp", "emulator"] = "mcp"

    def __init__(self, session: McpSession):
        self.injected_failures: list[InjectedFailure] = []
        self._session = session

    async def call(self, call_id: str, tool: ToolDocument, arguments: JsonObject) -> ToolResponse:
        """Make one call by the name that the server knows; raise as `McpSession.call`."""
        return await self._session.call(tool.original_name or tool.name, arguments)
