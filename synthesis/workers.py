"""The workers of a stage: in this process, or on every node of a Ray cluster.

    run ── journal, order of items ──► do(work, item) ──► worker: teacher, tool servers, client of the sandbox
                                                          (here, or some on each node)

A worker holds the connections of the work, which an item cannot carry. The outcome of an item depends on the item
alone, so every worker gives the same. The run, its journals and the paid replies stay on the machine that started the
run, so nodes need no common file system. If a worker or its node dies, the work in flight is lost, and another worker
starts it again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar, TypeVarTuple

from pydantic import BaseModel, ConfigDict, Field

from synthesis.errors import SynthesisError
from synthesis.stage import Rejected, SecondTry, note_second_tries, noted_second_tries
from synthesis.teacher.cache import CachedReply, ReplyFile
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from synthesis.teacher.protocol import Teacher

Worker = TypeVar("Worker", covariant=True)
Item = TypeVarTuple("Item")
Result = TypeVar("Result")

_LOSSES_PER_ITEM: Final = 3
"""The number of workers lost over one item at which the run stops: the item may be the cause."""
_CONNECTING_SECONDS: Final = 10.0
_CLOSING_SECONDS: Final = 30.0


class RayConfig(BaseModel):
    """A Ray cluster to work on; every node has this version of the package installed.

    Each node must reach the teacher, the sandbox and the tool servers that have an address; it starts the others
    itself. Keys of the teacher and of tool servers, and the sandbox's token (ASTRA_SANDBOX_TOKEN), are read from the
    environment in which the node ran `ray start`; none is sent to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: str = "auto"
    """`HOST:PORT` of the cluster's head; `auto` is the cluster that this machine belongs to."""
    workers_per_node: int = Field(default=2, ge=1)
    """Number of processes on each node. They share `concurrency`; limits of teacher and tool servers hold for each."""


class WorkersUnavailable(SynthesisError):
    """The cluster is not there or keeps losing workers; finished items are kept, and the message says what to do."""


class Workers(Protocol[Worker]):
    """Does work on items, in this process or on other machines."""

    async def do(self, work: Callable[[Worker, *Item], Coroutine[Any, Any, Result]], *item: *Item) -> Result:
        """Have one worker do the work, a method of its class, on one item.

        Raises:
            Exception: as the work raised it.
            WorkersUnavailable: worker after worker was lost over the item.
        """
        ...


class WorkerHere(Generic[Worker]):
    """The one worker of a run that stays in its process."""

    def __init__(self, worker: Worker):
        self._worker = worker

    async def do(self, work: Callable[[Worker, *Item], Coroutine[Any, Any, Result]], *item: *Item) -> Result:
        """Do the work in this process.

        Raises:
            Exception: as the work raised it.
        """
        return await work(self._worker, *item)


@asynccontextmanager
async def workers_on_ray(
    config: RayConfig, opened: Callable[[Teacher], AbstractAsyncContextManager[Worker]], teacher: Teacher
) -> AsyncIterator[Workers[Worker]]:
    """Have workers opened on every node of a cluster, each with a teacher like `teacher`, and closed at the end.

    `opened`, and a teacher that is not a language model, are sent to the nodes and must be picklable.

    Raises:
        WorkersUnavailable: Ray is not installed, or there is no such cluster.
    """
    ray = _connected(config)
    try:
        workers = _RayWorkers[Worker](ray, config.workers_per_node, ray.put((opened, _teacher_elsewhere(ray, teacher))))
        try:
            yield workers
        finally:
            await workers.close()
    finally:
        ray.shutdown()


def _connected(config: RayConfig) -> Any:
    try:
        import ray
    except ImportError as error:
        raise WorkersUnavailable("more than one machine needs Ray; run: pip install 'astra-jax[ray]'") from error
    try:
        if config.address != "auto":
            host, _, port = config.address.rpartition(":")
            socket.create_connection((host, int(port)), _CONNECTING_SECONDS).close()  # Ray itself would try for ever
        ray.init(address=config.address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError) as error:
        raise WorkersUnavailable(
            f"expected a Ray cluster at {config.address}, found none ({error}); run `ray start --head` on one machine "
            "and `ray start --address=HOST:PORT` on the others"
        ) from error
    return ray


def _teacher_elsewhere(ray: Any, teacher: Teacher) -> Callable[[], AbstractAsyncContextManager[Teacher]]:
    """Return a function that opens a teacher like this one on a node.

    A language model is opened again there, with the key of that node; any other teacher travels as it is.
    """
    if not isinstance(teacher, OpenAITeacher):
        return lambda: nullcontext(teacher)
    cache = None
    if (path := teacher.config.cache) is not None:
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        # An actor on this machine is the one writer of the file; it holds no CPU, and comes back if it dies.
        file = ray.remote(ReplyFile).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
        cache = _RepliesOfTheRun(file.remote(path.resolve()))
    return partial(_opened_teacher, type(teacher), teacher.config, cache)


class _RayWorkers(Generic[Worker]):
    """Gives each item to the worker with the fewest in hand, and to another if that one is lost, which is replaced."""

    def __init__(self, ray: Any, workers_per_node: int, parts: Any):
        """`parts` is Ray's reference to the functions that open a worker and its teacher."""
        self._ray, self._parts = ray, parts
        self._nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"] for _ in range(workers_per_node)]
        self._actors = [self._started(node) for node in self._nodes]
        self._in_hand = [0] * len(self._nodes)

    def _started(self, node: str) -> Any:
        """Start a worker on a node, or elsewhere if it is lost."""
        at = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=True)
        # Without a claim on CPUs it need not wait for room on a node.
        return self._ray.remote(_Actor).options(num_cpus=0, scheduling_strategy=at).remote([self._parts])

    async def do(self, work: Callable[[Worker, *Item], Coroutine[Any, Any, Result]], *item: *Item) -> Result:
        """Do the work on some node.

        Raises:
            Exception: as the work raised it.
            WorkersUnavailable: worker after worker was lost over the item.
        """
        for _ in range(_LOSSES_PER_ITEM):
            chosen = min(range(len(self._actors)), key=self._in_hand.__getitem__)
            actor = self._actors[chosen]
            self._in_hand[chosen] += 1
            call = actor.do.remote(work, *item)
            try:
                result, tries = await call
                note_second_tries(tries)
                return result
            except asyncio.CancelledError:  # the stage stops: so must the node, which would go on paying
                self._ray.cancel(call)
                raise
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, Rejected):
                    note_second_tries(error.cause.second_tries)
                raise error.cause from error  # without Ray's wrapping, so that a `Rejected` is one here, too
            except self._ray.exceptions.RayActorError as error:
                lost = error
                if self._actors[chosen] is actor:  # the first of its items to notice
                    self._ray.kill(actor)
                    self._actors[chosen] = self._started(self._nodes[chosen])
            finally:
                self._in_hand[chosen] -= 1
        raise WorkersUnavailable(
            f"{_LOSSES_PER_ITEM} workers were lost over one item, the last with: {lost}; look into the logs of the Ray "
            "cluster, and run the same command again"
        ) from lost

    async def close(self) -> None:
        """Have every worker close its connections."""
        closed = asyncio.gather(*(actor.close.remote() for actor in self._actors), return_exceptions=True)
        await asyncio.wait({closed}, timeout=_CLOSING_SECONDS)


class _Actor(Generic[Worker]):
    """One process of a node and the worker in it, which is opened with the first item."""

    def __init__(self, parts: list[Any]):
        """`parts` is a list so that the reference in it stays one."""
        self._parts = parts
        self._stack = AsyncExitStack()
        self._worker: asyncio.Task[Worker] | None = None

    async def do(
        self, work: Callable[[Worker, *Item], Coroutine[Any, Any, Result]], *item: *Item
    ) -> tuple[Result, list[SecondTry]]:
        # Opened once for all items, in a task of its own: an item that is cancelled does not cancel it for the others.
        if self._worker is None:
            self._worker = asyncio.create_task(self._open())
        worker = await asyncio.shield(self._worker)
        with noted_second_tries() as tries:
            try:
                return await work(worker, *item), tries
            except Rejected as rejected:
                rejected.second_tries = tuple(tries)
                raise

    async def _open(self) -> Worker:
        opened, opened_teacher = await self._parts[0]
        teacher = await self._stack.enter_async_context(opened_teacher())
        return await self._stack.enter_async_context(opened(teacher))

    async def close(self) -> None:
        await self._stack.aclose()


@asynccontextmanager
async def _opened_teacher(
    kind: type[OpenAITeacher], config: OpenAITeacherConfig, cache: _RepliesOfTheRun | None
) -> AsyncIterator[Teacher]:
    teacher = kind(config, cache)
    try:
        yield teacher
    finally:
        await teacher.close()


class _RepliesOfTheRun:
    """The reply file of the machine that started the run, as a node sees it.

    With a file per node, each node would pay for a reply, and SQLite's log does not work over network file systems
    (https://www.sqlite.org/wal.html).
    """

    def __init__(self, file: Any):
        self._file = file

    async def get(self, key: str) -> CachedReply | None:
        return await self._file.get.remote(key)

    async def put(self, key: str, reply: CachedReply) -> None:
        await self._file.put.remote(key, reply)

    async def close(self) -> None:
        """Leave it open: other workers may need it."""
