"""One call inside its own child process: last restrictions, then the tool, then one framed reply, then the end.

Nothing that a tool controls is read before every restriction holds. That they hold, or why they do not, is said on a
descriptor of its own (the witness) which is closed then: no words of a tool are ever taken for the service's.

All that the harness needs afterwards is bound before the tool runs, its builtins are a private copy, and the nonce that
marks a genuine reply is never in the tool's reach by name. A tool that hunts its own process for it gains nothing: it
can only answer its own call, which it may anyway.
"""

from __future__ import annotations

import builtins
import fcntl
import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox.jail import linux, tool_call
from sandbox.jail.streams import Streams
from sandbox.jail.tool_call import reply_encoder

# Every function defined below takes its builtins from this copy, so a tool's changes to `builtins` do not reach us.
vars(sys.modules[__name__]).update(__builtins__=dict(vars(builtins)))

REQUEST_HEADER = struct.Struct("<16sII")  # nonce, bytes of JSON, bytes of compiled code or source
REPLY_HEADER = struct.Struct("<16sI")  # nonce, bytes of the body
RESTRICTED = b"restricted"  # what a call's process tells the zygote before it reads its request
CHANNEL = 3  # the one descriptor of such a process besides the standard ones
_WITNESS = 4  # closed before anything of the call is read
_OPEN_FILES_OF_THE_ZYGOTE = 256
_OPEN_FILES = 64  # of a call: what lies unread in its sockets and pipes is the kernel's memory, not its own
_DECODER = json.JSONDecoder()
_HEADROOM_BYTES = 8 << 20  # lets the harness say "out of memory" when the tool is


@dataclass
class Jail:
    """What the zygote prepares once for all its calls."""

    tier: str
    drop: linux.Drop
    tmp_bytes: int
    max_processes: int | None  # of all calls together; None where the zygote is asked for each thread
    streams: Streams
    begin: Callable[[int], None]  # starts the clocks and the randomness of a call
    encode_reply: Callable[[Any], bytes]
    ruleset: int = -1  # Landlock
    address_space_bytes: int = 0
    shared_bytes: int = 0  # of packages, which are in the memory of every call's process


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
    del sys.modules["__main__"].__dict__["zygote"]
    plan.clear()


def run(jail: Jail, channel: int, witness: int, cpu_seconds: float, memory_bytes: int) -> NoReturn:
    """Restrict this freshly forked process, serve the one request on `channel`, and end."""
    try:
        if jail.tier != "namespaces":
            linux.die_with_parent()
        renew_streams()
        if jail.ruleset >= 0:
            linux.landlock_restrict(jail.ruleset)
        witness = take_descriptors(channel, witness)
        # RLIMIT_AS counts what the zygote has mapped already; a tool is promised memory on top of that.
        ceiling = jail.address_space_bytes + memory_bytes
        whole_cpu_seconds = int(cpu_seconds) + 1
        limit = resource.setrlimit
        limit(resource.RLIMIT_AS, (ceiling, ceiling + _HEADROOM_BYTES))
        limit(resource.RLIMIT_CPU, (whole_cpu_seconds, whole_cpu_seconds))
        limit(resource.RLIMIT_NOFILE, (_OPEN_FILES, _OPEN_FILES))
        if jail.max_processes is not None:
            limit(resource.RLIMIT_NPROC, (jail.max_processes, jail.max_processes))
        # Last: behind the filter no ruleset can be enforced any more.
        jail.drop()
        testify(witness)
    except BaseException as error:  # noqa: BLE001
        refuse(witness, error)
    try:
        _serve(jail, CHANNEL, ceiling)
    finally:
        os._exit(121)


def limit_for_all(jail: Jail) -> None:
    """Set the restrictions that the zygote itself can live with; every call inherits them."""
    limits = {
        resource.RLIMIT_FSIZE: jail.tmp_bytes,
        resource.RLIMIT_NOFILE: _OPEN_FILES_OF_THE_ZYGOTE,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
    }
    for name, value in limits.items():
        resource.setrlimit(name, (value, value))
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)


def read_request(channel: int) -> tuple[bytes, bytes, bytes]:
    """Read the call's nonce, its request as JSON, and its byte code or source."""
    nonce, json_bytes, code_bytes = REQUEST_HEADER.unpack(_read(channel, REQUEST_HEADER.size))
    return nonce, _read(channel, json_bytes), _read(channel, code_bytes)


def write_reply(channel: int, nonce: bytes, body: bytes) -> None:
    """Write a genuine frame."""
    _write(channel, REPLY_HEADER.pack(nonce, len(body)) + body)


def take_descriptors(channel: int, witness: int, end: int = 1 << 20) -> int:
    """Keep the call's two descriptors, the channel as `CHANNEL`, and no other below `end`; return the witness's."""
    spare = fcntl.fcntl(witness, fcntl.F_DUPFD, _WITNESS + 1)  # it may lie where the channel goes
    os.dup2(channel, CHANNEL)
    os.dup2(spare, _WITNESS)
    os.closerange(_WITNESS + 1, end)
    return _WITNESS


def renew_streams() -> None:
    """Open the standard streams anew: what a tool sets on an open file, every process that shares it would find set.

    Decided: docs/decisions/sandbox.md, “Whatever a call could leave on a shared object is its own, or refused”.
    """
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)


def testify(witness: int) -> None:
    """Tell the zygote that every restriction holds, and give up the descriptor on which it was said."""
    os.write(witness, RESTRICTED)
    os.close(witness)


def refuse(witness: int, error: BaseException) -> NoReturn:
    """End a call that could not be restricted, whatever happened, and tell the zygote why."""
    os.write(witness, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")[:500])
    os._exit(120)


def _read(channel: int, count: int) -> bytes:
    chunks = []
    while count:
        chunk = os.read(channel, min(count, 1 << 20))
        if not chunk:
            os._exit(122)  # the server gave the call up
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def _write(channel: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(channel, view) :]


def _serve(jail: Jail, channel: int, address_space_bytes: int) -> NoReturn:
    nonce, text, code = read_request(channel)
    request, _ = _DECODER.raw_decode(text.decode())  # `json.loads` would look for blanks around it
    if request["operation"] != "run":
        compiled = tool_call.compile_source(code)
        # Whole in the channel before anything of the tool has run: nothing that follows can be taken for it.
        write_reply(channel, nonce, compiled)
        if request["operation"] == "compile" or compiled[:1] != tool_call.COMPILED:
            os._exit(0)
        code = compiled[1:]
    finish = _finisher(channel, nonce, jail.encode_reply, address_space_bytes, os.write, os._exit)
    tool_call.run_tool(request, code, jail.streams, jail.begin, finish)
    os._exit(121)


def rehearse(jail: Jail) -> None:
    """Run a tool of our own through the whole path, so that a call's process finds everything warm."""

    def finisher(streams: Streams) -> Callable[[Any], bytes]:
        ignore = lambda *arguments: None  # noqa: E731
        encode_reply = reply_encoder(streams)
        return _finisher(-1, bytes(16), encode_reply, 0, lambda channel, data: len(data), ignore, set_limit=ignore)

    tool_call.rehearse(jail.begin, finisher)


def _finisher(
    channel: int,
    nonce: bytes,
    encode_reply: Callable[[Any], bytes],
    address_space_bytes: int,
    write: Callable[[int, memoryview], int],
    leave: Callable[[int], object],
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> Callable[[Any], bytes]:
    """A function that writes the genuine reply and ends the process, with everything it needs bound in advance."""
    pack, join, rlimit_as = REPLY_HEADER.pack, b"".join, resource.RLIMIT_AS
    ceiling = (address_space_bytes + _HEADROOM_BYTES,) * 2

    def finish(reply: Any) -> bytes:
        set_limit(rlimit_as, ceiling)
        body = encode_reply(reply)
        data = memoryview(join((pack(nonce, len(body)), body)))
        while data:
            data = data[write(channel, data) :]
        leave(0)
        return body

    return finish
