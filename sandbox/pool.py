"""The pool: workers (one jail each), the fair queue before them, and their recovery.

A call that is young holds one of its worker's few *fresh* slots, so that short calls run almost alone on a core. A call
that has not ended after `AGED_AFTER_SECONDS` gives the slot back and goes on, at low priority, among the many places
for *aged* calls: sleepers and endless loops cannot keep short calls waiting until every place is taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable

from sandbox.cgroup import available_memory_bytes
from sandbox.errors import Refused, ServiceFault
from sandbox.isolation import Tier
from sandbox.jail.limits import TMP_BYTES
from sandbox.packages import NO_PACKAGES, Packages
from sandbox.protocol import Limits
from sandbox.worker import Job, Outcome, Worker

log = logging.getLogger("sandbox")
CALLS_OF_A_WORKER = 32
_FRESH_SLOTS = 4  # of a worker
_MOST_OF_ALL_PLACES = 0.75  # that one client's calls may hold, and of the memory
_LOOK_AGAIN_SECONDS = 0.05
_QUEUED_BYTES = 16 << 20  # that a call may leave unread in sockets and pipes, which no limit of its own counts


class FairQueue:
    """Waiting jobs, one line per client; clients take turns.

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
        self._lines: OrderedDict[str, deque[Job]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def put(self, client: str, job: Job) -> None:
        """Append to the client's line."""
        self._lines.setdefault(client, deque()).append(job)

    def next(self, may: Callable[[str], bool]) -> tuple[str, Job] | None:
        """Return the first client in turn that may have a job, and its next one; None when there is none."""
        return next(((client, line[0]) for client, line in self._lines.items() if may(client)), None)

    def take(self, client: str) -> None:
        """Remove the client's next job; the client's turn is over."""
        line = self._lines.pop(client)
        line.popleft()
        if line:
            self._lines[client] = line  # to the end of the round


class Pool:
    """All workers and the queue before them; `await start()`, then `await run(...)`, then `close()`."""

    def __init__(
        self,
        tier: Tier,
        workers: int,
        *,
        max_children: int = CALLS_OF_A_WORKER,
        max_queue: int = 4096,
        packages: Packages = NO_PACKAGES,
    ) -> None:
        self.packages, self._jail = packages, (tier, max_children, packages)
        self._places, self._size, self.max_queue = max_children, workers, max_queue
        self._queue = FairQueue()
        self.in_flight_of: Counter[str] = Counter()  # calls by client
        self.memory_of: Counter[str] = Counter()  # the bytes that these may use together
        self.memory_in_flight = 0
        self._memory_bytes = available_memory_bytes() * 4 // 5  # that all calls together may use
        self.workers: list[Worker] = []
        self.restarts = 0
        self._heals = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start every worker."""
        self.workers = [self._worker(index) for index in range(self._size)]
        await asyncio.gather(*(worker.wait_ready() for worker in self.workers))
        self._heals = True  # not before: where none can start, another attempt would fail alike

    def _worker(self, index: int) -> Worker:
        return Worker(index, self._jail, self.dispatch, self.on_ended, self._on_closed)

    async def close(self) -> None:
        """End every jail; waiting calls fail."""
        self._heals = False
        if self._again is not None:
            self._again.cancel()
        for task in self._tasks:
            task.cancel()
        for worker in list(self.workers):
            worker.close("is shutting down")
        while (found := self._queue.next(lambda _: True)) is not None:
            client, job = found
            self._queue.take(client)
            if not job.future.done():
                job.future.set_exception(ServiceFault("the service is shutting down"))

    @property
    def queued(self) -> int:
        """Number of calls that wait for a slot."""
        return len(self._queue)

    @property
    def in_flight(self) -> int:
        """Number of calls inside the jails."""
        return sum(len(worker.flights) for worker in self.workers)

    async def run(
        self,
        client: str,
        document: bytes,
        code: bytes,
        limits: Limits,
        max_reply_bytes: int,
        on_code: Callable[[bytes], None] | None = None,
    ) -> Outcome:
        """Run one call; to cancel it takes it from the queue, or ends its process.

        If `on_code` is given, `code` is a source, and the call's process compiles it first.

        Raises:
            Refused: too many calls are waiting, or the service failed.
        """
        if len(self._queue) >= self.max_queue:
            raise Refused("too many calls are waiting", status=429, code="queue_full")
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        job = Job(client, document, code, limits, max_reply_bytes, future, on_code)
        self._queue.put(client, job)
        self.dispatch()
        try:
            return await future
        finally:
            if future.cancelled():
                for worker in self.workers:
                    worker.stop(job)

    def dispatch(self) -> None:
        """Start waiting jobs while a worker has a fresh slot."""
        while self._queue:
            # By fresh calls first: aged ones run at low priority and hardly delay a new one.
            worker = min(
                (w for w in self.workers if w.ready and w.fresh < _FRESH_SLOTS and len(w.flights) < self._places),
                key=lambda w: (w.fresh, len(w.flights)),
                default=None,
            )
            if worker is None:
                return
            found = self._queue.next(self._may_start)
            if found is None:  # all that wait are of clients that hold their share
                return
            client, job = found
            if job.future.done():  # its caller has gone
                self._queue.take(client)
                continue
            if not self._has_memory(job):  # smaller ones that pass could keep it waiting for ever
                return
            if worker.start(job):
                self._queue.take(client)
                self._count(job, 1)
            elif worker.ready:  # it is this process that has no descriptor left for the call's channel
                if self._again is not None:
                    self._again.cancel()
                self._again = asyncio.get_running_loop().call_later(_LOOK_AGAIN_SECONDS, self.dispatch)
                return

    def _may_start(self, client: str) -> bool:
        """Say whether a client leaves the last quarter of the places and of the memory open to others."""
        return (
            self.in_flight_of[client] < _MOST_OF_ALL_PLACES * self._size * self._places
            and self.memory_of[client] < _MOST_OF_ALL_PLACES * self._memory_bytes
        )

    def _has_memory(self, job: Job) -> bool:
        """Say whether the memory limits of all calls in flight, and of this one, fit; a call alone may always try.

        Decided: docs/decisions/sandbox.md, “A call starts only if the memory limits of all running calls fit the
        machine”.
        """
        return self.memory_in_flight == 0 or self.memory_in_flight + self.memory_for(job) <= self._memory_bytes

    def memory_for(self, job: Job) -> int:
        """Return the bytes that a call may use, including those that the kernel keeps for it."""
        return job.limits.memory_bytes + TMP_BYTES + _QUEUED_BYTES

    def on_ended(self, job: Job) -> None:
        """Take note of a call that has ended, and start waiting ones."""
        self._count(job, -1)
        self.dispatch()

    def _count(self, job: Job, sign: int) -> None:
        self.in_flight_of[job.client] += sign
        self.memory_of[job.client] += sign * self.memory_for(job)
        self.memory_in_flight += sign * self.memory_for(job)
        if not self.in_flight_of[job.client]:  # else every client that ever called would stay in memory
            del self.in_flight_of[job.client], self.memory_of[job.client]

    def _on_closed(self, worker: Worker) -> None:
        """Replace a worker that ended."""
        if not self._heals or worker not in self.workers:
            return
        log.warning("worker %d ended, starting another", worker.index)
        self.restarts += 1
        task = asyncio.get_running_loop().create_task(self._replace(worker))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self, worker: Worker) -> None:
        position = self.workers.index(worker)
        delay = 0.0
        while self._heals:
            await asyncio.sleep(delay)
            # OSError: no process or no descriptor can be had just now.
            with contextlib.suppress(ServiceFault, OSError):
                # In its place before it is ready, so that `close` finds it.
                self.workers[position] = self._worker(worker.index)
                await self.workers[position].wait_ready()
                return
            delay = min(5.0, 2 * delay + 0.1)
