"""Runs one call in its own child process: the last restrictions, the tool, one framed reply, the end.

The process reads nothing that a tool controls before every restriction holds. Then it tells the zygote on a pipe (the
witness) that they hold, or why they do not, and closes the pipe. So no words of a tool are taken for the service's.

All that the harness needs afterwards is bound before the tool runs, and its builtins are a private copy. A nonce marks
the genuine reply; no name that a tool can use leads to it. A tool that finds it in memory gains nothing: it can only
answer its own call, which it may do anyway.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import marshal
import os
import re
import resource
import socket
import struct
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, cast

from sandbox.jail import landlock, linux
from sandbox.jail.launcher import CHANNEL
from sandbox.jail.limits import TABLE, THREADS_OF_A_CALL

# Every function defined below takes its builtins from this copy, so a tool's changes to `builtins` do not reach us.
vars(sys.modules[__name__]).update(__builtins__=dict(vars(builtins)))

REQUEST_HEADER = struct.Struct("<16sII")  # nonce, bytes of JSON, bytes of compiled code or source
REPLY_HEADER = struct.Struct("<16sI")  # nonce, bytes of the body
RESTRICTED = b"restricted"  # a call's process writes this to its witness before it reads its request
_GIVEN_UP = 122  # exit status of a process whose server has hung up
_READ_BYTES = 64 << 10  # most requests are shorter, and malloc would map and unmap a larger buffer
_ALL_DESCRIPTORS = 1 << 20  # more than a process can have
_HEADROOM_BYTES = 8 << 20  # lets the harness report "out of memory" for a tool that has no memory left
# Stacks count towards the memory limit in full: those of the 64 threads that a call may have take half of it.
_STACK_SHARE = 2 * THREADS_OF_A_CALL
_LEAST_STACK_BYTES, _MOST_STACK_BYTES = 128 << 10, 8 << 20
TOOL_FILE = "<tool>"
MODULE_NAME = "tool"
_MESSAGE_CHARACTERS = 2000
_FORBIDDEN_ERRNOS = frozenset({errno.EPERM, errno.EACCES, errno.EROFS})
COMPILED = b"\x01"
_OUT_OF_MEMORY = {"status": "error", "error": {"kind": "memory", "message": "out of memory"}}
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")

_REHEARSAL = b"""
import collections, dataclasses, datetime, json, math, random, re, typing
from typing import Any, Dict, List, Optional, Tuple, Union
ROWS: List[Dict[str, Any]] = [{"name": "a", "size": 1, "tags": ["x"]}, {"name": "b", "size": 2.5, "tags": []}]
class ToolError(ValueError):
    "An error of a tool."
@dataclasses.dataclass
class Row:
    name: str
    size: int = 0
def look(name: str, least: Optional[float] = None) -> Union[None, Tuple[str, Dict[str, Any]]]:
    found = collections.defaultdict(list)
    for row in sorted((row for row in ROWS if least is None or row["size"] >= least), key=lambda row: row["name"]):
        found[row["name"].casefold().strip()].append(row.get("size", 0))
    if not re.fullmatch(r"[a-z]+", name) or re.search(r"(\\d+)", name):
        raise ToolError(f"unknown name {name!r}")
    return name, {key: round(sum(sizes) / len(sizes), 2) for key, sizes in found.items()}
def tool(name, state=None):
    print(name, re.sub("a+", "b", name), "%.1f" % math.sqrt(2), "{:>5}".format(1))
    try:
        look("42")
    except ToolError as error:
        str(error)
    day = datetime.datetime.strptime("2025-01-31", "%Y-%m-%d") + datetime.timedelta(days=1)
    datetime.datetime.strptime("2025-01-31 10:00", "%Y-%m-%d %H:%M").strftime("%d %B %Y")
    return json.loads(json.dumps({"day": day.isoformat(), "rows": dataclasses.asdict(Row(name)), "look": look(name)}))
"""


class OutputLimit(BaseException):
    """The tool printed more than `output_bytes`."""


class Streams:
    """The standard streams of a tool, in memory: no pipe can fill, and nothing reaches the server's streams.

    Both outputs share one budget of bytes; a write beyond it raises `OutputLimit`.
    """

    def __init__(self) -> None:
        self.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        self.budget = [0]
        """Number of bytes that may still be printed, below 0 after too much; in a list that both outputs share."""
        self.out = _Capture(self.budget)
        options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "write_through": True}
        self._text_out = io.TextIOWrapper(cast(Any, self.out), **options)
        self._text_err = io.TextIOWrapper(cast(Any, _Capture(self.budget)), **options)

    def install(self) -> None:
        """Make these the standard streams of the process."""
        sys.stdin, sys.stdout, sys.stderr = self.stdin, self._text_out, self._text_err


class _Capture(io.RawIOBase):
    def __init__(self, budget: list[int]) -> None:
        self.chunks: list[bytes] = []
        self._budget = budget

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        left = self._budget[0]
        self._budget[0] = left - len(chunk)
        if len(chunk) > left:
            self.chunks.append(chunk[: max(left, 0)])
            raise OutputLimit
        self.chunks.append(chunk)
        return len(chunk)

    def text(self) -> str:
        return b"".join(self.chunks).decode("utf-8", "replace")


def forget_the_outside(plan: dict) -> None:
    """Leave nothing of the launch in the interpreter: environment, arguments, harness modules, paths."""
    os.environ.clear()
    os.unsetenv("LD_LIBRARY_PATH")
    sys.argv = [""]
    sys.orig_argv = []
    sys.path[:] = [path for path in sys.path if path not in (plan["code_directory"], "")]
    sys.path_importer_cache.pop(plan["code_directory"], None)
    sys.executable = ""
    for name in [name for name in sys.modules if name == "sandbox" or name.startswith("sandbox.")]:
        del sys.modules[name]
    for name in ("posix", "zygote"):  # the names that the launcher's one-line program has bound
        del sys.modules["__main__"].__dict__[name]
    plan.clear()


def runner(
    tier: str,
    install_filter: Callable[[], None],
    ruleset: int,
    streams: Streams,
    begin: Callable[[int], None],
    address_space_bytes: int,
) -> Callable[[Callable[[], None] | None, int, int, float, int], NoReturn]:
    """Return the function that a freshly forked process runs: it restricts itself, serves `channel`, and ends.

    All that it needs is bound here, since each name that it looks up in a module would copy some pages of memory.
    `begin` starts the clocks and the randomness of a call, `ruleset` is the descriptor of the Landlock rules.

    Decided: docs/decisions/sandbox.md, “The parent process prepares memory and streams before it forks a call”.
    """
    die_with_parent = linux.die_with_parent if tier != "namespaces" else None
    enforce_rules = landlock.enforcer(ruleset) if ruleset >= 0 else None
    drop_capabilities, set_stack_bytes = linux.capability_setter(), linux.stack_setter()
    # Without namespaces the zygote is asked for each thread.
    max_processes = TABLE["NPROC"][1] if tier == "namespaces" else None
    open_files, limit = (TABLE["NOFILE"][1],) * 2, resource.setrlimit
    limit_of_memory, limit_of_time = resource.RLIMIT_AS, resource.RLIMIT_CPU
    limit_of_files, limit_of_processes = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC
    dup2, closerange, write, close = os.dup2, os.closerange, os.write, os.close
    say_why, serve, leave = _refuse, _server(streams, begin), os._exit

    def run(
        enter_user_namespace: Callable[[], None] | None,
        channel: int,
        witness: int,
        cpu_seconds: float,
        memory_bytes: int,
    ) -> NoReturn:
        try:
            if enter_user_namespace is not None:
                enter_user_namespace()
            if die_with_parent is not None:
                die_with_parent()
            if enforce_rules is not None:
                enforce_rules()
            # The call keeps its channel and, until it is restricted, its witness; both lie above CHANNEL now.
            dup2(channel, CHANNEL)
            closerange(CHANNEL + 1, witness)
            closerange(witness + 1, _ALL_DESCRIPTORS)
            # RLIMIT_AS also counts the memory that the zygote has mapped; a tool is promised its own on top of that.
            ceiling = address_space_bytes + memory_bytes
            whole_cpu_seconds = int(cpu_seconds) + 1  # a backstop: the zygote watches the exact limit
            limit(limit_of_memory, (ceiling, ceiling + _HEADROOM_BYTES))  # `finish` raises the first to the second
            limit(limit_of_time, (whole_cpu_seconds, whole_cpu_seconds))
            limit(limit_of_files, open_files)
            if max_processes is not None:
                limit(limit_of_processes, (max_processes, max_processes))
            set_stack_bytes(min(max(memory_bytes // _STACK_SHARE, _LEAST_STACK_BYTES), _MOST_STACK_BYTES))
            # Last: the filter forbids the system call that enforces a ruleset.
            drop_capabilities()
            install_filter()
            write(witness, RESTRICTED)
            close(witness)
        except BaseException as error:  # noqa: BLE001
            say_why(witness, error)
        try:
            serve(ceiling)
        finally:
            leave(121)  # only if the harness itself failed: `serve` ends the process

    return run


def _refuse(witness: int, error: BaseException) -> NoReturn:
    """Tell the zygote why a call could not be restricted, and end its process."""
    os.write(witness, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")[:500])
    os._exit(120)


def _request_reader() -> Callable[[], tuple[bytes, bytes, memoryview]]:
    """Return a function that reads the call's nonce, its request as JSON, and its byte code or source."""
    read, leave, unpack, header_bytes = os.read, os._exit, REQUEST_HEADER.unpack_from, REQUEST_HEADER.size

    def read_request() -> tuple[bytes, bytes, memoryview]:
        data = b""
        while len(data) < header_bytes:
            data += read(CHANNEL, _READ_BYTES) or leave(_GIVEN_UP)
        nonce, json_bytes, code_bytes = unpack(data)
        code_at = header_bytes + json_bytes
        missing = code_at + code_bytes - len(data)
        if missing:
            chunks = [data]
            while missing > 0:
                chunks.append(read(CHANNEL, _READ_BYTES) or leave(_GIVEN_UP))
                missing -= len(chunks[-1])
            data = b"".join(chunks)
        return nonce, data[header_bytes:code_at], memoryview(data)[code_at:]

    return read_request


def _server(streams: Streams, begin: Callable[[int], None]) -> Callable[[int], NoReturn]:
    """Return a function that serves the one request on the channel of a process that is restricted already."""
    read, decode, leave = _request_reader(), json.JSONDecoder().raw_decode, os._exit
    make_finisher = _finisher_maker(streams, os.write, leave)

    def serve(address_space_bytes: int) -> NoReturn:
        nonce, text, code = read()
        request, _ = decode(str(text, "utf-8"))  # `json.loads` would look for blanks around it
        if request["compiles"]:
            compiled = compile_source(bytes(code))
            # All of it is sent before code of the tool runs, so that no bytes of the tool can be taken for this frame.
            frame = memoryview(REPLY_HEADER.pack(nonce, len(compiled)) + compiled)
            while frame:
                frame = frame[os.write(CHANNEL, frame) :]
            if compiled[:1] != COMPILED:
                leave(0)
            code = memoryview(compiled)[1:]
        run_tool(request, code, streams, begin, make_finisher(nonce, address_space_bytes))
        leave(121)

    return serve


def rehearse(begin: Callable[[int], None]) -> None:
    """Run a sample tool through all code of a call, so that a call's process need not warm it up.

    Raises:
        RuntimeError: the sample tool returned no value.
    """
    ignore = lambda *arguments: None  # noqa: E731
    request: dict[str, Any] = {"compiles": False, "function": "tool", "arguments": {"name": "banana"}}
    text = json.dumps(request | {"state": {}, "seed": 0, "output_bytes": 1000, "result_bytes": 1000}).encode()
    for _ in range(16):  # the interpreter specialises code that has run a few times
        streams = Streams()
        streams.install()
        finish = _finisher_maker(streams, lambda _, data: len(data), ignore, set_limit=ignore)(bytes(16), 0)
        body = run_tool(json.loads(text), compile_source(_REHEARSAL)[1:], streams, begin, finish)
        if b'"status":"ok"' not in body:
            raise RuntimeError(f"the rehearsal failed: {body!r}")
        del sys.modules[MODULE_NAME]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__


def _finisher_maker(
    streams: Streams,
    write: Callable[[int, memoryview], int],
    leave: Callable[[int], object],
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> Callable[[bytes, int], Callable[[Any], bytes]]:
    """Return a function that makes `finish` for a call's nonce and address space.

    `finish` writes the genuine reply and ends the process. It needs nothing that a tool can patch.
    """
    pack, join, encode, rlimit_as = REPLY_HEADER.pack, b"".join, _json_encoder(), resource.RLIMIT_AS
    out, budget = streams.out, streams.budget

    def make(nonce: bytes, address_space_bytes: int) -> Callable[[Any], bytes]:
        ceiling = (address_space_bytes + _HEADROOM_BYTES,) * 2

        def finish(reply: Any) -> bytes:
            set_limit(rlimit_as, ceiling)
            # The tool may have caught its `OutputLimit`; the budget below 0 still shows that it printed too much.
            if budget[0] < 0:
                reply = {"status": "error", "error": {"kind": "output_limit", "message": "the tool printed too much"}}
            if isinstance(reply, tuple):
                head = join((b'{"status":"ok","value":', reply[0], b',"state":', reply[1]))
            else:
                head = encode(reply).encode()[:-1]
            body = join((head, b',"stdout":', encode(out.text()).encode(), b"}"))
            data = memoryview(join((pack(nonce, len(body)), body)))
            while data:
                data = data[write(CHANNEL, data) :]
            leave(0)
            return body

        return finish

    return make


def compile_source(source: bytes) -> bytes:
    """Return `COMPILED` and the module's byte code, or a zero byte and an error in JSON. None of the source runs."""
    warnings.simplefilter("ignore")
    try:
        text = source.decode("utf-8", "surrogatepass")  # in bytes, a comment could name another encoding
        return COMPILED + marshal.dumps(compile(text, TOOL_FILE, "exec", dont_inherit=True, optimize=0))
    except SyntaxError as error:
        message, line = f"{type(error).__name__}: {error.msg}", error.lineno
    except (ValueError, RecursionError, OverflowError) as error:
        message, line = f"{type(error).__name__}: {error}", None
    except MemoryError:  # raised at the parser's own stack limit, too
        message, line = "MemoryError: the source is too large or too deeply nested to compile", None
    where = f" (line {line})" if line else ""
    return b"\x00" + json.dumps({"kind": "invalid_source", "message": (message + where)[:_MESSAGE_CHARACTERS]}).encode()


def run_tool(
    request: dict,
    code_bytes: bytes | memoryview,
    streams: Streams,
    begin: Callable[[int], None],
    finish: Callable[[Any], bytes],
) -> bytes:
    """Run the request's function, and return the result of `finish` for its reply."""
    streams.budget[0] = request["output_bytes"]
    begin(request["seed"])
    module = types.ModuleType(MODULE_NAME)
    sys.modules[module.__name__] = module
    encode, classify, out_of_memory = _encode_value, _classify, _OUT_OF_MEMORY
    values = (request["function"], request["arguments"], request["state"], request["result_bytes"])
    request.clear()
    try:
        reply = _call_tool(module, marshal.loads(code_bytes), values, encode)
    except MemoryError:
        reply = out_of_memory
    except BaseException as error:  # noqa: BLE001  # any exception of the tool becomes its reply
        reply = classify(error)
    return finish(reply)


def _json_encoder() -> Callable[[object], str]:
    """Return a strict JSON encoder of C functions alone, which a patch of the json module does not change."""

    def refuse(value: object) -> NoReturn:
        raise TypeError(f"{type(value).__name__} is not a JSON value")

    join = "".join
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    chunks = make({}, refuse, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: join(chunks(value, 0))


_encode_value = _json_encoder()


def _call_tool(module: types.ModuleType, code: types.CodeType, values: tuple, encode: Callable[[object], str]) -> Any:
    """Run the module's body, then the function; return its value and state as JSON, or an error's reply."""
    name, arguments, state, result_bytes = values
    exec(code, module.__dict__)
    function = module.__dict__.get(name)
    if function is None or not callable(function):
        found = ", ".join(sorted(k for k, v in module.__dict__.items() if isinstance(v, types.FunctionType))) or "none"
        return _error("invalid_source", f"the source defines no function {name!r}; it defines: {found}")
    if _takes_state(function):
        value = function(**arguments, state=state)
    else:
        value = function(**arguments)
    try:
        value_json = encode(value).encode()
        state_json = encode(state).encode()
    except MemoryError:
        raise
    except RecursionError:
        return _error("invalid_result", "the result is nested too deeply for JSON")
    except UnicodeEncodeError:
        return _error("invalid_result", "the result holds text that is not valid Unicode (a lone surrogate)")
    except (TypeError, ValueError) as error:
        return _error("invalid_result", f"the result is not JSON: {error}")
    if not isinstance(state, dict | None):
        return _error("invalid_result", "state must stay an object")
    size = len(value_json) + len(state_json)
    if size > result_bytes:
        return _error(
            "output_limit", f"the result takes {size} bytes as JSON, the limit (result_bytes) is {result_bytes}"
        )
    return value_json, state_json


def _takes_state(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    if isinstance(code, types.CodeType) and not hasattr(function, "__wrapped__"):
        return "state" in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    import inspect

    try:
        return "state" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _error(kind: str, message: str) -> dict:
    return {
        "status": "error",
        "error": {"kind": kind, "message": _ADDRESS.sub("at 0x…", message)[:_MESSAGE_CHARACTERS]},
    }


def _classify(error: BaseException) -> dict:
    """Return the reply for an exception that the tool raised."""
    name = type(error).__name__
    try:
        message = f"{name}: {error}" if str(error) else name
        message = message.encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001  # the exception's own __str__ may raise anything
        message = f"{name} (its message cannot be rendered)"
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == TOOL_FILE:
            line = trace.tb_lineno
        trace = trace.tb_next
    if line is not None:
        message = f"{message[: _MESSAGE_CHARACTERS - 20]} (line {line})"
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return _error("memory", message)
    return _error("forbidden" if _is_forbidden(error) else "exception", message)


def _is_forbidden(error: BaseException) -> bool:
    """Say whether an error is a refusal of the sandbox, and not a failure of the tool itself."""
    if not isinstance(error, OSError):
        return False
    if isinstance(getattr(error, "reason", None), OSError):  # urllib wraps the socket's error
        return _is_forbidden(error.reason)  # type: ignore[attr-defined]
    if error.errno in _FORBIDDEN_ERRNOS or isinstance(error, PermissionError | socket.gaierror):
        return True
    path = error.filename
    if isinstance(path, bytes):
        path = os.fsdecode(path)
    if error.errno != errno.ENOENT or not isinstance(path, str) or not path.startswith("/"):
        return False
    return os.path.commonpath(("/tmp", os.path.normpath(path))) != "/tmp"  # the host may have it, hidden from tools
