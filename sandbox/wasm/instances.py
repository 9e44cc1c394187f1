"""The process of one worker of this tier: holds an instance that never ran, and forks a copy of it for every call.

The zygote of the jails does the forking, the limits of time and the accounting. A call is stopped from outside its
process, so no loop, no sleep and no bug of the runtime can outlive its limit. The tool's own Python lies in the
instance's linear memory, which has no way to a system call but those that the linker gave it: clocks, randomness, exit,
and files and sockets of which none exist. The reply is the value that the exported function returns.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import resource
import sys
import traceback
from typing import NoReturn

from wasmtime import Store, Trap, WasiConfig, WasmtimeError
from wasmtime.component import Component, Func, Linker

from sandbox.jail import harness, launcher, linux
from sandbox.jail.zygote import Zygote, address_space_bytes
from sandbox.wasm.component import engine

_PAGE_BYTES = 1 << 16
_LARGEST_MEMORY_BYTES = 1 << 32
_HOST_BYTES = 512 << 20  # what the runtime may take for itself: threads, copies of request and reply
_OPEN_FILES = 128


class Instance:
    """One instance of the component, which may run one call.

    Raises:
        TypeError: the component does not export `serve`.
    """

    def __init__(self, component: Component, linker: Linker, memory_bytes: int) -> None:
        self.store = Store(linker.engine)
        self.store.set_limits(memory_size=memory_bytes)
        self.store.set_wasi(WasiConfig())  # no arguments, environment, directory, address, standard stream
        found = linker.instantiate(self.store, component).get_func(self.store, "serve")
        if not isinstance(found, Func):
            raise TypeError("the component exports no function `serve`")
        self._serve = found

    def serve(self, request: str, code: bytes) -> bytes:
        """Run the call and return the reply's body.

        Raises:
            WasmtimeError, Trap: the instance ends without one.
        """
        return str(self._serve(self.store, request, code.decode("latin-1"))).encode("latin-1")


def main() -> NoReturn:
    """Serve calls until the server goes away."""
    plan = json.loads(sys.argv[1])
    linux.die_with_parent()
    launcher.silence_input_and_output()
    plan["control_fd"] = launcher.keep_channel_free(plan["control_fd"])
    try:
        linker = Linker(engine())
        linker.add_wasip2()
        component = Component.deserialize_file(linker.engine, plan["component"])
        own_bytes = _own_memory_bytes(component, linker)
        instance = Instance(component, linker, _LARGEST_MEMORY_BYTES)
        _give_up_privileges()
        gc.collect()
        gc.freeze()
        own_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        slots = [[-1, -1]] * (plan["max_children"] + 1)
        zygote = Zygote(plan["control_fd"], slots, 0, own_rss_bytes=own_rss_bytes)
        run = functools.partial(_run, instance, own_bytes, address_space_bytes())
        zygote.serve(run, {"webassembly": True}, before_each=lambda: None)
    except BaseException as error:  # noqa: BLE001  # whatever it is, it belongs in the log
        traceback.print_exc()
        launcher.say_failure(plan["control_fd"], error)
        os._exit(1)
    os._exit(0)


def _own_memory_bytes(component: Component, linker: Linker) -> int:
    """What an instance occupies before any call: the smallest limit under which one can be made."""
    low, high = 0, _LARGEST_MEMORY_BYTES
    while high - low > _PAGE_BYTES:
        middle = (low + high) // 2
        try:
            Instance(component, linker, middle)
            high = middle
        except WasmtimeError:
            low = middle
    return high


def _give_up_privileges() -> None:
    """The runtime is trusted, but no more than it needs to be."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(*[launcher.SANDBOX_UID] * 3)
        os.setresuid(*[launcher.SANDBOX_UID] * 3)
        linux.die_with_parent()  # becoming another user has undone it
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    for name, value in ((resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, _OPEN_FILES), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(name, (value, value))


def _run(
    instance: Instance,
    own_bytes: int,
    address_space: int,
    channel: int,
    witness: int,
    cpu_seconds: float,
    memory_bytes: int,
) -> NoReturn:
    """Restrict this freshly forked process, serve the one request on `channel`, and end."""
    try:
        harness.take_descriptors(channel, witness, _OPEN_FILES)
        linux.die_with_parent()
        os.dup2(0, 2)  # a panic of the runtime does not reach the server's log
        ceiling = address_space + memory_bytes + _HOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
        whole_cpu_seconds = int(cpu_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (whole_cpu_seconds, whole_cpu_seconds))
        instance.store.set_limits(memory_size=min(own_bytes + memory_bytes, _LARGEST_MEMORY_BYTES))
        harness.bear_witness(witness)
    except BaseException as error:  # noqa: BLE001
        harness.refuse(witness, error)
    try:
        nonce, request, code = harness.request_reader(launcher.CHANNEL)()
        harness.write_reply(launcher.CHANNEL, nonce, instance.serve(request.decode(), bytes(code)))
        os._exit(0)
    except (WasmtimeError, Trap):  # the instance ended: the server finds no reply
        os._exit(1)
    finally:
        os._exit(121)
