"""The sessions of real tool servers: lent to one trajectory, restored, replaced when they die.

A conversation has one server, or a group of several whose tools are offered together. Each session is a process of its
own with a workspace of its own. A trajectory leases it alone, and finds the workspace as it was prepared, so that
trajectories see nothing of one another and their order changes nothing.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sandbox.program import give
from synthesis.records import InjectedFailure, JsonObject, JsonValue, ToolDocument
from synthesis.tools.backends import ToolResponse
from synthesis.tools.documents import SourceServer, object_in
from synthesis.tools.mcp_confinement import is_confined, started
from synthesis.tools.mcp_servers import ORIGIN, Credentials, McpServerConfig, McpServerGroup, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from synthesis.tools.names import legal_names, words_of
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


class Route(NamedTuple):
    """The place of a call's server in its group, and the name by which the server knows the tool."""

    server: int
    tool: str


class McpGroup:
    """The pools of the servers of a conversation, leased together."""

    def __init__(self, pools: Sequence[McpPool], routes: Mapping[str, Route]):
        """`routes` go by the names in the group's listing; a server by itself needs none."""
        self._pools, self._routes = tuple(pools), routes

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[McpBackend]:
        """Lend a session of each server to one trajectory; waits while one has none left.

        Raises:
            ToolServerUnavailable: a new session does not start.
        """
        # No deadlock: every group leases in the order of the config, and no server is in two groups.
        async with AsyncExitStack() as stack:
            sessions = [await stack.enter_async_context(pool.lease()) for pool in self._pools]
            yield McpBackend(sessions, self._routes)


class McpBackend:
    """Answers the calls of one trajectory from leased sessions."""

    kind: Literal["mcp", "emulator"] = "mcp"

    def __init__(self, sessions: Sequence[McpSession], routes: Mapping[str, Route]):
        self.injected_failures: list[InjectedFailure] = []
        self._sessions, self._routes = sessions, routes

    async def call(self, call_id: str, tool: ToolDocument, arguments: JsonObject) -> ToolResponse:
        """Make one call by the name that the server knows; raise as `McpSession.call`."""
        listed = tool.original_name or tool.name
        place, name = self._routes[listed] if self._routes else (0, listed)
        return await self._sessions[place].call(name, arguments)


def joined(group: McpServerGroup, listings: Sequence[SourceServer]) -> tuple[SourceServer, dict[str, Route]]:
    """Return the listings of several servers as that of one, and the routes of its tools.

    A tool name that several of the servers have gets the server's name before it, for each of them.

    Raises:
        ToolServerUnavailable: two tools still have one name.
    """
    names = [[str(tool.name).strip() for tool in listing.tools] for listing in listings]
    having = Counter(name for listed in names for name in set(listed))
    tools = []
    routes: dict[str, Route] = {}
    values: dict[str, JsonValue] = {}
    for place, (listing, listed) in enumerate(zip(listings, names, strict=True)):
        prefix = "_".join(words_of(listing.name)) or f"server_{place + 1}"
        called = [name if having[name] == 1 else f"{prefix}__{name}" for name in listed]
        for name, own, legal, tool in zip(called, listed, legal_names(called), listing.tools, strict=True):
            route = Route(place, str(tool.name))
            if routes.setdefault(name, route) != route:
                raise ToolServerUnavailable(
                    f"mcp_server_groups, {group.name!r}: two tools have the name {name!r}; give one of its servers "
                    "another `name`"
                )
            tools.append(replace(tool, name=name))
            # By `tool.argument`: the known values of one server say nothing of the arguments of others.
            for argument in object_in(object_in(tool.parameters).get("properties")):
                known = listing.argument_values
                found = known.get(f"{legal_names([own])[0]}.{argument}", known.get(argument))
                values |= {} if found is None else {f"{legal}.{argument}": found}
    repairs = tuple(repair for listing in listings for repair in listing.repairs)
    source = SourceServer(group.name, ORIGIN, tools, group.domain, "", group.language, values, repairs)
    return source, routes
