"""Runs one call in its own child process: the last restrictions, the tool, one framed reply, the end.

The process reads nothing that a tool controls before every restriction holds. Then it tells the zygote on a pipe (the
witness) that they hold, or why they do not, and closes the pipe. So no words of a tool are taken for the service's.

All that the harness needs afterwards is bound before the tool runs, and its builtins are a private copy. A nonce marks
the genuine reply; no name that a tool can use leads to it. A tool that finds it in memory gains nothing: it can only
answer its own call, which it may do anyway.
"""

from __future__ import annotations

import builtins
import json
import os
import resource
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

from sandbox.jail import linux, tool_call
from sandbox.jail.launcher import CHANNEL
from sandbox.jail.limits import TABLE, THREADS_OF_A_CALL
from sandbox.jail.tool_call import Streams, reply_encoder

# Every function defined below takes its builtins from this copy, so a tool's changes to `builtins` do not reach us.
vars(sys.modules[__name__]).update(__builtins__=dict(vars(builtins)))

REQUEST_HEADER = struct.Struct("<16sII")  # nonce, bytes of JSON, bytes of compiled code or source
REPLY_HEADER = struct.Struct("<16sI")  # nonce, bytes of the body
RESTRICTED = b"restricted"  # a call's process writes this to its witness before it reads its request
_GIVEN_UP = 122  # exit status of a process whose server has hung up
_READ_BYTES = 64 << 10  # most requests are shorter, and malloc would map and unmap a larger buffer
_DECODER = json.JSONDecoder()
_ALL_DESCRIPTORS = 1 << 20  # more than a process can have
_HEADROOM_BYTES = 8 << 20  # lets the harness report "out of memory" for a tool that has no memory left
# Stacks count towards the memory limit in full: those of the 64 threads that a call may have take half of it.
_STACK_SHARE = 2 * THREADS_OF_A_CALL
_LEAST_STACK_BYTES, _MOST_STACK_BYTES = 128 << 10, 8 << 20


@dataclass
class Jail:
    """The things that the zygote prepares once for all its calls."""

    tier: str
    drop_capabilities: Callable[[], None]
    install_filter: Callable[[], None]  # the filter of system calls
    streams: Streams
    begin: Callable[[int], None]  # starts the clocks and the randomness of a call
    ruleset: int = -1  # descriptor of the Landlock rules
    address_space_bytes: int = 0
    shared_bytes: int = 0  # memory of packages, which every call's process shares with the zygote


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


def runner(jail: Jail) -> Callable[[int, int, int, float, int], NoReturn]:
    """Return the function that a freshly forked process runs: it restricts itself, serves `channel`, and ends.

    All that it needs is bound here, since each name that it looks up in a module would copy some pages of memory.

    Decided: docs/decisions/sandbox.md, “The parent process prepares memory and streams before it forks a call”.
    """
    die_with_parent = linux.die_with_parent if jail.tier != "namespaces" else None
    enforce_rules = linux.landlock_enforcer(jail.ruleset) if jail.ruleset >= 0 else None
    drop_capabilities, install_filter = jail.drop_capabilities, jail.install_filter
    address_space_bytes = jail.address_space_bytes
    # Without namespaces the zygote is asked for each thread.
    max_processes = TABLE["NPROC"][1] if jail.tier == "namespaces" else None
    open_files, limit = (TABLE["NOFILE"][1],) * 2, resource.setrlimit
    limit_of_memory, limit_of_time = resource.RLIMIT_AS, resource.RLIMIT_CPU
    limit_of_files, limit_of_processes = resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC
    dup2, closerange, write, close = os.dup2, os.closerange, os.write, os.close
    say_why, serve, leave = _refuse, _server(jail), os._exit
    set_stack_bytes, enter_user_namespace = linux.stack_setter(), linux.user_namespace_enterer()

    def run(user: int, channel: int, witness: int, cpu_seconds: float, memory_bytes: int) -> NoReturn:
        try:
            if user >= 0:
                enter_user_namespace(user)
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


def _server(jail: Jail) -> Callable[[int], NoReturn]:
    """Return a function that serves the one request on the channel of a process that is restricted already."""
    read, decode = _request_reader(), _DECODER.raw_decode
    compile_source, run_tool = tool_call.compile_source, tool_call.run_tool
    make_finisher, leave = _finisher_maker(reply_encoder(jail.streams), os.write, os._exit), os._exit
    streams, begin = jail.streams, jail.begin

    def serve(address_space_bytes: int) -> NoReturn:
        nonce, text, code = read()
        request, _ = decode(str(text, "utf-8"))  # `json.loads` would look for blanks around it
        if request["compiles"]:
            compiled = compile_source(bytes(code))
            # All of it is sent before code of the tool runs, so that no bytes of the tool can be taken for this frame.
            frame = memoryview(REPLY_HEADER.pack(nonce, len(compiled)) + compiled)
            while frame:
                frame = frame[os.write(CHANNEL, frame) :]
            if compiled[:1] != tool_call.COMPILED:
                leave(0)
            code = memoryview(compiled)[1:]
        finish = make_finisher(nonce, address_space_bytes)
        run_tool(request, code, streams, begin, finish)
        leave(121)

    return serve


def rehearse(jail: Jail) -> None:
    """Run a sample tool through all code of a call, so that a call's process need not warm it up."""

    def finisher(streams: Streams) -> Callable[[Any], bytes]:
        ignore = lambda *arguments: None  # noqa: E731
        make = _finisher_maker(reply_encoder(streams), lambda _, data: len(data), ignore, set_limit=ignore)
        return make(bytes(16), 0)

    tool_call.rehearse(jail.begin, finisher)


def _finisher_maker(
    encode_reply: Callable[[Any], bytes],
    write: Callable[[int, memoryview], int],
    leave: Callable[[int], object],
    set_limit: Callable[[int, tuple[int, int]], None] = resource.setrlimit,
) -> Callable[[bytes, int], Callable[[Any], bytes]]:
    """Return a function that makes `finish` for a call's nonce and address space.

    `finish` writes the genuine reply and ends the process. It needs nothing that a tool can patch.
    """
    pack, join, rlimit_as = REPLY_HEADER.pack, b"".join, resource.RLIMIT_AS

    def make(nonce: bytes, address_space_bytes: int) -> Callable[[Any], bytes]:
        ceiling = (address_space_bytes + _HEADROOM_BYTES,) * 2

        def finish(reply: Any) -> bytes:
            set_limit(rlimit_as, ceiling)
            body = encode_reply(reply)
            data = memoryview(join((pack(nonce, len(body)), body)))
            while data:
                data = data[write(CHANNEL, data) :]
            leave(0)
            return body

        return finish

    return make
