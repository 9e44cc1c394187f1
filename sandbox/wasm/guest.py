"""What runs inside the component: a Python without files, network, processes, threads and ctypes.

It is imported once, when the component is built; its memory at the end of that import is what every call starts from.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import importlib
import json
import os
import pkgutil
import selectors
import socket
import sys
import time
from typing import Any, NoReturn

import wit_world  # made from the interface when the component is built

from sandbox.jail import determinism, tool_call
from sandbox.jail.streams import Streams
from sandbox.jail.tool_call import rehearse, reply_encoder, run_tool

_begin = determinism.install()
_PACKAGES = (
    "collections concurrent email encodings html http importlib json logging re string unittest urllib xml zoneinfo"
)
_OF_NO_USE = frozenset({"antigravity", "idlelib", "this", "tkinter", "turtle", "turtledemo"})


def _preload() -> None:
    """Import all of the standard library that there is: later there is no file to import from."""
    names = sorted(name for name in sys.stdlib_module_names - _OF_NO_USE if not name.startswith("_"))
    for package in _PACKAGES.split():
        module = importlib.import_module(package)
        names += [
            name for _, name, _ in pkgutil.walk_packages(module.__path__, f"{package}.") if "__main__" not in name
        ]
    for name in [*names, "_strptime", "_pydecimal", "concurrent.futures.thread"]:
        with contextlib.suppress(ImportError, AttributeError, OSError, RuntimeError):
            importlib.import_module(name)


class _Sleeper(selectors.SelectSelector):
    """Waits for nothing but time, since there is nothing else."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        time.sleep(3600.0 if timeout is None else max(timeout, 0.0))
        return []


class _EventLoop(asyncio.SelectorEventLoop):
    """An event loop that needs no socket to wake itself: no other thread exists that could."""

    def __init__(self) -> None:
        super().__init__(_Sleeper())

    def _make_self_pipe(self) -> None:
        pass

    def _close_self_pipe(self) -> None:
        pass

    def _write_to_self(self) -> None:
        pass


def _refused(*arguments: object, **named: object) -> NoReturn:
    raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


def _refuse_processes_and_changes() -> None:
    """What tools ask for in vain elsewhere is refused here in the same words, rather than missing."""
    names = "chmod chown fchmod fchown lchown "  # the first of which claims to work
    names += "chroot execl execle execlp execv execve execvp fork forkpty kill killpg mkfifo mknod nice posix_spawn"
    for name in names.split():
        setattr(os, name, _refused)
    vars(os).update(system=lambda command: -1, getresuid=lambda: (65534, 65534, 65534))
    vars(socket).update(AF_UNIX=1, AF_NETLINK=16, SOCK_RAW=3)


def _forget_the_outside() -> None:
    os.environ.clear()
    sys.orig_argv, sys.executable = [], ""
    sys.path[:] = ["/python/lib/python"]
    sys.path_importer_cache.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("sandbox", "guest", "wit_world")]:
        if name != __name__ and name != "wit_world":
            del sys.modules[name]


_preload()
_refuse_processes_and_changes()
vars(sys.modules["asyncio.unix_events"])["_UnixDefaultEventLoopPolicy"]._loop_factory = _EventLoop
rehearse(_begin, reply_encoder)
_streams = Streams()
_streams.install()
_forget_the_outside()
gc.collect()
gc.freeze()


class WitWorld(wit_world.WitWorld):
    """The component's one export."""

    def serve(self, request: str, code: str) -> str:
        """Return the reply's body. Bytes travel as text of the same code points: lists would go element by element."""
        document: dict[str, Any] = json.loads(request)
        data = code.encode("latin-1")
        if document["operation"] == "compile":
            return tool_call.compile_source(data).decode("latin-1")
        sys.argv = [""]  # emptied by the runtime when the instance starts
        return run_tool(document, data, _streams, _begin, reply_encoder(_streams)).decode("latin-1")
