"""Tool servers at addresses, made with the SDK, behind a token if one is named.

    python http_server.py

Each line that it reads, `PORT [bearer|oauth|header]`, is answered with the number of one more process, which serves at
that port: forked, since to import the SDK takes a second.

The token, the client's secret and the header's value are those of the tests; `act` does what its text says.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys

import uvicorn
from mcp.server.mcpserver import Context, MCPServer

TOKEN = "tok-0123456789-bearer"
GIVEN = "tok-9876543210-given"
CLIENT = ("client-0123456789", "sec-0123456789-client")
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


def behind(app, port: int, kind: str):
    """Ask for a key before the app, and give tokens to the one client; text `http 500` in a body fails."""
    here = f"http://127.0.0.1:{port}"
    wanted = {"bearer": TOKEN, "oauth": GIVEN}.get(kind)

    async def answer(send, status: int, body: object, *headers: tuple[bytes, bytes]) -> None:
        head = [(b"content-type", b"application/json" if body else b"text/plain"), *headers]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": json.dumps(body).encode() if body else b"no"})

    async def asked(scope, receive, send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        headers, path = dict(scope["headers"]), scope["path"]
        if kind == "oauth" and path.startswith("/.well-known/oauth-protected-resource"):
            await answer(send, 200, {"resource": f"{here}/mcp", "authorization_servers": [here]})
            return
        if kind == "oauth" and path == "/.well-known/oauth-authorization-server":
            server = {"issuer": here, "authorization_endpoint": f"{here}/authorize", "token_endpoint": f"{here}/token"}
            await answer(send, 200, server | {"response_types_supported": ["code"]})
            return
        if kind == "oauth" and path == "/token":
            basic = base64.b64encode(":".join(CLIENT).encode())
            if headers.get(b"authorization") == b"Basic " + basic:
                await answer(send, 200, {"access_token": GIVEN, "token_type": "Bearer", "expires_in": 3600})
            else:
                said = headers.get(b"authorization", b"").decode()
                await answer(send, 401, {"error": "invalid_client", "error_description": f"not {said} {CLIENT[1]}"})
            return
        if kind == "header" and headers.get(b"x-key") != VALUE.encode():
            await answer(send, 403, None)
            return
        if wanted is not None and headers.get(b"authorization") != f"Bearer {wanted}".encode():
            where = f'Bearer resource_metadata="{here}/.well-known/oauth-protected-resource"'
            await answer(send, 401, {"error": "invalid_token"}, (b"www-authenticate", where.encode()))
            return
        body = b""
        if scope["method"] == "POST":
            more = True
            while more:
                part = await receive()
                body, more = body + part.get("body", b""), part.get("more_body", False)
            if b"http 500" in body:
                await answer(send, 500, None)
                return
        parts = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed():
            return parts.pop() if parts and scope["method"] == "POST" else await receive()

        await app(scope, replayed, send)

    return asked


def serve(port: int, kind: str = "") -> None:
    uvicorn.run(behind(server_of().streamable_http_app(), port, kind), port=port, log_level="critical")


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # one that has ended is gone at once
    for line in sys.stdin:
        if not (number := os.fork()):
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            port, *how = line.split()
            serve(int(port), *how)
            os._exit(0)
        print(number, flush=True)
