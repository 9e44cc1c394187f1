"""The server between a harness and an endpoint: it passes chats on, and writes a line for each.

A harness knows the models of its own table, has no key of ours, and has no option for some settings. An answer that it
scores as 0 may have been lost on the way, or cut off. So it talks to the relay, which

    asks for the endpoint's model, with the endpoint's key, which the harness never sees
    adds the settings that the harness leaves open, replaces those for which it has no option, raises its limit of an
    answer to a floor, and changes nothing else in its request
    waits if the endpoint says 429, and tries again if the endpoint or the connection fails
    renames calls of tools that do not exist, if the harness would run text of the model as Python
    takes JSON of a call in an answer's text for a call, if it is told to

Decided: docs/decisions/benchmarks.md, “A harness talks to a relay”.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from astra_jax.evaluate.endpoint import Endpoint, key_or_none

_PATH: Final = "/v1/chat/completions"
_MOST_BODY_BYTES: Final = 64 * 2**20
_MOST_WAIT_SECONDS: Final = 600.0
_PAUSES: Final = (1.0, 2.0, 4.0)
"""Seconds between the tries of a chat."""
_NO_TOOL, _NO_ARGUMENT = "no_such_tool", "no_such_argument"


def chat_client(endpoint: Endpoint) -> aiohttp.ClientSession:
    """Return a client that sends the endpoint's key and waits without limit: an answer may take an hour."""
    key = key_or_none(endpoint.key_variable)
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {key}"} if key else {},
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
        trust_env=False,
    )


async def send_chat(client: aiohttp.ClientSession, endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[int, Any]:
    """Send a chat, up to four times if no answer comes or the endpoint fails; return status and reply.

    Raises:
        aiohttp.ClientError, OSError, ValueError: no answer comes, or none of JSON.
    """
    for pause in _PAUSES:
        with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
            status, reply = await _send_once(client, endpoint, body)
            if status != 408 and status < 500:
                return status, reply
        await asyncio.sleep(pause)
    return await _send_once(client, endpoint, body)


async def _send_once(client: aiohttp.ClientSession, endpoint: Endpoint, body: Mapping[str, Any]) -> tuple[int, Any]:
    """Send a chat; an endpoint that says 429 is waited for up to ten minutes."""
    deadline = time.monotonic() + _MOST_WAIT_SECONDS
    while True:
        async with client.post(f"{endpoint.url}{_PATH}", json=body) as response:
            content = await response.read()
            if response.status != 429 or time.monotonic() > deadline:
                return response.status, json.loads(content)
            retry_after = response.headers.get("Retry-After", "")
        await asyncio.sleep(float(retry_after) if retry_after.isdigit() else 1.0)


@dataclass(frozen=True)
class Relay:
    """The server that one harness asks."""

    endpoint: Endpoint
    log: Path
    """File to which a line is added for each request."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are added to a request that lacks them; a field that is None is left out."""
    replaced: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that a harness writes into every request; a field that is None stays as it is."""
    max_tokens_floor: int | None = None
    """Least limit of an answer, to which a lower one is raised."""
    tool_names: Collection[str] | None = None
    """The only names that a call may have; None if the harness looks names up and runs no text."""
    empty_as: str | None = None
    """Text in place of an answer without a word and without a call, at which a harness would end its run."""
    mends_format: bool = False
    """Whether JSON of calls in the text of an answer without calls becomes calls."""

    @contextlib.asynccontextmanager
    async def listening(self, where: socket.socket) -> AsyncIterator[None]:
        """Answer at a listening socket, also at one of another network namespace, and close it in the end."""
        with where, self.log.open("a", encoding="utf-8") as log:
            async with chat_client(self.endpoint) as client:

                async def answered(request: web.Request) -> web.Response:
                    started = time.monotonic()
                    status, reply, line = await self._answer(client, await request.read())
                    line = {"status": status, **line, "seconds": round(time.monotonic() - started, 3)}
                    log.write(json.dumps(line) + "\n")
                    log.flush()
                    return web.json_response(reply, status=status)

                app = web.Application(client_max_size=_MOST_BODY_BYTES)
                app.router.add_post(_PATH, answered)
                runner = web.AppRunner(app, access_log=None)
                try:
                    await runner.setup()
                    await web.SockSite(runner, where).start()
                    yield
                finally:
                    await runner.cleanup()

    async def _answer(self, client: aiohttp.ClientSession, content: bytes) -> tuple[int, Any, dict[str, Any]]:
        """Return status and reply to a request of the harness, and its line of the log."""
        try:
            body = json.loads(content)
            if not isinstance(body, dict) or body.get("stream"):
                raise ValueError("the relay takes JSON objects, without stream")
        except ValueError as error:
            return _failed(400, f"{error}")
        try:
            status, reply = await send_chat(client, self.endpoint, self._completed(body))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _failed(502, f"{type(error).__name__}: {error}")
        if status != 200:
            return status, reply, {"error": _message_of(reply)}
        try:
            return 200, reply, self._made_safe(reply)
        except (LookupError, TypeError, AttributeError) as error:
            return _failed(502, f"the reply of the model's server is not a chat completion: {error!r}")

    def _completed(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request with our model, and with the settings that the harness leaves open or cannot reach."""
        body = {**body, "model": self.endpoint.model, **_given(self.replaced)}
        limits = [name for name in ("max_tokens", "max_completion_tokens") if isinstance(body.get(name), int)]
        for name in limits:
            body[name] = max(body[name], self.max_tokens_floor or 0)
        added = {name: value for name, value in _given(self.settings).items() if not (name == "max_tokens" and limits)}
        return {**added, **body}

    def _made_safe(self, reply: Any) -> dict[str, Any]:
        """Make a reply safe for the harness; return its line of the log."""
        choice, usage = reply["choices"][0], reply["usage"]
        message = choice["message"]
        if self.mends_format and not message.get("tool_calls"):
            calls = enumerate(calls_in_text(message.get("content") or ""))
            mended = [{"id": f"mended-{place}", "type": "function", "function": call} for place, call in calls]
            message["tool_calls"] = mended or None
        renamed = sum(self._renamed(call["function"]) for call in message.get("tool_calls") or ())
        is_empty = not (message.get("content") or "").strip() and not message.get("tool_calls")
        if is_empty and self.empty_as is not None:
            message["content"] = self.empty_as
        return {
            "finish": choice["finish_reason"],
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "is_empty": is_empty,
            "renamed_calls": renamed,
        }

    def _renamed(self, function: dict[str, Any]) -> int:
        """Rename a tool that does not exist, and arguments that are no names; return 1 if a name is new, else 0."""
        if self.tool_names is None:
            return 0
        is_renamed = 0
        if function["name"] not in self.tool_names:
            function["name"], is_renamed = _NO_TOOL, 1
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return is_renamed
        if isinstance(arguments, dict) and not all(name.isidentifier() for name in arguments):
            named = {name if name.isidentifier() else _NO_ARGUMENT: value for name, value in arguments.items()}
            function["arguments"], is_renamed = json.dumps(named, ensure_ascii=False), 1
        return is_renamed


def calls_in_text(text: str) -> list[dict[str, str]]:
    r"""Return the calls whose JSON a text has, bare or in a fence, with the text of their arguments.

    >>> calls_in_text('Sure: ```json\n{"name": "f", "arguments": {"a": 1}}\n``` or {"b": 2}')
    [{'name': 'f', 'arguments': '{"a": 1}'}]
    """
    reader, found, start = json.JSONDecoder(), [], text.find("{")
    while start >= 0:
        value, end = None, start + 1
        with contextlib.suppress(ValueError, RecursionError):
            value, end = reader.raw_decode(text, start)
        match value:
            case {"name": str(name), "arguments": dict(arguments)}:
                found.append({"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)})
        start = text.find("{", end)
    return found


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _failed(status: int, message: str) -> tuple[int, Any, dict[str, Any]]:
    document = {"error": {"message": message, "type": "relay", "param": None, "code": None}}
    return status, document, {"error": message}


def _message_of(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or "no message")
