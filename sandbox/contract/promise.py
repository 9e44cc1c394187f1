"""A promise: calls, and the outcome that the last of them must have."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandbox.protocol import ExecuteReply, ExecuteRequest, Limits

if TYPE_CHECKING:
    from sandbox.client import SandboxClient

ANY = object()  # any value will do
SAME = object()  # the value of the first call, which is of the same source
CHEAP = Limits(wall_seconds=1.0, cpu_seconds=0.5, memory_bytes=64 << 20)
ROOMY = Limits(wall_seconds=30.0, cpu_seconds=5.0, memory_bytes=128 << 20, output_bytes=16 << 10, result_bytes=64 << 10)


@dataclass(frozen=True)
class Promise:
    """The function `f` of each source is called in order; the last reply must be of one of `kinds`."""

    name: str
    kinds: frozenset[str]  # error kinds, or "ok"
    sources: tuple[str, ...]
    value: Any = ANY
    limits: Limits = ROOMY
    state: dict[str, Any] | None = None
    new_state: Any = ANY
    arguments: dict[str, Any] = field(default_factory=dict)
    stdout: str | None = None
    seconds_between: float = 0.0  # between the calls
    needs_namespaces: bool = False
    """Whether only the tier `namespaces` can keep it: it needs a /tmp, or hides something that `landlock` shows."""
    is_slow: bool = False
    """Whether its check takes more than some tens of milliseconds."""

    def requests(self) -> list[ExecuteRequest]:
        """Return the calls, to be made one after the other with `seconds_between` them."""
        return [
            ExecuteRequest(source=source, function="f", arguments=self.arguments, state=self.state, limits=self.limits)
            for source in self.sources
        ]

    def check(self, client: SandboxClient, *, overshoot_seconds: float = 0.25) -> str | None:
        """Make the calls and return the verdict."""
        replies: list[ExecuteReply] = []
        for request in self.requests():
            time.sleep(self.seconds_between if replies else 0)
            replies += client.execute_batch([request])
        return self.verdict(replies, overshoot_seconds)

    def verdict(self, replies: list[ExecuteReply], overshoot_seconds: float = 0.25) -> str | None:
        """Return None if the replies keep the promise, else a line about the outcome.

        A limit of time may be overshot by `overshoot_seconds`; a machine that is starved of CPU needs more.
        """
        reply = replies[-1]
        value = replies[0].value if self.value is SAME else self.value
        kind = "ok" if reply.error is None else str(reply.error.kind)
        if kind not in self.kinds:
            found = reply.error.message if reply.error else repr(reply.value)
            return f"expected {' or '.join(sorted(self.kinds))}, found {kind}: {found}"
        if value is not ANY and reply.value != value:
            return f"expected the value {value!r}, found {reply.value!r}"
        if self.new_state is not ANY and reply.state != self.new_state:
            return f"expected the state {self.new_state!r}, found {reply.state!r}"
        if self.stdout is not None and reply.stdout != self.stdout:
            return f"expected to read {self.stdout!r}, found {reply.stdout!r}"
        if reply.usage.wall_seconds > self.limits.wall_seconds + overshoot_seconds:
            return f"the call ran {reply.usage.wall_seconds:.2f} s with a limit of {self.limits.wall_seconds:g} s"
        return None


def body(text: str) -> str:
    """Return a module with one function `f` of these statements.

    >>> print(body("x = 1\\nreturn x"))
    def f(**arguments):
        x = 1
        return x
    """
    return "def f(**arguments):\n" + "\n".join(f"    {line}" for line in text.strip("\n").split("\n"))


def promise(name: str, kinds: str, text: str, *before: str, **rest: Any) -> Promise:
    """Return a promise about one function body, after others have run.

    With `value=SAME` the body also runs before the others, and gives the same value then.
    """
    first = (text,) if rest.get("value") is SAME else ()
    return Promise(name, frozenset(kinds.split()), tuple(map(body, (*first, *before, text))), **rest)


def module(name: str, kinds: str, source: str, **rest: Any) -> Promise:
    """Return a promise about a whole module."""
    return Promise(name, frozenset(kinds.split()), (source,), **rest)


def table(kinds: str, bodies: dict[str, str], **rest: Any) -> list[Promise]:
    """Return promises about function bodies, by name, that all end alike."""
    return [promise(name, kinds, text, **rest) for name, text in bodies.items()]


def modules(kinds: str, sources: dict[str, str], **rest: Any) -> list[Promise]:
    """Return promises about whole modules, by name, that all end alike."""
    return [module(name, kinds, source, **rest) for name, source in sources.items()]
