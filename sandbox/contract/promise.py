"""A promise: calls, and what the last of them must come to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandbox.client import SandboxClient
from sandbox.protocol import ExecuteReply, Limits

ANY = object()  # any value will do
ROOMY = Limits(wall_seconds=30.0, cpu_seconds=5.0, memory_bytes=128 << 20, output_bytes=16 << 10, result_bytes=64 << 10)


@dataclass(frozen=True)
class Promise:
    """`sources` are called one after the other (each its function `f`); the last reply must be one of `kinds`."""

    name: str
    kinds: frozenset[str]  # error kinds, or "ok"
    sources: tuple[str, ...]
    value: Any = ANY
    limits: Limits = ROOMY
    state: dict[str, Any] | None = None
    new_state: Any = ANY
    arguments: dict[str, Any] = field(default_factory=dict)
    stdout: str | None = None

    def check(self, client: SandboxClient, *, overshoot_seconds: float = 0.25) -> str | None:
        """Return None when the promise is kept, else what happened instead.

        A limit of time may be overshot by `overshoot_seconds`; a machine that is starved of CPU needs more.

        Raises:
            SandboxUnavailable: the service gave no answer.
        """
        reply: ExecuteReply | None = None
        for source in self.sources:
            reply = client.execute(source, "f", self.arguments, state=self.state, limits=self.limits)
        if reply is None:
            return "the promise has no call"
        kind = "ok" if reply.error is None else str(reply.error.kind)
        if kind not in self.kinds:
            found = reply.error.message if reply.error else repr(reply.value)
            return f"expected {' or '.join(sorted(self.kinds))}, found {kind}: {found}"
        if self.value is not ANY and reply.value != self.value:
            return f"expected the value {self.value!r}, found {reply.value!r}"
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
    """Return a promise about one function body, after others have run."""
    return Promise(name, frozenset(kinds.split()), (*map(body, before), body(text)), **rest)


def module(name: str, kinds: str, source: str, **rest: Any) -> Promise:
    """Return a promise about a whole module."""
    return Promise(name, frozenset(kinds.split()), (source,), **rest)
