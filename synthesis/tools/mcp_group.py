"""The real servers of one conversation: one, or several whose tools are offered together."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Literal, NamedTuple

from synthesis.records import InjectedFailure, JsonObject, JsonValue, ToolDocument
from synthesis.tools.backends import ToolResponse
from synthesis.tools.documents import SourceServer, object_in
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_servers import ORIGIN, McpServerGroup, ToolServerUnavailable
from synthesis.tools.mcp_session import McpSession
from synthesis.tools.names import legal_names, words_of


class Route(NamedTuple):
    """The server and the tool of a call."""

    server: int
    """Place of the server in its group."""
    tool: str
    """The name that the server knows."""


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
        route = self._routes[listed] if self._routes else Route(0, listed)
        return await self._sessions[route.server].call(route.tool, arguments)


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
    return (
        SourceServer(
            name=group.name,
            origin=ORIGIN,
            tools=tools,
            domain=group.domain,
            language=group.language,
            argument_values=values,
            repairs=tuple(repair for listing in listings for repair in listing.repairs),
        ),
        routes,
    )
