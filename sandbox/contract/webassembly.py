"""What takes a promise's place where tools run in WebAssembly, which has no threads, no ctypes, no mmap and no files.

There things are not refused but missing (`exception`), and there is no channel of the reply to tamper with: the reply
is the value of a function. Every other promise holds as it stands.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from sandbox.contract.promise import ANY, ROOMY, Promise, promise
from sandbox.contract.promises import PROMISES

_NO_THREADS = "a looping thread times out", "a thread left behind ends with its call", "honest threads work"
_NO_CTYPES = (
    "memory outside the limit's reach is refused",
    "tracing is not there",
    "another process's memory cannot be read",
    "a segmentation fault is a crash",
    "new namespaces are refused",
    "no call wakes another on a page that both have",
    "nothing is said about other processes",
    "how many calls went before cannot be told by numbers of processes",
    "the standard streams are each call's own",
)
_NO_MAPPING = ("mapping memory is refused",)
_NO_PAIRS = (
    "a datagram to a socket of the host is forbidden",
    "a datagram to an abstract socket is forbidden",
    "a datagram of another call with an address is forbidden",
    "a datagram from an end that is turned elsewhere is forbidden",
    "the two ends of a pair of one's own hear each other",
    "nor can a pipe",
    "what a tool of 16 MB leaves unread in sockets and pipes is less than another 16 MB",
)
_NO_TMP = ("a private /tmp can be used",)
_32_BITS = ("one huge allocation is refused",)  # a length beyond 2 ** 31 is an OverflowError

_SLOW = ROOMY.model_copy(update={"cpu_seconds": 40.0, "wall_seconds": 60.0})  # packing the bomb is the test's own work
_MISSING = {"kinds": frozenset({"exception"}), "value": ANY}
_NO_PATH = {"kinds": frozenset({"forbidden"}), "value": ANY}
_INSTEAD: dict[str, dict[str, Any]] = {
    **dict.fromkeys((*_NO_THREADS, *_NO_CTYPES, *_NO_MAPPING, *_NO_PAIRS, *_NO_TMP, *_32_BITS), _MISSING),
    "a deadlock times out": {"kinds": frozenset({"crashed"})},  # with one thread it is known to be one
    "no path of the host is known": {"value": [[""], "", "/python", "/", "/python/"]},
    "writing a reply to every descriptor is noticed": {"kinds": frozenset({"ok"}), "value": 1},
    "a forged frame is noticed": {"kinds": frozenset({"exception"})},
    "the service's own words are only bytes when a tool writes them": {"kinds": frozenset({"exception"})},
    "closing the channel is a crash": {"kinds": frozenset({"ok"}), "value": 1},
    "a tool cannot claim to have timed out": {"kinds": frozenset({"ok"}), "value": None},
    "nor a tower of lists": {"kinds": frozenset({"invalid_result", "crashed"})},  # the stack of an instance is small
    "a zip bomb is refused": {"limits": _SLOW},
    "devices cannot be made": _MISSING,
    "a database's clock is the call's": {"value": ANY},  # SQLite asks the runtime itself
    "a module of one's own can be imported": _NO_PATH,
    "a file that fills the disk is stopped": _NO_PATH,
    "a sparse giant is stopped": _NO_PATH,
    "a socket's buffer cannot be enlarged": _NO_PATH,  # nor is there a pair: an emulated one is refused
    "/tmp does not tell that an earlier call looked into it": _NO_PATH,
    "the times of a standard stream cannot be changed": {"kinds": frozenset({"exception", "forbidden"})},
    "a flood of files is stopped": _NO_PATH,
}

_LEFTOVERS = promise(
    "nothing is left for the next call",
    "ok",
    "import builtins, json, math, os, random, sys\n"
    "return [math.pi > 3, hasattr(builtins, 'leftover'), 'leftover' in sys.modules, dict(os.environ),\n"
    "        hasattr(json, 'leftover'), random.random()]",
    *[
        "import builtins, json, math, os, random, sys\nmath.pi = 3\nbuiltins.leftover = json.leftover = 1\n"
        "sys.modules['leftover'] = math\nos.environ['LEFTOVER'] = '1'\nrandom.seed(99)\nreturn 1"
    ]
    * 8,
    value=[True, False, False, {}, False, 0.8444218515250481],
)

_ALLOCATION = promise("an allocation above the limit is refused", "memory", "return len([0] * 10 ** 8)")


def promises_in_webassembly() -> list[Promise]:
    """Return every promise as it holds there.

    Raises:
        ValueError: a promise that is to be replaced does not exist.
    """
    unknown = _INSTEAD.keys() - {promise.name for promise in PROMISES}
    if unknown:
        raise ValueError(f"no such promise: {sorted(unknown)}")
    kept = []
    for one in PROMISES:
        changes = _INSTEAD.get(one.name, {})
        kept.append(_LEFTOVERS if one.name == _LEFTOVERS.name else dataclasses.replace(one, **changes))
    return [*kept, _ALLOCATION]
