"""From a validated request to a reply: sources and their byte code by hash, and the verdict on how a call ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

from sandbox.bodies import BodyReader, CallRequest, RawJSON, ReplyBody, call_request, encoded
from sandbox.errors import SandboxError
from sandbox.jail.tool_call import COMPILED
from sandbox.jail.zygote import BY_ITSELF, CANCELLED, CPU_LIMIT, WALL_LIMIT
from sandbox.metrics import Metrics
from sandbox.pool import Pool
from sandbox.protocol import ErrorKind, ExecuteRequest, Limits
from sandbox.worker import Outcome, ServiceFault

MAXIMUM_LIMITS = Limits(
    wall_seconds=60.0, cpu_seconds=60.0, memory_bytes=2 << 30, output_bytes=4 << 20, result_bytes=16 << 20
)
_COMPILED_IN_CALL_BYTES = 16 << 10
"""A source so short is compiled in milliseconds, by its first call's process; a longer one in a jail of its own."""
_MOST_CODE_BYTES = 1 << 20
_MOST_BATCH_BYTES = 64 << 20  # more than the largest single reply has
_COMPILE_LIMITS = Limits(wall_seconds=10.0, cpu_seconds=5.0, memory_bytes=512 << 20)
_MEMORY_SHARE = 0.75  # a crash with this share of the limit in use is blamed on memory
_LOST_EXCEPTION = "SystemError: error return without exception set"  # what CPython says when even MemoryError fails
_NULL, _NO_TEXT = RawJSON(b"null"), RawJSON(b'""')
_OWN_KINDS = frozenset(kind.value for kind in ErrorKind) - {ErrorKind.TIMEOUT, ErrorKind.CRASHED}


class InvalidRequest(SandboxError):
    """The caller's request cannot be served; a 4xx."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.status, self.code = status, code


class UnknownSource(SandboxError):
    """The server does not have (or no longer has) the source of this hash."""


class BoundedStore:
    """Bytes by key, the least recently used dropped beyond `max_bytes`.

    >>> store = BoundedStore(max_bytes=3)
    >>> store.put("a", b"12"); store.put("b", b"34")
    >>> store.get("a") is None, store.get("b")
    (True, b'34')
    """

    def __init__(self, max_bytes: int) -> None:
        self._entries: OrderedDict[str, bytes] = OrderedDict()
        self._max_bytes = max_bytes
        self.size_bytes = 0

    def put(self, key: str, value: bytes) -> None:
        """Keep `value`, forgetting others as needed."""
        self.size_bytes += len(value) - len(self._entries.pop(key, b""))
        self._entries[key] = value
        # The last one stays however large it is: its caller is about to run it.
        while self.size_bytes > self._max_bytes and len(self._entries) > 1:
            self.size_bytes -= len(self._entries.popitem(last=False)[1])

    def get(self, key: str) -> bytes | None:
        """Return the value, now the most recently used; None when there is none, or no longer."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value


class Execution:
    """Executes validated requests in a pool."""

    def __init__(self, pool: Pool, *, maximum: Limits = MAXIMUM_LIMITS, max_body_bytes: int = 16 << 20) -> None:
        self.pool = pool
        self.maximum = maximum
        self.max_body_bytes = max_body_bytes
        self.max_batch, self.max_batch_bytes = 1024, _MOST_BATCH_BYTES
        self.bodies = BodyReader()
        self.is_draining = False
        """Whether calls that have been accepted are finished, and no other is."""
        self.metrics = Metrics()
        self.sources = BoundedStore(256 << 20)
        self._code = BoundedStore(256 << 20)
        self._compiling: dict[tuple[str, str], asyncio.Event] = {}
        """By client and source: set as soon as the call that compiles it for the client's others is done with that."""

    async def execute(self, client: str, request: ExecuteRequest) -> dict[str, Any]:
        """Run one call in the pool and return the reply document.

        Raises:
            InvalidRequest, UnknownSource, QueueFull, ServiceFault: as `execute_call`.
        """
        return json.loads(await self.execute_call(client, call_request(request)))

    async def execute_call(self, client: str, request: CallRequest) -> bytes:
        """Run one call in the pool and return the reply as JSON.

        Raises:
            InvalidRequest: a limit is above the server's maximum.
            UnknownSource: the request names a source by a hash that is not known here.
            QueueFull: too many calls are waiting.
            ServiceFault: the service failed, not the tool.
        """
        self._check_limits(request.limits)
        key, source = self._source(request)
        reply = await self._execute(client, key, source, request)
        self._count(reply)
        return reply.document()

    async def execute_batch(self, client: str, requests: list[CallRequest]) -> bytes:
        """Return replies in the order of the requests, as JSON; a failure of the service fails the batch.

        Raises:
            InvalidRequest, UnknownSource, QueueFull, ServiceFault: as `execute_call`, of any of them.
            InvalidRequest: the replies together are too long.
        """
        if len(requests) > self.max_batch:
            raise InvalidRequest(f"a batch is a list of at most {self.max_batch} requests")
        # A batch that is not valid is refused before any of its calls has run.
        for request in requests:
            self._check_limits(request.limits)
            self._source(request)
        held_bytes = 0

        async def run(request: CallRequest) -> bytes:
            nonlocal held_bytes
            reply = await self.execute_call(client, request)
            held_bytes += len(reply)
            if held_bytes > self.max_batch_bytes:
                message = f"the replies have more than {self.max_batch_bytes} bytes together; send fewer calls at once"
                raise InvalidRequest(message, status=413, code="batch_too_large")
            return reply

        tasks = [asyncio.ensure_future(run(request)) for request in requests]
        try:
            # All calls end before the batch fails: none is left running that nobody waits for.
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return b"[%b]" % b",".join(task.result() for task in tasks)

    async def _execute(self, client: str, key: str, source: bytes, call: CallRequest) -> _Reply:
        limits = call.limits
        # A byte of output takes at most six of JSON; the rest is one error message.
        max_reply_bytes = 6 * limits.output_bytes + limits.result_bytes + (64 << 10)
        code = self._code.get(key)
        if code is None and (client, key) in self._compiling:
            # Calls of one source come together, as those of a group of episodes do: the first compiles it for all. Of
            # one client, whose calls wait in the order they came: nobody waits for another client's.
            await self._compiling[client, key].wait()
            code = self._code.get(key)
        earlier: list[Outcome] = []  # processes that worked for this call before the one that runs it
        if code is None and len(source) <= _COMPILED_IN_CALL_BYTES:
            outcome = await self._compile_and_run(client, key, source, call, max_reply_bytes + _MOST_CODE_BYTES)
            if outcome.code is not None or outcome.why in (WALL_LIMIT, CPU_LIMIT):
                self.metrics.queue.observe(max(0.0, outcome.queue_seconds))
                return await self._reply(outcome, limits)
            # It could not be compiled within the call's own memory, or not at all: the next attempt tells.
            earlier.append(outcome)
        if code is None:
            left = _left(limits, earlier)
            compiled = await self._compile(client, source, left)
            earlier.append(compiled)
            if compiled.body is None:
                total = _total(compiled, earlier[:-1])
                if _is_out_of_time(compiled, left):
                    return await self._reply(total, limits)
                return _error(total, ErrorKind.INVALID_SOURCE, "the source cannot be compiled within the limits")
            if compiled.body[:1] != COMPILED:
                error = json.loads(compiled.body[1:])
                return _error(_total(compiled, earlier[:-1]), ErrorKind(error["kind"]), error["message"])
            code = compiled.body[1:]
            self._code.put(key, code)
        outcome = await self.pool.run(client, _document(call), code, _left(limits, earlier), max_reply_bytes)
        self.metrics.queue.observe(max(0.0, outcome.queue_seconds))
        return await self._reply(_total(outcome, earlier), limits)

    async def _compile_and_run(
        self, client: str, key: str, source: bytes, call: CallRequest, max_reply_bytes: int
    ) -> Outcome:
        """Run a call that compiles its source first; what it compiles is kept as soon as it is known."""
        done = asyncio.Event()
        # Where one could not compile it, those that had waited try all at once, each for itself.
        self._compiling.setdefault((client, key), done)

        def keep(code: bytes) -> None:
            self._code.put(key, code)
            done.set()

        try:
            document = _document(call, "compile_and_run")
            outcome = await self.pool.run(client, document, source, call.limits, max_reply_bytes, keep)
            if outcome.code is not None:
                self._code.put(key, outcome.code)
            return outcome
        finally:
            done.set()
            if self._compiling.get((client, key)) is done:
                del self._compiling[client, key]

    def _count(self, reply: _Reply) -> None:
        self.metrics.calls["ok" if reply.kind is None else reply.kind] += 1
        self.metrics.wall.observe(reply.usage["wall_seconds"])
        self.metrics.cpu.observe(reply.usage["cpu_seconds"])

    async def _reply(self, outcome: Outcome, limits: Limits) -> _Reply:
        """The verdict. The kernel's word about the process outweighs the process's own."""
        if outcome.why == WALL_LIMIT:
            return _error(outcome, ErrorKind.TIMEOUT, f"stopped after {limits.wall_seconds:g} s of wall time")
        if outcome.why == CPU_LIMIT:
            return _error(outcome, ErrorKind.TIMEOUT, f"stopped after {limits.cpu_seconds:g} s of CPU time")
        if outcome.why == CANCELLED:
            raise ServiceFault("the call was cancelled")
        if outcome.too_long:
            return _error(outcome, ErrorKind.OUTPUT_LIMIT, "the tool's process wrote more than a reply may hold")
        if outcome.forged:
            return _error(outcome, ErrorKind.FORBIDDEN, "the tool wrote to the channel of its own reply")
        if outcome.body is None:
            return _crash(outcome, limits)
        # From here on it is the process's own word, which a tool may have written: every part is checked.
        try:
            return _own_word(outcome, await self.bodies.reply(outcome.body), limits.memory_bytes)
        except ValueError as error:
            message = f"the tool's process sent a reply that is not valid: {error}".encode("utf-8", "backslashreplace")
            return _error(outcome, ErrorKind.INVALID_RESULT, message.decode())
        except OSError as error:
            raise ServiceFault(str(error)) from None

    def _check_limits(self, limits: Limits) -> None:
        for name in Limits.model_fields:
            asked, most = getattr(limits, name), getattr(self.maximum, name)
            if asked > most:
                raise InvalidRequest(f"limits.{name} is {asked}, this server's maximum is {most}")

    def _source(self, request: CallRequest) -> tuple[str, bytes]:
        if request.source is not None:
            key = hashlib.sha256(request.source).hexdigest()
            self.sources.put(key, request.source)
            return key, request.source
        known = self.sources.get(request.source_sha256)
        if known is None:
            raise UnknownSource(request.source_sha256)
        return request.source_sha256, known

    async def _compile(self, client: str, source: bytes, left: Limits) -> Outcome:
        """Compile a source in a jail of its own, so that no tool code has run near it, in the time that is left."""
        limits = _COMPILE_LIMITS.model_copy(
            update={
                "wall_seconds": min(left.wall_seconds, _COMPILE_LIMITS.wall_seconds),
                "cpu_seconds": min(left.cpu_seconds, _COMPILE_LIMITS.cpu_seconds),
            }
        )
        return await self.pool.run(client, {"operation": "compile"}, source, limits, 64 << 20)


def _document(call: CallRequest, operation: str = "run") -> dict[str, Any]:
    """The call as the harness reads it, without its source."""
    return {
        "operation": operation,
        "function": call.function,
        "arguments": call.arguments,
        "state": call.state,
        "seed": call.seed,
        "output_bytes": call.limits.output_bytes,
        "result_bytes": call.limits.result_bytes,
    }


def _left(limits: Limits, earlier: list[Outcome]) -> Limits:
    """What a call may still use after others have worked for it; no time left is too little for anything."""
    wall_seconds = limits.wall_seconds - sum(outcome.wall_seconds for outcome in earlier)
    cpu_seconds = limits.cpu_seconds - sum(outcome.cpu_seconds for outcome in earlier)
    return limits.model_copy(update={"wall_seconds": max(wall_seconds, 1e-6), "cpu_seconds": max(cpu_seconds, 1e-6)})


def _is_out_of_time(compiled: Outcome, left: Limits) -> bool:
    """Whether it was the call's own time that ended a compilation, and not what any compilation may take."""
    if compiled.why == WALL_LIMIT:
        return left.wall_seconds <= _COMPILE_LIMITS.wall_seconds
    return compiled.why == CPU_LIMIT and left.cpu_seconds <= _COMPILE_LIMITS.cpu_seconds


def _total(outcome: Outcome, earlier: list[Outcome]) -> Outcome:
    """The outcome with what others used for the same call before."""
    return replace(
        outcome,
        wall_seconds=outcome.wall_seconds + sum(other.wall_seconds for other in earlier),
        cpu_seconds=outcome.cpu_seconds + sum(other.cpu_seconds for other in earlier),
        max_rss_bytes=max(outcome.max_rss_bytes, *(other.max_rss_bytes for other in earlier), 0),
    )


@dataclass(frozen=True)
class _Reply:
    """A verdict with its parts as they travel."""

    kind: ErrorKind | None
    message: str
    usage: dict[str, Any]
    value: RawJSON = _NULL
    state: RawJSON = _NULL
    stdout: RawJSON = _NO_TEXT

    def document(self) -> bytes:
        """The reply as callers get it."""
        if self.kind is not None:
            error = {"kind": self.kind, "message": self.message}
            return encoded({"status": "error", "error": error, "stdout": self.stdout, "usage": self.usage})
        parts = {"value": self.value, "state": self.state, "stdout": self.stdout, "usage": self.usage}
        return encoded({"status": "ok", **parts})


def _error(outcome: Outcome, kind: ErrorKind, message: str, stdout: RawJSON = _NO_TEXT) -> _Reply:
    return _Reply(kind, message, _usage(outcome), stdout=stdout)


def _usage(outcome: Outcome) -> dict[str, Any]:
    return {
        "wall_seconds": round(outcome.wall_seconds, 6),
        "cpu_seconds": round(outcome.cpu_seconds, 6),
        "max_rss_bytes": outcome.max_rss_bytes,
    }


def _crash(outcome: Outcome, limits: Limits) -> _Reply:
    if outcome.why != BY_ITSELF:
        raise ServiceFault(f"a call ended for the unknown reason {outcome.why}")
    code = os.waitstatus_to_exitcode(outcome.wait_status)
    how = f"signal {_signal_name(-code)}" if code < 0 else f"exit status {code}"
    # The kernel does not say that a process died for want of memory; how much it held is the best evidence.
    if code != 0 and outcome.max_rss_bytes >= _MEMORY_SHARE * limits.memory_bytes:
        return _error(outcome, ErrorKind.MEMORY, f"the process ended with {how} close to its memory limit")
    return _error(outcome, ErrorKind.CRASHED, f"the tool's process ended without a reply ({how})")


def _signal_name(number: int) -> str:
    return signal.Signals(number).name if number in set(signal.Signals) else str(number)


def _own_word(outcome: Outcome, body: ReplyBody, memory_bytes: int) -> _Reply:
    """The reply that the child wrote.

    Raises:
        ValueError: a tool cannot say this.
    """
    if body.kind is None:
        return _Reply(None, "", _usage(outcome), body.value, body.state, body.stdout)
    if body.kind not in _OWN_KINDS:
        raise ValueError("a tool cannot say this about itself")
    kind = ErrorKind(body.kind)
    if body.message.startswith(_LOST_EXCEPTION) and outcome.max_rss_bytes >= _MEMORY_SHARE * memory_bytes:
        kind = ErrorKind.MEMORY
    return _error(outcome, kind, body.message, body.stdout)
