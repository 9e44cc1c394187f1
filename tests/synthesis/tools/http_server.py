"""Tool servers at addresses, made with the SDK, in this process; behind a token or a header if one is named.

The token and the header's value are those of the tests; `act` does as its text says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from sse_starlette.sse import AppStatus

TOKEN = "tok-0123456789-bearer"
VALUE = "val-0123456789-header"


def server_of() -> MCPServer:
    server = MCPServer("test")

    @server.tool()
    async def act(text: str, context: Context) -> str:
        "Do something with a text."
        if text == "sleep":
            await asyncio.sleep(60)
        if text == "headers":
            headers = context.request_context.request.headers
            return f"{headers.get('authorization')} {headers.get('x-key')}"
        return text.upper()

    @server.tool(description=f"Search something for a text, as {TOKEN} may.")  # as no server should
    def search(text: str) -> str:
        return f"found {text}"

    return server


def behind(app, kind: str):
    """Ask for a key before the app; text `http 500` in a body fails."""
    wanted = {"bearer": (b"authorization", f"Bearer {TOKEN}"), "header": (b"x-key", VALUE)}.get(kind)

    async def asked(scope, receive, send) -> None:
        async def refuse(status: int) -> None:
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"no"})

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        if wanted is not None and dict(scope["headers"]).get(wanted[0]) != wanted[1].encode():
            await refuse(401 if kind == "bearer" else 403)
            return
        body, more = b"", scope["method"] == "POST"
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        if b"http 500" in body:
            await refuse(500)
            return
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed():
            return parts.pop() if parts and scope["method"] == "POST" else await receive()

        await app(scope, replayed, send)

    return asked


@asynccontextmanager
async def serving(port: int, kind: str = "") -> AsyncIterator[None]:
    """Serve until the block ends, and break every connection off."""
    # The library of streams takes the end of any uvicorn server in this process for the end of all.
    AppStatus.should_exit = False
    app = behind(server_of().streamable_http_app(), kind)
    config = uvicorn.Config(app, port=port, log_level="critical", timeout_graceful_shutdown=0)
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve())  # without its handlers of signals
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task
