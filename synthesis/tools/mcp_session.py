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
from typing import Any, Final, NoReturn

from pydantic import ValidationError

from synthesis.records import JsonObject
from synthesis.stage import Rejected
from synthesis.tools.backends import ToolResponse
from synthesis.tools.mcp_confinement import is_confined, started
from synthesis.tools.mcp_messages import sendable, shown_answer, shown_page, text_of_answer
from synthesis.tools.mcp_servers import Credentials, McpServerConfig, ToolServerDied, ToolServerUnavailable

MAX_RESPONSE_CHARACTERS: Final = 20_000
_CONNECT_SECONDS: Final = 10.0
_GOODBYE_SECONDS: Final = 2.0
_STOP_SECONDS: Final = 10.0
_REFUSED: Final = (401, 403)
_CONNECTION_CODES: Final = (-32000, -32001)
"""Codes of JSON-RPC by which the SDK says that there is no connection, or no answer in time."""


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


class McpSession:
    """One running server and the connection to it, owned by one task from start to end."""

    def __init__(self, config: McpServerConfig, workspace: Path, credentials: Credentials):
        self.workspace = workspace
        self.is_alive = False
        self._config, self._credentials = config, credentials
        self._name = f"MCP server {config.name!r}"
        self._session: Any = None
        self._ended_with = "without a word"
        self._listed: list[JsonObject] = []
        self.left_out: list[str] = []
        """Entries of the listing that are no tools, and the place where a listing without end was ended."""
        self._fault: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The HTTP status by which a server at an address has ended the session."""
        self._stopping = asyncio.Event()
        self._owner: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the server and shake hands.

        Raises:
            ToolServerUnavailable: it does not start, or does not answer in time.
        """
        connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(connected))
        try:
            async with asyncio.timeout(self._config.start_seconds):
                await connected
        except TimeoutError as error:
            self._owner.cancel()  # it waits for the server, and not to be told to stop
            await self.stop()
            raise ToolServerUnavailable(
                f"{self._name} did not answer within {self._config.start_seconds:g} s of its start"
            ) from error

    async def _own(self, connected: asyncio.Future[None]) -> None:
        """Hold the connection open until told to stop; entered and left in one task, as the SDK requires."""
        try:
            async with AsyncExitStack() as stack:
                await self._connect(stack)
                self.is_alive = True
                connected.set_result(None)
                await self._stopping.wait()
        except Exception as error:  # noqa: BLE001 - any failure is handed to the task that waits for the start
            self._ended_with = self._line(error)
            if not connected.done():
                connected.set_exception(self._not_started(error))
        finally:
            self.is_alive = False
            connected.cancel()  # if it is not done

    def _not_started(self, error: Exception) -> ToolServerUnavailable:
        if isinstance(error, ToolServerUnavailable):
            return error
        if self._fault.done() and self._fault.result() in _REFUSED:
            return self._refused()
        said = f"HTTP {self._fault.result()}" if self._fault.done() else self._line(error)
        advice = "; it runs confined: name folders that it must read in `readable`" if is_confined(self._config) else ""
        return ToolServerUnavailable(f"{self._name} does not start: {said}{advice}")

    def _refused(self) -> ToolServerUnavailable:
        """Return the error of a server that refuses our keys, and will refuse every task."""
        variables = self._credentials.variables
        checked = f"the keys in {variables}" if variables else "whether it wants a key (bearer_env, header_env)"
        return ToolServerUnavailable(f"{self._name} refuses us (HTTP {self._fault.result()}); check {checked}")

    async def _connect(self, stack: AsyncExitStack) -> None:
        """Connect and shake hands, as every version up to 2025-11-25 does; later ones are asked for their features."""
        try:
            import mcp
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
        except ImportError as error:
            raise ToolServerUnavailable(
                "MCP servers need the official SDK, which is not installed; run: pip install 'astra-jax[mcp]'"
            ) from error
        # Its message about a broken connection has a traceback; ours is one line.
        logging.getLogger("mcp.client").setLevel(logging.CRITICAL)
        if self._config.url:
            client = await stack.enter_async_context(self._http_client())
            connected = streamable_http_client(self._config.url, http_client=client)
        else:
            (program, *arguments), environment = started(self._config.command, self._config, self.workspace)
            command = mcp.StdioServerParameters(command=program, args=arguments, cwd=self.workspace, env=environment)
            errors = stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115 - closed by the stack
            connected = mcp.stdio_client(command, errlog=errors)
        read, write = await stack.enter_async_context(connected)
        session = self

        class Dispatcher(JSONRPCDispatcher[Any]):
            async def send_raw_request(self, method: str, *arguments: Any, **named: Any) -> Any:
                answer = await super().send_raw_request(method, *arguments, **named)
                if method == "tools/list" and isinstance(answer, dict):
                    return shown_page(answer, session._listed, session.left_out)
                return shown_answer(answer) if method == "tools/call" and isinstance(answer, dict) else answer

        self._session = await stack.enter_async_context(mcp.ClientSession(dispatcher=Dispatcher(read, write)))
        try:
            await self._session.initialize()
        except mcp.MCPError as refused:
            if refused.code in _CONNECTION_CODES:
                raise
            await self._session.discover()

    def _http_client(self) -> Any:
        """Return an HTTP client that shows the server's keys, and notes the status by which the server ends it."""
        import httpx2

        async def hurry(request: httpx2.Request) -> None:
            if request.method == "DELETE":  # the goodbye, which a server that hangs will not answer
                request.extensions["timeout"] = httpx2.Timeout(_GOODBYE_SECONDS).as_dict()

        async def note(response: httpx2.Response) -> None:
            is_json = response.headers.get("content-type", "").lower().startswith("application/json")
            is_in_session = "mcp-session-id" in response.request.headers
            ends = ends_session(response.status_code, is_json=is_json, is_in_session=is_in_session)
            # The stream that is asked for by GET is optional, and may be refused.
            if ends and response.request.method == "POST" and not self._fault.done():
                self._fault.set_result(response.status_code)

        # An answer may come on a stream that is open as long as the session: `call_seconds` is its limit, not this.
        limits = httpx2.Timeout(self._config.call_seconds, connect=min(_CONNECT_SECONDS, self._config.start_seconds))
        limits.read = None
        return httpx2.AsyncClient(
            headers=self._credentials.headers, timeout=limits, event_hooks={"request": [hurry], "response": [note]}
        )

    async def list_tools(self) -> list[JsonObject]:
        """Return the server's tools, page by page, as it gives them; entries without a name are named in `left_out`.

        Raises:
            ToolServerUnavailable: it ends, refuses, gives pages without end, or gives no list of tools.
        """
        from mcp import MCPError
        from mcp.types import PaginatedRequestParams

        self._listed, self.left_out = [], []
        cursors: list[str] = []
        try:
            async with asyncio.timeout(self._config.start_seconds):
                while True:
                    params = PaginatedRequestParams(cursor=cursors[-1]) if cursors else None
                    known = len(self._listed)
                    page = await self._answer_to(self._session.list_tools(params=params))
                    if not page.next_cursor:
                        break
                    if page.next_cursor in cursors or (page.tools and len(self._listed) == known):
                        again = f"listing ended after {len(cursors) + 1} pages: its cursor or its tools came again"
                        self.left_out.append(again)
                        break
                    cursors.append(page.next_cursor)
        except TimeoutError as error:
            raise ToolServerUnavailable(
                f"{self._name} cannot be listed: it gave {len(self._listed)} tools on {len(cursors) + 1} pages and "
                f"went on for {self._config.start_seconds:g} s; raise start_seconds if it has more"
            ) from error
        except (ToolServerDied, MCPError, ValidationError) as error:
            raise ToolServerUnavailable(f"{self._name} cannot be listed: {self._line(error)}") from error
        self.left_out = list(dict.fromkeys(map(self._credentials.masked, self.left_out)))
        return [json.loads(self._credentials.masked(json.dumps(sendable(tool)))) for tool in self._listed]

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
            raise Rejected("tool broke the protocol", f"{self._config.name}.{name}: {self._line(error)}") from error
        text = text_of_answer(result.content, result.structured_content)
        return ToolResponse(self._shown(text), is_error=bool(result.is_error))

    def _shown(self, text: str) -> str:
        """Return a text without keys and this machine's paths; cut at the limit, it names the rest's length."""
        text = self._credentials.masked(text.encode(errors="replace").decode())  # no half of a character
        # Paths inside the workspace become relative to it, the workspace itself `.`.
        text = text.replace(f"{self.workspace}/", "").replace(str(self.workspace), ".").strip()
        if len(text) > MAX_RESPONSE_CHARACTERS:
            text = f"{text[:MAX_RESPONSE_CHARACTERS]}\n[{len(text) - MAX_RESPONSE_CHARACTERS} more characters]"
        return text

    def _line(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):  # the SDK's task groups wrap the fault, one inside another
            error = error.exceptions[0]
        # First masked, then cut: of a key of several lines one would be left.
        return self._credentials.masked(f"{type(error).__name__}: {error}").splitlines()[0].rstrip(": ")

    async def _answer_to(self, request: Coroutine[Any, Any, Any]) -> Any:
        """Await the answer to a request, or the `MCPError` of a server that lives; raise else as `call`.

        A session whose request was given up is not asked again.
        """
        from mcp import MCPError

        assert self._owner is not None
        answer = asyncio.ensure_future(request)
        try:
            async with asyncio.timeout(self._config.call_seconds):
                # Beside the owner: when the connection has ended, an answer may never come.
                waited: set[asyncio.Future[Any]] = {answer, self._owner, self._fault}
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
                if self._fault.done():
                    if self._fault.result() in _REFUSED:
                        raise self._refused()
                    self._died(f"ended the session with HTTP {self._fault.result()}")
                if not answer.done():
                    self._died(f"ended during a call: {self._ended_with}")
                if isinstance(error := answer.exception(), MCPError) and not await self._is_connected(error):
                    self._died(f"broke off: {self._line(error)}")
        except TimeoutError:
            self._died(f"did not answer a call within {self._config.call_seconds:g} s")
        finally:
            if not answer.done():  # given up here, or cancelled from outside, e.g. by a trajectory's deadline
                self.is_alive = False
                answer.cancel()
        return answer.result()

    def _died(self, how: str) -> NoReturn:
        self.is_alive = False
        raise ToolServerDied(f"{self._name} {how}") from None

    async def _is_connected(self, error: Any) -> bool:
        """Tell an error of the connection from a server's own; servers use the code of a closed one, too."""
        from mcp import MCPError

        if error.code not in _CONNECTION_CODES:
            return True
        try:
            await self._session.send_ping()
        except MCPError as refused:
            return refused.code not in _CONNECTION_CODES
        return True

    async def stop(self) -> None:
        """End the connection and the process; safe to call twice."""
        self._stopping.set()
        if self._owner is not None:
            owner, self._owner = self._owner, None
            # The owner leaves by itself, since the SDK's contexts must be left in the task that entered them.
            done, _ = await asyncio.wait({owner}, timeout=_STOP_SECONDS)
            if not done:
                owner.cancel()
                await asyncio.wait({owner}, timeout=_STOP_SECONDS)
