"""An endpoint of OpenAI's chat that gives a test's replies and remembers the requests."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Script = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
"""From the body of a request to status and reply."""
LOST: tuple[int, dict[str, Any]] = (0, {})
"""No reply: the connection is closed."""


class ScriptedEndpoint:
    """Where it listens, and the bodies and keys that came."""

    def __init__(self, script: Script):
        self.script = script
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""


def reply(
    content: str | None = None, *calls: tuple[str, str], finish: str | None = None, tokens: tuple[int, int] = (10, 5)
) -> tuple[int, dict[str, Any]]:
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for number, (name, arguments) in enumerate(calls)
        ]
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)}
    choice = {"index": 0, "message": message, "finish_reason": finish or ("tool_calls" if calls else "stop")}
    return 200, {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}


def says_hello(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Text of a simulated user."""
    return reply("I want to send a message.", tokens=(5, 2))


@contextlib.contextmanager
def scripted_endpoint(script: Script, *, most_tokens: int = 1000) -> Iterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(200, {"data": [{"id": "scripted", "max_model_len": most_tokens}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.bodies.append(body)
            endpoint.keys.append(self.headers.get("Authorization"))
            status, document = endpoint.script(body)
            if status:
                self.say(status, document)

        def say(self, status: int, document: dict[str, Any]) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    endpoint.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield endpoint
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
