"""The endpoints of a batch API, over HTTP: files, batches, contents of files; slow or faulty if it is told so."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


def completion_of(body: dict, said: str | dict) -> dict:
    """Return the completion of a call."""
    message = {"role": "assistant", **(said if isinstance(said, dict) else {"content": said})}
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    return {"model": body["model"], "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage}


class MockBatches:
    """Answers the lines of every batch by `answer`, and counts how often each was paid for."""

    def __init__(self, answer: Callable[[dict], str | dict], *, polls: int = 1):
        self.answer, self.polls = answer, polls
        self.line: Callable[[dict], tuple[int, object] | None] = lambda _: None
        """Gives the status and body of a line that has another answer; None where it has the usual one."""
        self.ends: list[str] = []
        """How the next batches end, `completed` when there is no more; `expired` answers the first half."""
        self.faults: list[tuple[str, object]] = []
        """For the next requests of a kind (`GET batch`, `POST batch`, …): a status, another reply, or what is done
        with the reply."""
        self.codes: list[str] = ["invalid"]
        self.loses_output = False
        self.files: dict[str, bytes] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.paid: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self.keys: set[str] = set()
        self.calls: list[dict] = []
        self.url = ""
        self._ids = itertools.count(1)

    @asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[MockBatches]:
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/files", self._told("POST file", "_upload"))
        app.router.add_get("/v1/files/{id}/content", self._told("GET content", "_content"))
        app.router.add_post("/v1/batches", self._told("POST batch", "_create"))
        app.router.add_get("/v1/batches", self._told("GET batches", "_listed"))
        app.router.add_get("/v1/batches/{id}", self._told("GET batch", "_retrieve"))
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()

    @property
    def sizes(self) -> list[int]:
        """How many lines each batch had."""
        return [len(self.files[batch["input_file_id"]].splitlines()) for batch in self.batches.values()]

    def _told(self, kind: str, method: str) -> Callable:
        async def told(request: web.Request) -> web.StreamResponse:
            self.requests[kind] += 1
            self.keys.add(request.headers.get("Authorization", ""))
            fault = self.faults.pop(0)[1] if self.faults and self.faults[0][0] == kind else None
            if isinstance(fault, int):
                return web.json_response({"error": {"message": "no"}}, status=fault)
            if isinstance(fault, dict | list):
                return web.json_response(fault)
            if fault == "<html>":
                return web.Response(text=fault, content_type="text/html")
            response = await getattr(self, method)(request)
            if fault == "lost":  # done, and nobody hears of it
                assert request.transport is not None
                request.transport.abort()
            return response

        return told

    async def _upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        assert form["purpose"] == "batch"
        name = f"file-{next(self._ids)}"
        self.files[name] = form["file"].file.read()  # type: ignore[union-attr]
        return web.json_response({"id": name, "object": "file", "bytes": 1, "created_at": 1, "filename": "x"})

    async def _content(self, request: web.Request) -> web.Response:
        content = self.files.get(request.match_info["id"])
        if content is None:
            return web.json_response({"error": {"message": "no such file"}}, status=404)
        return web.Response(body=content)

    async def _create(self, request: web.Request) -> web.Response:
        asked = await request.json()
        assert (asked["endpoint"], asked["completion_window"]) == ("/v1/chat/completions", "24h")
        lines = [json.loads(line) for line in self.files[asked["input_file_id"]].splitlines()]
        assert len({line["body"]["model"] for line in lines}) == 1
        name = f"batch-{next(self._ids)}"
        self.batches[name] = {
            "id": name, "object": "batch", "status": "in_progress", "created_at": 2_000_000_000, **asked,
            "output_file_id": None, "error_file_id": None, "polls": 0, "end": self.ends.pop(0) if self.ends else "",
        }  # fmt: skip
        return web.json_response(self.batches[name])

    async def _listed(self, request: web.Request) -> web.Response:
        newest = list(self.batches.values())[::-1]
        return web.json_response({"object": "list", "data": newest, "has_more": False})

    async def _retrieve(self, request: web.Request) -> web.Response:
        batch = self.batches.get(request.match_info["id"])
        if batch is None:
            return web.json_response({"error": {"message": "no such batch"}}, status=404)
        batch["polls"] += 1
        if batch["polls"] > self.polls and batch["status"] == "in_progress":
            self._end(batch)
        return web.json_response(batch)

    def _end(self, batch: dict) -> None:
        lines = [json.loads(line) for line in self.files[batch["input_file_id"]].splitlines()]
        batch["status"] = end = batch["end"] or "completed"
        if end == "failed":
            batch["errors"] = {"object": "list", "data": [{"code": code, "message": "no"} for code in self.codes]}
            return
        answered = lines if end == "completed" else lines[: len(lines) // 2]
        output, errors = [], []
        for line in answered:
            self.calls.append(line["body"])
            other = self.line(line["body"])
            status, body = other or (200, completion_of(line["body"], self.answer(line["body"])))
            self.paid[line["custom_id"]] += status == 200
            response = {"status_code": status, "request_id": "r", "body": body}
            (output if status == 200 else errors).append(
                {"id": "l", "custom_id": line["custom_id"], "response": response, "error": None}
            )
        for line in lines[len(answered) :]:
            expired = {"code": f"batch_{end}", "message": "This request could not be executed in time."}
            errors.append({"id": "l", "custom_id": line["custom_id"], "response": None, "error": expired})
        for kind, found in (("output_file_id", output), ("error_file_id", errors)):
            if found:
                batch[kind] = f"file-{next(self._ids)}"
                self.files[batch[kind]] = b"".join(json.dumps(line).encode() + b"\n" for line in found[::-1])
        if self.loses_output and output:
            self.loses_output = False
            del self.files[batch["output_file_id"]]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something is so, at most two minutes."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)
