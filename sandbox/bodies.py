"""The bodies of requests and replies, read where nobody waits: small ones here, large ones in a process of their own.

Reading JSON holds the interpreter's lock from beginning to end, and a body of 16 MB can take seconds and 400 MB. So
arguments, states and values travel through the service as the bytes that they are (`RawJSON`); that they are what
they must be is found out once, by whoever reads the body, and no object of theirs outlives that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from sandbox import strict_json
from sandbox.protocol import ExecuteRequest, Limits, RunCodeRequest

INLINE_BYTES = 32 << 10  # takes at most some 8 ms
_LARGE_BYTES = 1 << 20  # larger ones wait for each other, and not the middling ones for them
_KEPT_PROCESS_BYTES = 4 << 20  # after a larger one the process is ended, which gives its memory back
_IDLE_SECONDS = 10.0
_NICENESS = 5
_SECTION = struct.Struct("<Q")
_Model = TypeVar("_Model", bound=BaseModel)


class RawJSON(bytes):
    """JSON that has been read and found good; it is passed on as it is."""


def encoded(document: dict[str, Any]) -> bytes:
    """Return a document as JSON, with its raw parts as they are, after the others.

    >>> encoded({"a": RawJSON(b"[2]"), "b": 1})
    b'{"b":1,"a":[2]}'
    """
    raw = {key: value for key, value in document.items() if isinstance(value, RawJSON)}
    others = _dumped({key: value for key, value in document.items() if key not in raw})[1:-1]
    return b"{%b}" % b",".join(
        [*([others] if others else []), *(b"%b:%b" % (_dumped_key(key), value) for key, value in raw.items())]
    )


# Made once: `json.dumps` makes an encoder for every text.
_IN_ASCII = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
_IN_UTF_8 = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _dumped(value: object) -> bytes:
    return _IN_ASCII.encode(value).encode()


@functools.lru_cache(maxsize=64)
def _dumped_key(key: str) -> bytes:
    return _dumped(key)


@dataclass(frozen=True)
class CallRequest:
    """An `ExecuteRequest` whose arguments and state are bytes."""

    source: bytes | None
    source_sha256: str
    function: str
    arguments: RawJSON
    state: RawJSON
    seed: int
    limits: Limits


@dataclass(frozen=True)
class ProgramRequest:
    """A `RunCodeRequest` whose texts are bytes."""

    code: bytes
    stdin: RawJSON
    run_timeout: float
    memory_limit_MB: int  # the other service's name


@dataclass(frozen=True)
class ReplyBody:
    """What a call's process wrote as its reply; `stdout` and `stderr` are JSON strings."""

    kind: str | None  # None where it came to a value
    message: str
    value: RawJSON
    state: RawJSON
    stdout: RawJSON
    stderr: RawJSON


def call_request(request: ExecuteRequest) -> CallRequest:
    """Return the same call with arguments and state as bytes."""
    return CallRequest(
        source=None if request.source is None else _source(request.source),
        source_sha256=request.source_sha256 or "",
        function=request.function,
        arguments=RawJSON(_dumped(request.arguments)),
        state=RawJSON(_dumped(request.state)),
        seed=request.seed,
        limits=request.limits,
    )


def _source(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


# What the reading process does: bytes to sections.


def _sections_of_call(request: ExecuteRequest) -> list[bytes]:
    head = {
        "function": request.function,
        "seed": request.seed,
        "limits": request.limits.model_dump(),
        "source_sha256": request.source_sha256,
    }
    return [_dumped(head), _source(request.source or ""), _dumped(request.arguments), _dumped(request.state)]


def _read_call(body: bytes) -> list[bytes]:
    return _sections_of_call(_call(body))


def _call(body: bytes) -> ExecuteRequest:
    return _validated(ExecuteRequest, _parsed(body, levels_around=1))


def _read_batch(body: bytes) -> list[bytes]:
    documents = _parsed(body, levels_around=2)
    if not isinstance(documents, list):
        raise ValueError("a batch is a list of requests")
    sections = []
    for position, document in enumerate(documents):
        try:
            sections += _sections_of_call(_validated(ExecuteRequest, document))
        except ValueError as error:
            raise ValueError(f"request {position}: {error}") from None
    return sections


def _read_program(body: bytes) -> list[bytes]:
    request = _validated(RunCodeRequest, _parsed(body, levels_around=1))
    head = {"run_timeout": request.run_timeout, "memory_limit_MB": request.memory_limit_MB}
    return [_dumped(head), request.code.encode("utf-8", "surrogatepass"), _dumped(request.stdin or "")]


_OK_PARTS = {"status", "value", "state", "stdout", "stderr"}
_ERROR_PARTS = {"status", "error", "stdout", "stderr"}


def _read_reply(body: bytes) -> list[bytes]:
    written = lambda value: _IN_UTF_8.encode(value).encode()  # noqa: E731
    match strict_json.parse_reply(body, strict_json.MAX_NESTING + 1):
        case {"status": "error", "error": {"kind": str(kind), "message": str(message)}, **rest} as document if (
            document.keys() == _ERROR_PARTS and isinstance(rest["stdout"], str) and isinstance(rest["stderr"], str)
        ):
            head = {"kind": kind, "message": message[:4000]}
            return [_dumped(head), b"null", b"null", written(rest["stdout"]), written(rest["stderr"])]
        case {
            "status": "ok",
            "value": value,
            "state": dict() | None as state,
            "stdout": str(),
            "stderr": str(),
        } as ok if ok.keys() == _OK_PARTS:
            return [
                _dumped({"kind": None, "message": ""}),
                written(value),
                written(state),
                written(ok["stdout"]),
                written(ok["stderr"]),
            ]
    raise ValueError("it is neither a value nor an error")


_READ: dict[str, Callable[[bytes], list[bytes]]] = {
    "call": _read_call, "batch": _read_batch, "program": _read_program, "reply": _read_reply,
}  # fmt: skip


def _parsed(body: bytes, levels_around: int) -> Any:
    """The JSON of a request; `levels_around` stand around arguments and state."""
    try:
        return strict_json.parse(body, strict_json.MAX_NESTING + levels_around)
    except ValueError as error:
        raise ValueError(f"the body is not JSON that is taken here: {error}") from None


def _validated(model: type[_Model], document: Any) -> _Model:
    try:
        return model.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{where + ': ' if where else ''}{first['msg']}") from None


# What the service makes of the sections.


def _calls_of(sections: list[bytes]) -> list[CallRequest]:
    calls = []
    for start in range(0, len(sections), 4):
        head, source, arguments, state = sections[start : start + 4]
        about = json.loads(head)
        sha256 = about["source_sha256"]
        calls.append(
            CallRequest(
                source=source if sha256 is None else None,
                source_sha256=sha256 or "",
                function=about["function"],
                arguments=RawJSON(arguments),
                state=RawJSON(state),
                seed=about["seed"],
                limits=Limits(**about["limits"]),
            )
        )
    return calls


class BodyReader:
    """Reads bodies: small ones at once, others in a process that is started for them and ended when it is idle.

    Each method raises ValueError where the body is not what it must be, in one line, and OSError where the reading
    process ended.
    """

    def __init__(self) -> None:
        self._middling, self._large = _ReadingProcess(), _ReadingProcess()

    async def call(self, body: bytes) -> CallRequest:
        """Read the body of `POST /v1/execute`."""
        if len(body) <= INLINE_BYTES:
            return call_request(_call(body))
        return _calls_of(await self._read("call", body))[0]

    async def batch(self, body: bytes) -> list[CallRequest]:
        """Read the body of `POST /v1/execute_batch`."""
        return _calls_of(await self._read("batch", body))

    async def program(self, body: bytes) -> ProgramRequest:
        """Read the body of `POST /run_code`."""
        head, code, stdin = await self._read("program", body)
        return ProgramRequest(code=code, stdin=RawJSON(stdin), **json.loads(head))

    async def reply(self, body: bytes) -> ReplyBody:
        """Read what a call's process wrote."""
        head, value, state, stdout, stderr = await self._read("reply", body)
        return ReplyBody(
            value=RawJSON(value),
            state=RawJSON(state),
            stdout=RawJSON(stdout),
            stderr=RawJSON(stderr),
            **json.loads(head),
        )

    async def close(self) -> None:
        """End the processes."""
        for process in (self._middling, self._large):
            process.close()

    async def _read(self, what: str, body: bytes) -> list[bytes]:
        if len(body) <= INLINE_BYTES:
            return _READ[what](body)
        process = self._large if len(body) > _LARGE_BYTES else self._middling
        return await process.read(what, body)


class _ReadingProcess:
    """One process, and the thread that talks to it, one body at a time."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bodies")
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = 0
        self._idle: asyncio.TimerHandle | None = None

    async def read(self, what: str, body: bytes) -> list[bytes]:
        loop = asyncio.get_running_loop()
        if self._idle is not None:
            self._idle.cancel()
        self._waiting += 1
        try:
            status, *sections = await loop.run_in_executor(self._thread, self._ask, what, body)
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._idle = loop.call_later(_IDLE_SECONDS, self._thread.submit, self._end)
        if status != b"read":
            raise ValueError(sections[0].decode("utf-8", "surrogatepass"))
        return sections

    def close(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
        process = self._process
        if process is not None:
            process.kill()  # also under a body: nobody waits for it any more
        self._thread.submit(self._end)
        self._thread.shutdown(wait=True)

    # In the thread.

    def _ask(self, what: str, body: bytes) -> list[bytes]:
        if self._process is None:
            self._process = _start()
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise OSError("the reading process has no pipes")
        try:
            _write_sections(process.stdin, [what.encode(), body])
            return _read_sections(process.stdout)
        except (OSError, EOFError) as error:
            self._end()
            raise OSError(f"the process that reads large bodies ended: {error}") from None
        finally:
            if len(body) > _KEPT_PROCESS_BYTES:
                self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):  # what was not written yet
                    pipe.close()


def _start() -> subprocess.Popen[bytes]:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-c", "from sandbox.bodies import main; main()"]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}, process_group=0
    )


def main() -> None:
    """Read bodies from standard input until it ends."""
    os.nice(_NICENESS)
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            what, body = _read_sections(source)
        except EOFError:
            return
        try:
            sections = [b"read", *_READ[what.decode()](body)]
        except ValueError as error:
            sections = [b"refused", str(error).encode("utf-8", "surrogatepass")]
        _write_sections(target, sections)
        del what, body, sections


def _write_sections(stream: IO[bytes], sections: list[bytes]) -> None:
    stream.write(_SECTION.pack(len(sections)))
    for section in sections:
        stream.write(_SECTION.pack(len(section)))
        stream.write(section)
    stream.flush()


def _read_sections(stream: IO[bytes]) -> list[bytes]:
    """Read what `_write_sections` wrote.

    Raises:
        EOFError: the stream has ended.
    """

    def read(count: int) -> bytes:
        data = stream.read(count)
        if len(data) < count:
            raise EOFError("its stream has ended")
        return data

    return [read(_SECTION.unpack(read(_SECTION.size))[0]) for _ in range(_SECTION.unpack(read(_SECTION.size))[0])]
