"""Runs a tool's call in a process that is isolated already: compile, run, write the result as one JSON text.

A tool may patch builtins and modules. So this file binds all that it needs afterwards before the tool runs, and has a
private copy of the builtins.
"""

from __future__ import annotations

import builtins
import errno
import io
import json
import marshal
import os
import re
import socket
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any, NoReturn, cast

# Every function defined below takes its builtins from this copy, so a tool's changes to `builtins` do not reach us.
vars(sys.modules[__name__]).update(__builtins__=dict(vars(builtins)))

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


def rehearse(begin: Callable[[int], None], finisher: Callable[[Streams], Callable[[Any], bytes]]) -> None:
    """Run a sample tool through all code of a call, so that the first real call need not warm it up.

    Raises:
        RuntimeError: the sample tool returned no value.
    """
    for _ in range(16):  # the interpreter specialises code that has run a few times
        streams = Streams()
        streams.install()
        request: dict[str, Any] = {"compiles": False, "function": "tool", "arguments": {"name": "banana"}}
        request |= {"state": {}, "seed": 0, "output_bytes": 1000, "result_bytes": 1000}
        request = json.loads(json.dumps(request).encode())
        body = run_tool(request, compile_source(_REHEARSAL)[1:], streams, begin, finisher(streams))
        if b'"status":"ok"' not in body:
            raise RuntimeError(f"the rehearsal failed: {body!r}")
        del sys.modules[MODULE_NAME]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__


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


def reply_encoder(streams: Streams) -> Callable[[Any], bytes]:
    """Return a function that writes a tool's result as the reply's body; it needs nothing that a tool can patch."""
    join, encode = b"".join, _json_encoder()
    out, budget = streams.out, streams.budget

    def encode_reply(reply: Any) -> bytes:
        # The tool may have caught its `OutputLimit`; the budget below 0 still shows that it printed too much.
        if budget[0] < 0:
            reply = {"status": "error", "error": {"kind": "output_limit", "message": "the tool printed too much"}}
        if isinstance(reply, tuple):
            head = join((b'{"status":"ok","value":', reply[0], b',"state":', reply[1]))
        else:
            head = encode(reply).encode()[:-1]
        return join((head, b',"stdout":', encode(out.text()).encode(), b"}"))

    return encode_reply
