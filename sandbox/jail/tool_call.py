"""A call of a tool inside a Python that is isolated already: compile, run, and report the result in one body of JSON.

All that it needs after the tool has run is bound before, and the builtins are a private copy: a tool's patches do not
reach it.
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
    """The standard streams of a tool, in memory: no pipe can fill, and nothing reaches the server's.

    Both outputs have one budget of bytes together, and refuse more.
    """

    def __init__(self) -> None:
        self.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        self.budget = [0]
        """The number of bytes that may still be printed, in a list that both outputs share; below 0 after too much."""
        self.out = _Capture(self.budget)
        options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "write_through": True}
        self._text_out = io.TextIOWrapper(cast(Any, self.out), **options)
        self._text_err = io.TextIOWrapper(cast(Any, _Capture(self.budget)), **options)

    def install(self) -> None:
        """Make these the process's streams."""
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
    """Run a tool of our own through the whole path, so that a call finds everything warm.

    Raises:
        RuntimeError: the tool did not come to its value.
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
    """Return `COMPILED` and the module's byte code, or 0 and a JSON error; compiling runs none of the source."""
    warnings.simplefilter("ignore")
    try:
        text = source.decode("utf-8", "surrogatepass")  # text, so that no coding cookie is obeyed
        return COMPILED + marshal.dumps(compile(text, TOOL_FILE, "exec", dont_inherit=True, optimize=0))
    except SyntaxError as error:
        message, line = f"{type(error).__name__}: {error.msg}", error.lineno
    except (ValueError, RecursionError, OverflowError) as error:
        message, line = f"{type(error).__name__}: {error}", None
    except MemoryError:  # the parser's own stack limit as well as the memory limit
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
    """Run the request's function, and return the answer of `finish` to its result."""
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
    except BaseException as error:  # noqa: BLE001  # whatever leaves the tool is its reply
        reply = classify(error)
    return finish(reply)


def _json_encoder() -> Callable[[object], str]:
    """A strict JSON encoder that holds on to C functions only: patching the json module does not change it."""

    def refuse(value: object) -> NoReturn:
        raise TypeError(f"{type(value).__name__} is not a JSON value")

    join = "".join
    make = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    chunks = make({}, refuse, json.encoder.encode_basestring, None, ":", ",", False, False, False)
    return lambda value: join(chunks(value, 0))


_encode_value = _json_encoder()


def _call_tool(module: types.ModuleType, code: types.CodeType, values: tuple, encode: Callable[[object], str]) -> Any:
    """Run the module's body and then the function; the result is a reply whose value is encoded already."""
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
    """Return the reply of a tool that an exception has left."""
    name = type(error).__name__
    try:
        message = f"{name}: {error}" if str(error) else name
        message = message.encode("utf-8", "backslashreplace").decode()
    except BaseException:  # noqa: BLE001  # the tool's own __str__
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
    """Say whether the sandbox refused something, as opposed to the tool failing by itself."""
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
    return os.path.commonpath(("/tmp", os.path.normpath(path))) != "/tmp"  # a path that it may not see


def reply_encoder(streams: Streams) -> Callable[[Any], bytes]:
    """Return a function that makes the reply's body of a tool's result, with all that it needs bound in advance."""
    join, encode = b"".join, _json_encoder()
    out, budget = streams.out, streams.budget

    def encode_reply(reply: Any) -> bytes:
        # Printing too much raises in the tool, which may have caught it: the budget remembers.
        if budget[0] < 0:
            reply = {"status": "error", "error": {"kind": "output_limit", "message": "the tool printed too much"}}
        if isinstance(reply, tuple):
            head = join((b'{"status":"ok","value":', reply[0], b',"state":', reply[1]))
        else:
            head = encode(reply).encode()[:-1]
        return join((head, b',"stdout":', encode(out.text()).encode(), b"}"))

    return encode_reply
