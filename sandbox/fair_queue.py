"""The order of waiting calls: clients take turns."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Waiting jobs, one line per client, served in turn.

    >>> queue = FairQueue()
    >>> for client, job in [("a", 1), ("a", 2), ("b", 3)]:
    ...     queue.put(client, job)
    >>> queue.next(lambda client: True), queue.next(lambda client: client != "a"), queue.next(lambda client: False)
    (('a', 1), ('b', 3), None)
    >>> queue.take("a")
    >>> queue.next(lambda client: True), len(queue)
    (('b', 3), 2)
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, client: str, job: T) -> None:
        """Append to the client's line."""
        self._lines.setdefault(client, deque()).append(job)

    def next(self, may: Callable[[str], bool]) -> tuple[str, T] | None:
        """Return the first client in turn that may have a job, and its next one; None when there is none."""
        return next(((client, line[0]) for client, line in self._lines.items() if may(client)), None)

    def take(self, client: str) -> None:
        """Remove the client's next job; the client's turn is over."""
        line = self._lines.pop(client)
        line.popleft()
        if line:
            self._lines[client] = line  # to the end of the round
