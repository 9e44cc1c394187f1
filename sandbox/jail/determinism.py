"""Makes a call repeat byte for byte: randomness follows from the request's seed, clocks from how often they are read.

`install` runs once in the zygote, before anything else is imported. The function that it returns runs in every call's
process.
"""

from __future__ import annotations

import datetime
import errno
import gc
import os
import time
from collections.abc import Callable
from typing import Any

START_MILLISECONDS = 1_767_225_600_000  # 2026-01-01T00:00:00Z, the time at which every call begins
_readings = START_MILLISECONDS


def _milliseconds() -> int:
    """Every reading of a clock is a millisecond later than the one before."""
    global _readings
    _readings += 1
    return _readings


def _now() -> float:
    return _milliseconds() / 1000


def install() -> Callable[[int], None]:
    """Replace the process's clocks, ids and sources of entropy; return a function that starts a call with its seed.

    CLOCK_MONOTONIC stays real: event loops and locks need it. So does the time that `time.sleep` takes; the clock has
    gone on by the time that was asked for when it returns.
    """
    _replace_clocks()
    _replace_datetime()
    os.getpid = os.getppid = lambda: 1
    os.getpgrp = os.getpgid = os.getsid = lambda pid=0: 1  # type: ignore[misc]
    os.times = lambda: os.times_result((0.0, 0.0, 0.0, 0.0, _now()))
    machine = os.uname().machine
    os.uname = lambda: os.uname_result(("Linux", "sandbox", "0", "0", machine))
    os.sysconf = _without_the_machines_memory(os.sysconf)
    import platform
    import random
    import socket
    import uuid

    socket.gethostname = lambda: "sandbox"
    platform._uname_cache = None  # type: ignore[attr-defined]  # it may know the host's name

    entropy = random.Random()
    original_seed = random.Random.seed

    def urandom(size: int) -> bytes:
        return entropy.randbytes(size)

    def seed_from_entropy(self: random.Random, a: Any = None, version: int = 2) -> None:
        original_seed(self, entropy.getrandbits(128) if a is None else a, version)

    # The generators' own, in C: for a number `random.Random.seed` does no more, in a dozen pages of a call's process.
    seed_entropy, own = super(random.Random, entropy).seed, random._inst
    seed_own = super(random.Random, own).seed

    freeze, collect, enable = gc.freeze, gc.collect, gc.enable

    def begin_call(seed: int) -> None:
        global _readings
        # The collector then counts the call's own objects alone. To collect empties the lists of objects for reuse,
        # whose length would decide which of them are counted.
        freeze()
        collect()
        enable()
        _readings = START_MILLISECONDS
        seed_entropy(seed + (1 << 64))  # another stream than the tool's own
        seed_own(seed)
        own.gauss_next = None  # type: ignore[attr-defined]

    os.urandom, os.getrandom = urandom, lambda size, flags=0: urandom(size)
    random._urandom = urandom  # type: ignore[attr-defined]
    random.Random.seed = seed_from_entropy  # type: ignore[method-assign]
    random.seed = random._inst.seed
    uuid._generate_time_safe = None  # type: ignore[attr-defined]
    uuid._node = 0x020000000000  # type: ignore[attr-defined]
    return begin_call


def _replace_clocks() -> None:
    real_gettime, real_gettime_ns = time.clock_gettime, time.clock_gettime_ns
    time.time = time.perf_counter = time.process_time = time.thread_time = _now
    nanoseconds: Callable[[], int] = lambda: _milliseconds() * 1_000_000  # noqa: E731
    time.time_ns = time.perf_counter_ns = time.process_time_ns = time.thread_time_ns = nanoseconds
    time.clock_gettime = lambda clock: real_gettime(clock) if clock == time.CLOCK_MONOTONIC else _now()
    time.clock_gettime_ns = lambda clock: real_gettime_ns(clock) if clock == time.CLOCK_MONOTONIC else nanoseconds()
    time.sleep = _sleeping(time.sleep)
    for name in ("gmtime", "localtime", "ctime"):
        vars(time)[name] = _with_default_moment(getattr(time, name))
    strftime, asctime, gmtime = time.strftime, time.asctime, time.gmtime
    time.strftime = lambda format, t=None: strftime(format, gmtime() if t is None else t)  # noqa: A006
    time.asctime = lambda t=None: asctime(gmtime() if t is None else t)


def _without_the_machines_memory(sysconf: Callable[[str | int], int]) -> Callable[[str | int], int]:
    """Refuse the memory of the machine: tools may not ask the kernel, and the C library then returns any number."""
    hidden = {name: os.sysconf_names.get(name) for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")}

    def refusing(name: str | int) -> int:
        if name in hidden or name in hidden.values():
            raise PermissionError(errno.EPERM, "the memory of the machine is hidden from tools")
        return sysconf(name)

    return refusing


def _with_default_moment(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda seconds=None: function(_now() if seconds is None else seconds)


def _sleeping(really: Callable[[Any], None]) -> Callable[[Any], None]:
    def sleep(seconds: Any) -> None:
        global _readings
        began = _readings
        really(seconds)
        # Threads that sleep at the same time do not wait for each other.
        _readings = max(_readings, began + round(float(seconds) * 1000))

    return sleep


def _replace_datetime() -> None:
    """Change the C classes themselves, so that types, repr and arithmetic stay the same.

    A static type's attributes cannot be assigned; its dictionary, found behind the read-only proxy, can. Then the
    interpreter must forget its earlier look-ups.
    """

    import ctypes

    def now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
        return cls.fromtimestamp(_now(), tz)

    def utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
        return cls.fromtimestamp(_now(), datetime.UTC).replace(tzinfo=None)

    def today(cls: type[datetime.date]) -> datetime.date:
        return cls.fromtimestamp(_now())

    methods: dict[type, dict[str, Callable[..., Any]]] = {
        datetime.datetime: {"now": now, "utcnow": utcnow},
        datetime.date: {"today": today},
    }
    for kind, replacements in methods.items():
        attributes = gc.get_referents(kind.__dict__)[0]
        for name, function in replacements.items():
            attributes[name] = classmethod(function)
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
