"""From a validated request to a reply: sources and their byte code by hash, and the verdict on a call that ended."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
from collections import OrderedDict

from sandbox import strict_json
from sandbox.errors import Refused, ServiceFault
from sandbox.jail.harness import COMPILED
from sandbox.jail.zygote import CANCELLED, CPU_LIMIT, WALL_LIMIT
from sandbox.metrics import Metrics
from sandbox.pool import Pool
from sandbox.protocol import ErrorKind, ExecuteRequest, Limits
from sandbox.worker import Outcome

MAXIMUM_LIMITS = Limits(
    wall_seconds=60.0, cpu_seconds=60.0, memory_bytes=2 << 30, output_bytes=1 << 20, result_bytes=4 << 20
)
MOST_BODY_BYTES = 8 << 20
"""Maximum number of bytes in a request's body. The event loop parses it, and other callers wait meanwhile."""
_MOST_CALLS_OF_A_BATCH = 1024
MOST_BATCH_BYTES = 64 << 20
_MOST_CODE_BYTES = 64 << 20
_MOST_MESSAGE_CHARACTERS = 4000
_MEMORY_SHARE = 0.75  # a crash with this share of the limit in use is blamed on memory
_LOST_EXCEPTION = "SystemError: error return without exception set"  # CPython's words when even MemoryError fails
_OWN_KINDS = frozenset(kind.value for kind in ErrorKind) - {ErrorKind.TIMEOUT, ErrorKind.CRASHED}
_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # made once: `json.dumps` makes one for every text


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

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.metrics = Metrics()
        self.sources = BoundedStore(256 << 20)
        self._code = BoundedStore(256 << 20)
        self._compiling: dict[tuple[str, str], asyncio.Event] = {}
        """Event of each client and source; it is set when the source is compiled, or cannot be."""

    async def execute_call(self, client: str, request: ExecuteRequest) -> bytes:
        """Run one call in the pool and return the reply as JSON.

        Raises:
            Refused: a limit is above the server's maximum, the source of a hash is not known here, too many calls are
                waiting, or the service failed.
        """
        _check_limits(request.limits)
        key, source = self._source(request)
        code, limits = self._code.get(key), request.limits
        if code is None and (client, key) in self._compiling:
            # Calls of one source come together, as those of a group of episodes do: the first compiles it for the
            # others. They wait for their own client's call only, which came before them in its line.
            await self._compiling[client, key].wait()
            code = self._code.get(key)
        # A byte of output takes at most six bytes of JSON; the rest is for one error message.
        most_bytes = 6 * limits.output_bytes + limits.result_bytes + (64 << 10)
        if code is None:
            outcome = await self._compile_and_run(client, key, source, request, most_bytes + _MOST_CODE_BYTES)
        else:
            outcome = await self.pool.run(client, _document(request), code, limits, most_bytes)
        kind, reply = _verdict(outcome, limits)
        self.metrics.count(kind, outcome.wall_seconds, outcome.cpu_seconds, max(0.0, outcome.queue_seconds))
        return reply

    async def execute_batch(self, client: str, requests: list[ExecuteRequest]) -> bytes:
        """Return replies in the order of the requests, as JSON; a failure of the service fails the batch.

        Raises:
            Refused: as `execute_call`, for any of the calls; or the replies together are too long.
        """
        if len(requests) > _MOST_CALLS_OF_A_BATCH:
            raise Refused(f"a batch is a list of at most {_MOST_CALLS_OF_A_BATCH} requests")
        # A batch that is not valid is refused before any of its calls has run.
        for request in requests:
            _check_limits(request.limits)
            self._source(request)
        held_bytes = 0

        async def run(request: ExecuteRequest) -> bytes:
            nonlocal held_bytes
            reply = await self.execute_call(client, request)
            held_bytes += len(reply)
            if held_bytes > MOST_BATCH_BYTES:
                message = f"the replies have more than {MOST_BATCH_BYTES} bytes together; send fewer calls at once"
                raise Refused(message, status=413, code="batch_too_large")
            return reply

        tasks = [asyncio.ensure_future(run(request)) for request in requests]
        try:
            await asyncio.gather(*tasks)
        finally:
            # All calls end before the batch fails: no call runs on without a caller.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return b"[%b]" % b",".join(task.result() for task in tasks)

    async def _compile_and_run(
        self, client: str, key: str, source: bytes, request: ExecuteRequest, most_bytes: int
    ) -> Outcome:
        """Run a call whose process compiles its source first; keep the byte code as soon as it is known."""
        done = asyncio.Event()
        # If the source is not compiled, all calls that wait for it go on at once, each for itself.
        self._compiling.setdefault((client, key), done)

        def keep(compiled: bytes) -> None:
            if compiled[:1] == COMPILED:
                self._code.put(key, compiled[1:])
            done.set()

        try:
            document = _document(request, compiles=True)
            return await self.pool.run(client, document, source, request.limits, most_bytes, keep)
        finally:
            done.set()
            if self._compiling.get((client, key)) is done:
                del self._compiling[client, key]

    def _source(self, request: ExecuteRequest) -> tuple[str, bytes]:
        if request.source is not None:
            source = request.source.encode("utf-8", "surrogatepass")
            key = hashlib.sha256(source).hexdigest()
            self.sources.put(key, source)
            return key, source
        key = request.source_sha256 or ""
        known = self.sources.get(key)
        if known is None:
            raise Refused(f"no source with SHA-256 {key}; send its text", status=404, code="unknown_source")
        return key, known


def _check_limits(limits: Limits) -> None:
    for name in Limits.model_fields:
        asked, most = getattr(limits, name), getattr(MAXIMUM_LIMITS, name)
        if asked > most:
            raise Refused(f"limits.{name} is {asked}, this server's maximum is {most}")


def _document(request: ExecuteRequest, *, compiles: bool = False) -> bytes:
    """Return the call as the harness reads it, without its source."""
    return _JSON.encode(
        {
            "compiles": compiles,
            "function": request.function,
            "arguments": request.arguments,
            "state": request.state,
            "seed": request.seed,
            "output_bytes": request.limits.output_bytes,
            "result_bytes": request.limits.result_bytes,
        }
    ).encode()


def _verdict(outcome: Outcome, limits: Limits) -> tuple[str, bytes]:
    """Return "ok" or the kind of error, and the reply. The kernel's report outweighs the process's own words."""
    if outcome.why == WALL_LIMIT:
        return _error(outcome, ErrorKind.TIMEOUT, f"stopped after {limits.wall_seconds:g} s of wall time")
    if outcome.why == CPU_LIMIT:
        return _error(outcome, ErrorKind.TIMEOUT, f"stopped after {limits.cpu_seconds:g} s of CPU time")
    if outcome.why == CANCELLED:
        raise ServiceFault("the call was cancelled")
    if outcome.too_long:
        return _error(outcome, ErrorKind.OUTPUT_LIMIT, "the tool's process wrote more than a reply may hold")
    if outcome.compiled is not None and outcome.compiled[:1] != COMPILED:
        error = json.loads(outcome.compiled[1:])  # written before anything of the tool ran
        return _error(outcome, ErrorKind(error["kind"]), error["message"])
    if outcome.forged:
        return _error(outcome, ErrorKind.FORBIDDEN, "the tool wrote to the channel of its own reply")
    if outcome.body is None:
        return _crash(outcome, limits)
    try:
        return _own_word(outcome, outcome.body, limits.memory_bytes)
    except ValueError as error:
        message = f"the tool's process sent a reply that is not valid: {error}".encode("utf-8", "backslashreplace")
        return _error(outcome, ErrorKind.INVALID_RESULT, message.decode())


def _own_word(outcome: Outcome, body: bytes, memory_bytes: int) -> tuple[str, bytes]:
    """Return the verdict that the process itself wrote. A tool may have written it, so every part is checked."""
    document = strict_json.parse_reply(body, strict_json.MAX_NESTING + 1)
    match document:
        case {"status": "ok", "value": _, "state": dict() | None, "stdout": str()} if len(document) == 4:
            # It is spelled as the harness spells JSON, so it can travel as it is.
            return "ok", b'%b,"usage":%b}' % (body[:-1], _usage(outcome))
        case {"status": "error", "error": {"kind": str(kind), "message": str(message)}, "stdout": str(stdout)} if (
            len(document) == 3
        ):
            if kind not in _OWN_KINDS:
                raise ValueError("a tool cannot say this about itself")
            if message.startswith(_LOST_EXCEPTION) and outcome.max_rss_bytes >= _MEMORY_SHARE * memory_bytes:
                kind = ErrorKind.MEMORY
            return _error(outcome, ErrorKind(kind), message[:_MOST_MESSAGE_CHARACTERS], stdout)
    raise ValueError("it is neither a value nor an error")


def _error(outcome: Outcome, kind: ErrorKind, message: str, stdout: str = "") -> tuple[str, bytes]:
    document = {"status": "error", "error": {"kind": kind, "message": message}, "stdout": stdout}
    return kind, b'%b,"usage":%b}' % (_JSON.encode(document).encode()[:-1], _usage(outcome))


def _usage(outcome: Outcome) -> bytes:
    usage = {
        "wall_seconds": round(outcome.wall_seconds, 6),
        "cpu_seconds": round(outcome.cpu_seconds, 6),
        "max_rss_bytes": outcome.max_rss_bytes,
    }
    return _JSON.encode(usage).encode()


def _crash(outcome: Outcome, limits: Limits) -> tuple[str, bytes]:
    code = os.waitstatus_to_exitcode(outcome.wait_status)
    names = {number.value: number.name for number in signal.Signals}
    how = f"signal {names.get(-code, -code)}" if code < 0 else f"exit status {code}"
    # The kernel does not say that a process died for want of memory; the amount that it held is the best evidence.
    if code != 0 and outcome.max_rss_bytes >= _MEMORY_SHARE * limits.memory_bytes:
        return _error(outcome, ErrorKind.MEMORY, f"the process ended with {how} close to its memory limit")
    return _error(outcome, ErrorKind.CRASHED, f"the tool's process ended without a reply ({how})")
