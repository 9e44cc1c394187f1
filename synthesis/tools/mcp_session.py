"""One running tool server and the connection to it, with the official SDK.

Decided: docs/decisions/tools.md, “A refused call is a tool response; a broken protocol rejects the trajectory”.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from synthesis.records import JsonObject
from synthesis.stage import Rejected
from synthesis.tools.backends import ToolResponse, compact_json
from synthesis.tools.mcp_confinement import is_confined, started
from synthesis.tools.mcp_credentials import Credentials, authorization_of, variables_of
from synthesis.tools.mcp_servers import (
    WORKSPACE,
    McpServerConfig,
    ToolServerDied,
    ToolServerUnavailable,
    command_of,
)

MAX_RESPONSE_CHARACTERS: Final = 20_000
_CONNECT_SECONDS: Final = 10.0
_GOODBYE_SECONDS: Final = 2.0
_REFUSED: Final = (401, 403)


def ends_session(status: int, *, is_json: bool, is_in_session: bool) -> bool:
    """Say whether an HTTP status ends a session: keys are refused, the session is unknown, or the server has failed.

    A refusal of a request may come as JSON with a status of its own; that is an answer.

    >>> [ends_session(status, is_json=True, is_in_session=True) for status in (200, 400, 401, 404, 500)]
    [False, False, True, True, True]
    >>> ends_session(404, is_json=True, is_in_session=False), ends_session(400, is_json=False, is_in_session=True)
    (False, True)
    """
    if status in _REFUSED or status >= 500:
        return True
    return is_in_session if status == 404 else status >= 400 and not is_json


def _require_sdk() -> Any:
    try:
        import mcp
    except ImportError as error:
        raise ToolServerUnavailable(
            "MCP servers need the official SDK, which is not installed; run: pip install 'astra-jax[mcp]'"
        ) from error
    # Its message about a broken connection has a traceback; ours is one line.
    logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
    return mcp


class McpSession:
    """One running server and the connection to it, owned by one task from start to end."""

    def __init__(self, config: McpServerConfig, workspace: Path, credentials: Credentials):
        self.config = config
        self.workspace = workspace
        self.is_alive = False
        self._credentials = credentials
        self._session: Any = None
        self._ended_with = ""
        self._fault: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The HTTP status by which a server at an address has ended the session."""
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
            self._owner.cancel()  # it waits for the server, and not to be told to stop
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
        except Exception as error:  # noqa: BLE001 - any failure is handed to the task that waits for the start
            self._ended_with = self._line(error)
            if not started.done():
                started.set_exception(self._not_started(error))
        finally:
            self.is_alive = False
            if not started.done():
                started.cancel()

    async def _agree_on_protocol(self) -> None:
        """Shake hands, as every version up to 2025-11-25 does; ask a server without a handshake for its features."""
        from mcp import MCPError

        try:
            await self._session.initialize()
        except MCPError as refused:
            if _is_of_connection(refused):
                raise
            await self._session.discover()

    def _not_started(self, error: Exception) -> ToolServerUnavailable:
        if self._fault.done() and (refused := self._refused_keys()) is not None:
            return refused
        if isinstance(error, ToolServerUnavailable):
            return error
        said = f"HTTP {self._fault.result()}" if self._fault.done() else self._line(error)
        advice = "; it runs confined: name folders that it must read in `readable`" if is_confined(self.config) else ""
        return ToolServerUnavailable(f"MCP server {self.config.name!r} does not start: {said}{advice}")

    def _refused_keys(self) -> ToolServerUnavailable | None:
        """Return the error of a server that refuses our keys, and will refuse every task."""
        if (status := self._fault.result()) not in _REFUSED:
            return None
        variables = variables_of(self.config)
        what = f"the keys in {variables}" if variables else "whether it wants a key (bearer_env, header_env, oauth)"
        return ToolServerUnavailable(f"MCP server {self.config.name!r} refuses us (HTTP {status}); check {what}")

    async def _connect(self, stack: AsyncExitStack) -> Any:
        mcp = _require_sdk()
        if self.config.address:
            read, write = await self._connect_to_address(stack)
        else:
            command = [self._placed(part) for part in command_of(self.config.command)]
            variables = {name: self._placed(value) for name, value in self.config.environment.items()}
            (program, *arguments), environment = started(command, self.config, self.workspace, variables)
            parameters = mcp.StdioServerParameters(command=program, args=arguments, cwd=self.workspace, env=environment)
            errors = stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115 - closed by the stack
            read, write = await stack.enter_async_context(mcp.stdio_client(parameters, errlog=errors))
        return await stack.enter_async_context(mcp.ClientSession(read, write))

    async def _connect_to_address(self, stack: AsyncExitStack) -> tuple[Any, Any]:
        from mcp.client.sse import sse_client
        from mcp.client.streamable_http import streamable_http_client

        if self.config.sse_url:
            factory: Any = self._client
            connected = sse_client(self.config.sse_url, httpx_client_factory=factory)
        else:
            client = await stack.enter_async_context(self._client())
            connected = streamable_http_client(self.config.url, http_client=client)
        read, write, *_ = await stack.enter_async_context(connected)
        return read, write

    def _client(self, **_: Any) -> Any:
        """Return an HTTP client that shows the server's keys, and writes down by which status the server ends it."""
        import httpx2

        session = self

        class Client(httpx2.AsyncClient):
            async def send(self, request: httpx2.Request, **named: Any) -> httpx2.Response:
                if request.method == "DELETE":  # the goodbye, which a server that hangs will not answer
                    request.extensions["timeout"] = httpx2.Timeout(_GOODBYE_SECONDS).as_dict()
                response = await super().send(request, **named)  # the last one, where OAuth asked for a token between
                session._look_at(request, response)
                return response

        # An answer may come on a stream that is open as long as the session: `call_seconds` is its limit, not this.
        limits = httpx2.Timeout(self.config.call_seconds, connect=min(_CONNECT_SECONDS, self.config.start_seconds))
        limits.read = None
        authorization = authorization_of(self.config, self._credentials)
        return Client(headers=self._credentials.headers, auth=authorization, timeout=limits)

    def _look_at(self, request: Any, response: Any) -> None:
        # Over streamable HTTP the stream that is asked for by GET is optional, and may be refused.
        if request.method != "POST" and not self.config.sse_url:
            return
        is_json = response.headers.get("content-type", "").lower().startswith("application/json")
        is_in_session = "mcp-session-id" in request.headers
        if ends_session(response.status_code, is_json=is_json, is_in_session=is_in_session) and not self._fault.done():
            self._fault.set_result(response.status_code)

    def _placed(self, text: str) -> str:
        return text.replace(WORKSPACE, str(self.workspace))

    async def list_tools(self) -> list[JsonObject]:
        """Return the server's tools, page by page, as the protocol gives them.

        Raises:
            ToolServerUnavailable: it ends, refuses, gives pages without end, or gives no list of tools.
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
                    tools += [self._listed(tool) for tool in page.tools]
                    cursor = page.next_cursor
                    if not cursor:
                        return tools
        except (TimeoutError, ToolServerDied, MCPError, ValidationError) as error:
            raise ToolServerUnavailable(
                f"MCP server {self.config.name!r} cannot be listed within {self.config.start_seconds:g} s: "
                f"{self._line(error)}"
            ) from error

    def _listed(self, tool: Any) -> JsonObject:
        listed: JsonObject = json.loads(
            self._credentials.masked(tool.model_dump_json(by_alias=True, exclude_none=True))
        )
        return listed

    async def call(self, name: str, arguments: JsonObject) -> ToolResponse:
        """Call a tool; an error of the tool and a refusal of the call are responses.

        Raises:
            ToolServerDied: the connection ended, or no answer came in time.
            ToolServerUnavailable: a server at an address refuses our keys.
            Rejected: the answer is not one that the protocol, or the tool's own output schema, allows.
        """
        from mcp import MCPError

        try:
            result = await self._answer_to(self._session.call_tool(name, arguments))
        except MCPError as refused:
            return ToolResponse(self._shown(refused.message), is_error=True)
        except (RuntimeError, ValidationError) as error:  # the SDK's ways of saying so
            raise Rejected("tool broke the protocol", f"{self.config.name}.{name}: {self._line(error)}") from error
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
        """Return a text without keys and this machine's paths; cut at the limit, it names the rest's length."""
        text = self._credentials.masked(text)
        # Paths inside the workspace become relative to it, the workspace itself `.`.
        text = text.replace(f"{self.workspace}/", "").replace(str(self.workspace), ".").strip()
        if len(text) > MAX_RESPONSE_CHARACTERS:
            text = f"{text[:MAX_RESPONSE_CHARACTERS]}\n[{len(text) - MAX_RESPONSE_CHARACTERS} more characters]"
        return text

    def _line(self, error: BaseException) -> str:
        # First masked, then cut: of a key of several lines one would be left.
        return self._credentials.masked(_said(error)).splitlines()[0].rstrip(": ")

    async def _answer_to(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Await the answer to a request; a session whose request was given up is not asked again.

        Raises:
            MCPError: the server lives, and answers that it refuses.
            ToolServerDied: the connection ended, or no answer came in time.
            ToolServerUnavailable: a server at an address refuses our keys.
        """
        from mcp import MCPError

        assert self._owner is not None
        answer = asyncio.ensure_future(request)
        try:
            async with asyncio.timeout(self.config.call_seconds):
                # Beside the owner: when the connection has ended, an answer may never come.
                waited: set[asyncio.Future[Any]] = {answer, self._owner, self._fault}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                self._require_no_fault()
                if not answer.done():
                    raise ToolServerDied(
                        f"MCP server {self.config.name!r} ended during a call: {self._ended_with or 'without a word'}"
                    )
                if isinstance(error := answer.exception(), MCPError) and not await self._is_connected(error):
                    self.is_alive = False
                    raise ToolServerDied(f"MCP server {self.config.name!r} broke off: {self._line(error)}") from error
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

    def _require_no_fault(self) -> None:
        """Require that no HTTP status has ended the session.

        Raises:
            ToolServerDied, ToolServerUnavailable: one has.
        """
        if self._fault.done():
            self.is_alive = False
            if (refused := self._refused_keys()) is not None:
                raise refused
            raise ToolServerDied(f"MCP server {self.config.name!r} ended the session with HTTP {self._fault.result()}")

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


def _said(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap the fault, one inside another
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def _is_of_connection(error: Any) -> bool:
    """Say whether an error has a code by which the SDK says that there is no connection, or no answer in time."""
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

    return error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT)
