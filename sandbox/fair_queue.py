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
    >>> anyone = lambda client: True
    >>> queue.get(anyone), queue.get(anyone), queue.get(lambda client: client != "a"), len(queue)
    (1, 3, None, 1)
    """

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, client: str, job: T) -> None:
        """Append to the client's line."""
        self._lines.setdefault(client, deque()).append(job)
        self._size += 1

    def put_back(self, client: str, job: T) -> None:
        """Return a job from `get` that could not be started: it becomes the next one.

        >>> queue = FairQueue()
        >>> for client, job in [("a", 1), ("a", 2), ("b", 3)]:
        ...     queue.put(client, job)
        >>> queue.put_back("a", queue.get(lambda client: True))
        >>> [queue.get(lambda client: True) for _ in range(3)]
        [1, 3, 2]
        """
        self._lines.setdefault(client, deque()).appendleft(job)
        self._lines.move_to_end(client, last=False)
        self._size += 1

    def get(self, may: Callable[[str], bool]) -> T | None:
        """Return the next job of the first client in turn that may have one; None when there is none."""
        client = next((client for client in self._lines if may(client)), None)
        if client is None:
            return None
        line = self._lines.pop(client)
        job = line.popleft()
        self._size -= 1
        if line:
            self._lines[client] = line  # to the end of the round
        return job
