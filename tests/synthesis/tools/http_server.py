"""Tool servers at addresses, made with the SDK, behind a token if one is named.

    python http_server.py

Each line that it reads, `PORT [bearer|header]`, is answered with the number of one more process, which serves at
that port: forked, since to import the SDK takes a second.

The token and the header's value are those of the tests; `act` does what its text says.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

TOKEN = "tok-0123456789-bearer"
VALUE = "val-0123456789-header"


def server_of() -> MCPServer:
    server = MCPServer("test")

    @server.tool()
    async def act(text: str, context: Context) -> str:
        "Do something with a text."
        if text == "die":
            os._exit(3)
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


def serve(port: int, kind: str = "") -> None:
    uvicorn.run(behind(server_of().streamable_http_app(), kind), port=port, log_level="critical")


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # one that has ended is gone at once
    for line in sys.stdin:
        if not (number := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            port, *how = line.split()
            serve(int(port), *how)
            os._exit(0)
        print(number, flush=True)
