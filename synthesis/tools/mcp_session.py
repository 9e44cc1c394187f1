"""One running tool server and the connection to it, with the official SDK: shaken hands with, listed, called.

Decided: docs/decisions/tools.md, “What a tool server refuses is a response; what it breaks costs its trajectory”.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from synthesis.records import JsonObject
from synthesis.stage import Rejected
from synthesis.tools.backends import ToolResponse, compact_json
from synthesis.tools.mcp_servers import (
    WORKSPACE,
    McpServerConfig,
    ToolServerDied,
    ToolServerUnavailable,
    command_of,
    environment_of,
)

MAX_RESPONSE_CHARACTERS: Final = 20_000


def _require_sdk() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise ToolServerUnavailable(
            "MCP servers need the official SDK, which is not installed; run: pip install 'astra-jax[mcp]'"
        ) from error
    return mcp


class McpSession:
    """One running server and the connection to it, owned by one task from start to end."""

    def __init__(self, config: McpServerConfig, workspace: Path):
        self.config = config
        self.workspace = workspace
        self.is_alive = False
        self._session: Any = None
        self._stopping = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server and shake hands.

        Raises:
            ToolServerUnavailable: it does not start, or does not answer in time.
        """
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(started))
        try:
            async with asyncio.timeout(self.config.start_seconds):
                await started
        except TimeoutError as error:
            await self.stop()
            raise ToolServerUnavailable(
                f"MCP server {self.config.name!r} did not answer within {self.config.start_seconds:g} s of its start"
            ) from error

    async def _own(self, started: asyncio.Future[None]) -> None:
        """Hold the connection open until told to stop; entered and left in one task, as the SDK requires."""
        try:
            async with AsyncExitStack() as stack:
                self._session = await self._connect(stack)
                await self._agree_on_protocol()
                self.is_alive = True
                started.set_result(None)
                await self._stopping.wait()
        except Exception as error:  # noqa: BLE001 - any way of not starting is told to the one who waits
            if not started.done():
                started.set_exception(
                    ToolServerUnavailable(f"MCP server {self.config.name!r} does not start: {_first_line(error)}")
                )
        finally:
            self.is_alive = False
            if not started.done():
                started.cancel()

    async def _agree_on_protocol(self) -> None:
        """Shake hands, as every version up to 2025-11-25 does; ask a server that has no handshake for what it has."""
        from mcp import MCPError

        try:
            await self._session.initialize()
        except MCPError as refused:
            if _is_of_connection(refused):
                raise
            await self._session.discover()

    async def _connect(self, stack: AsyncExitStack) -> Any:
        mcp = _require_sdk()
        if self.config.url:
            from mcp.client.streamable_http import streamable_http_client

            read, write, *_ = await stack.enter_async_context(streamable_http_client(self.config.url))
        else:
            program, *arguments = (self._placed(part) for part in command_of(self.config.command))
            environment = {name: self._placed(value) for name, value in environment_of(self.config).items()}
            parameters = mcp.StdioServerParameters(command=program, args=arguments, cwd=self.workspace, env=environment)
            errors = stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115 - closed by the stack
            read, write = await stack.enter_async_context(mcp.stdio_client(parameters, errlog=errors))
        return await stack.enter_async_context(mcp.ClientSession(read, write))

    def _placed(self, text: str) -> str:
        return text.replace(WORKSPACE, str(self.workspace))

    async def list_tools(self) -> list[JsonObject]:
        """Return the server's tools, page by page, as the protocol gives them.

        Raises:
            ToolServerUnavailable: it ends, refuses, gives pages without end, or what it gives is no list of tools.
        """
        from mcp import MCPError
        from mcp.types import PaginatedRequestParams

        tools: list[JsonObject] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(self.config.start_seconds):
                while True:
                    of_page = PaginatedRequestParams(cursor=cursor) if cursor else None
                    page = await self._answer_to(self._session.list_tools(params=of_page))
                    tools += [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in page.tools]
                    cursor = page.next_cursor
                    if not cursor:
                        return tools
        except (TimeoutError, ToolServerDied, MCPError, ValidationError) as error:
            raise ToolServerUnavailable(
                f"MCP server {self.config.name!r} cannot be listed within {self.config.start_seconds:g} s: "
                f"{_first_line(error)}"
            ) from error

    async def call(self, name: str, arguments: JsonObject) -> ToolResponse:
        """Call a tool; what the tool reports as an error, or the server refuses, is a response.

        Raises:
            ToolServerDied: the connection ended, or no answer came in time.
            Rejected: the answer is not one that the protocol, or the tool's own output schema, allows.
        """
        from mcp import MCPError

        try:
            result = await self._answer_to(self._session.call_tool(name, arguments))
        except MCPError as refused:
            return ToolResponse(self._shown(refused.message), is_error=True)
        except (RuntimeError, ValidationError) as error:  # the SDK's ways of saying so
            raise Rejected("tool broke the protocol", f"{self.config.name}.{name}: {_first_line(error)}") from error
        return ToolResponse(self._text(result), is_error=bool(result.is_error))

    def _text(self, result: Any) -> str:
        structured = result.structured_content
        if isinstance(structured, dict) and not result.is_error:
            # Servers made with the SDK put a value that is no object under `result`: structured content must be one.
            text = compact_json(structured["result"] if set(structured) == {"result"} else structured)
        else:
            blocks = (block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
            text = "\n".join(blocks)
        return self._shown(text)

    def _shown(self, text: str) -> str:
        """Return a text without this machine's paths, cut at the limit with a word on what is left out."""
        # Paths inside the workspace become relative to it, the workspace itself `.`.
        text = text.replace(f"{self.workspace}/", "").replace(str(self.workspace), ".").strip()
        if len(text) > MAX_RESPONSE_CHARACTERS:
            text = f"{text[:MAX_RESPONSE_CHARACTERS]}\n[{len(text) - MAX_RESPONSE_CHARACTERS} more characters]"
        return text

    async def _answer_to(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Await the answer to a request; a session whose request was given up is not asked again.

        Raises:
            MCPError: the server lives, and answers that it refuses.
            ToolServerDied: the connection ended, or no answer came in time.
        """
        from mcp import MCPError

        assert self._owner is not None
        answer = asyncio.ensure_future(request)
        try:
            async with asyncio.timeout(self.config.call_seconds):
                # Beside the owner: when the connection has ended, an answer may never come.
                await asyncio.wait({answer, self._owner}, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise ToolServerDied(f"MCP server {self.config.name!r} ended during a call")
                if isinstance(error := answer.exception(), MCPError) and not await self._is_connected(error):
                    self.is_alive = False
                    raise ToolServerDied(f"MCP server {self.config.name!r} broke off: {error}") from error
        except TimeoutError as error:
            self.is_alive = False
            raise ToolServerDied(
                f"MCP server {self.config.name!r} did not answer a call within {self.config.call_seconds:g} s"
            ) from error
        finally:
            if not answer.done():  # given up here, or cancelled from outside, e.g. by a trajectory's deadline
                self.is_alive = False
                answer.cancel()
        return answer.result()

    async def _is_connected(self, error: Any) -> bool:
        """Tell an error of the connection from a server's own; servers use the code of a closed one, too."""
        from mcp import MCPError

        if not _is_of_connection(error):
            return True
        try:
            await self._session.send_ping()
        except MCPError as refused:
            return not _is_of_connection(refused)
        return True

    async def stop(self) -> None:
        """End the connection and the process; safe to call twice."""
        self._stopping.set()
        if self._owner is not None:
            owner, self._owner = self._owner, None
            # The owner leaves by itself, since the SDK's contexts must be left in the task that entered them.
            done, _ = await asyncio.wait({owner}, timeout=10)
            if not done:
                owner.cancel()
                await asyncio.wait({owner}, timeout=10)


def _first_line(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap the fault, one inside another
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".splitlines()[0].rstrip(": ")


def _is_of_connection(error: Any) -> bool:
    """Say whether an error has a code by which the SDK says that there is no connection, or no answer in time."""
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    return error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
