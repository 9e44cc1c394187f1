"""The server between a harness and an endpoint: it passes chats on, and writes a line for each.

A harness knows the models of its own table, has no key of ours, and has no option for some settings. An answer that it
scores as 0 may have been lost on the way, or cut off. So it talks to the relay, which

    asks for the endpoint's model, with the endpoint's key, which the harness never sees
    adds the settings that the harness leaves open, replaces those for which it has no option, raises its limit of an
    answer to a floor, and changes nothing else in its request
    waits if the endpoint says 429
    renames calls of tools that do not exist, if the harness would run text of the model as Python

Decided: docs/decisions/benchmarks.md, “A harness talks to a relay”.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

import aiohttp
from aiohttp import web

from astra_jax.evaluate.endpoint import Endpoint, key_or_none

_PATH: Final = "/v1/chat/completions"
_MOST_BODY_BYTES: Final = 64 * 2**20
_MOST_WAIT_SECONDS: Final = 600.0
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


class Relay:
    """The server that one harness asks.

    Args:
      log: the file to which a line is added for each request.
      settings: fields that are added to a request that lacks them; a field that is None is left out.
      tool_names: the only names that a call may have; None if the harness looks names up and runs no text.
      replaced: values of fields that a harness writes into every request; a field that is None stays as it is.
      max_tokens_floor: the least limit of an answer, to which a lower one is raised.
      empty_as: the text in place of an answer without a word and without a call, at which a harness would end its run.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        log: Path,
        settings: Mapping[str, Any] | None = None,
        tool_names: Collection[str] | None = None,
        replaced: Mapping[str, Any] | None = None,
        max_tokens_floor: int | None = None,
        empty_as: str | None = None,
    ):
        self._endpoint = endpoint
        self._settings = {name: value for name, value in (settings or {}).items() if value is not None}
        self._replaced = {name: value for name, value in (replaced or {}).items() if value is not None}
        self._max_tokens_floor = max_tokens_floor
        self._tool_names = tool_names
        self._log_path, self._empty_as = log, empty_as
        self.num_failed = self.num_renamed = 0

    async def __aenter__(self) -> Relay:
        app = web.Application(client_max_size=_MOST_BODY_BYTES)
        app.router.add_post(_PATH, self._chat)
        self._runner = web.AppRunner(app, access_log=None)
        # A stack closes all of it, also where it is cancelled while it waits for one.
        async with contextlib.AsyncExitStack() as opened:
            self._log: TextIO = opened.enter_context(self._log_path.open("a", encoding="utf-8"))
            self._client = await opened.enter_async_context(chat_client(self._endpoint))
            opened.push_async_callback(self._runner.cleanup)
            await self._runner.setup()
            self._opened = opened.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    @contextlib.asynccontextmanager
    async def listening(self, where: socket.socket) -> AsyncIterator[None]:
        """Answer at a listening socket, also at one of another network namespace, and close it in the end."""
        site = web.SockSite(self._runner, where)
        await site.start()
        try:
            yield
        finally:
            await site.stop()
            where.close()

    async def _chat(self, request: web.Request) -> web.Response:
        started = time.monotonic()
        try:
            body = json.loads(await request.read())
            if not isinstance(body, dict) or body.get("stream"):
                raise ValueError("the relay takes JSON objects, without stream")
        except ValueError as error:
            return self._failed(400, f"{error}", started)
        body |= {"model": self._endpoint.model, **self._replaced}
        limits = [name for name in ("max_tokens", "max_completion_tokens") if isinstance(body.get(name), int)]
        for name in limits:
            body[name] = max(body[name], self._max_tokens_floor or 0)
        for name, value in self._settings.items():
            if not (name == "max_tokens" and limits):
                body.setdefault(name, value)
        try:
            status, content = await self._ask(body)
            reply = json.loads(content)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            return self._failed(502, f"{type(error).__name__}: {error}", started)
        if status != 200:
            return self._failed(status, _message_of(reply), started, reply)
        try:
            line = self._passed_on(reply)
        except (LookupError, TypeError, AttributeError) as error:
            return self._failed(502, f"the endpoint's reply is no chat completion: {error!r}", started)
        self._write({"status": 200, **line}, started)
        return web.json_response(reply)

    async def _ask(self, body: Mapping[str, Any]) -> tuple[int, bytes]:
        deadline = time.monotonic() + _MOST_WAIT_SECONDS
        while True:
            async with self._client.post(f"{self._endpoint.url}{_PATH}", json=body) as response:
                content = await response.read()
                if response.status != 429 or time.monotonic() > deadline:
                    return response.status, content
                retry_after = response.headers.get("Retry-After", "")
            await asyncio.sleep(float(retry_after) if retry_after.isdigit() else 1.0)

    def _passed_on(self, reply: Any) -> dict[str, Any]:
        """Make a reply safe for the harness; return its line of the log."""
        choice, usage = reply["choices"][0], reply["usage"]
        message = choice["message"]
        renamed = 0
        for call in message.get("tool_calls") or ():
            renamed += self._made_safe(call["function"])
        self.num_renamed += renamed
        is_empty = not (message.get("content") or "").strip() and not message.get("tool_calls")
        if is_empty and self._empty_as is not None:
            message["content"] = self._empty_as
        return {
            "finish": choice["finish_reason"],
            "prompt_tokens": usage["prompt_tokens"],
            "completion_tokens": usage["completion_tokens"],
            "is_empty": is_empty,
            "renamed_calls": renamed,
        }

    def _made_safe(self, function: dict[str, Any]) -> int:
        """Rename a tool that does not exist, and arguments that are no names; return 1 if a name is new, else 0."""
        if self._tool_names is None:
            return 0
        is_renamed = 0
        if function["name"] not in self._tool_names:
            function["name"], is_renamed = _NO_TOOL, 1
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            return is_renamed
        if isinstance(arguments, dict) and not all(name.isidentifier() for name in arguments):
            named = {name if name.isidentifier() else _NO_ARGUMENT: value for name, value in arguments.items()}
            function["arguments"], is_renamed = json.dumps(named, ensure_ascii=False), 1
        return is_renamed

    def _failed(self, status: int, message: str, started: float, reply: Any = None) -> web.Response:
        self.num_failed += 1
        self._write({"status": status, "error": message}, started)
        document = reply or {"error": {"message": message, "type": "relay", "param": None, "code": None}}
        return web.json_response(document, status=status)

    def _write(self, line: Mapping[str, Any], started: float) -> None:
        self._log.write(json.dumps({**line, "seconds": round(time.monotonic() - started, 3)}) + "\n")
        self._log.flush()


def _message_of(reply: Any) -> str:
    error = reply.get("error") if isinstance(reply, dict) else None
    return str(error.get("message", error)) if isinstance(error, dict) else str(error or "no message")
