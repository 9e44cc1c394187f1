"""The pages on the devices, and the calls of compiled programs that a schedule asks for.

Device       the contract: read, sample, take weights, idle, leave, close
XLADevice    pages and programs of JAX, for the shards of one host
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.engine.arguments import asked_of, given_of, said_of
from astra_jax.engine.kv_pages import empty_pages
from astra_jax.engine.page_attention import copies_pages
from astra_jax.engine.programs import read_tokens, sample_rows
from astra_jax.engine.sizes import Limits, RowShape
from astra_jax.engine.tracks import Read, SaidRow, Sample
from astra_jax.freed_memory import give_back, give_back_around_compiling
from astra_jax.mesh.placement import in_force, num_shards, on_devices, own_shards
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, layers_apart
from astra_jax.model.sharding import MESH_AXES, constrain, spec

_T = TypeVar("_T")
# Two threads, because a process has two decoders at most. glibc keeps freed memory for the thread that freed it: with
# many threads, or new ones for each run, more memory would be kept than is in use.
_THREADS = ThreadPoolExecutor(2, "decoder")


class _Kind(NamedTuple):
    """The sizes that a program for sampling is compiled for."""

    shape: RowShape
    own_table_pages: int


Said = list[SaidRow]
"""Tokens of each row of a call, in the order of `Sample.all_rows`."""


class Device(Protocol):
    """Pages and programs that carry out a schedule. A call does not hold up the event loop."""

    num_shards: int
    """Shards of the batch whose rows this host schedules."""
    vocab_size: int
    """Ids of the model's vocabulary."""

    @property
    def num_programs(self) -> int:
        """Number of programs that were compiled."""
        ...

    @property
    def row_steps(self) -> int:
        """Rows of this host × tokens of all calls that sampled, with padding and the calls of other hosts."""
        ...

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""
        ...

    async def sample(self, sample: Sample) -> Said:
        """Sample in some rows; return the tokens of each."""
        ...

    def take_weights(self, params: Any) -> None:
        """Compute with other weights from the next call on."""
        ...

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait for the event, without calls of its own; with `holds_up` other hosts make no calls meanwhile either."""
        ...

    async def leave(self, *, failed: bool) -> None:
        """Make no call any more, because all messages are done or because something has `failed`."""
        ...

    def close(self) -> None:
        """Free the memory of pages and weights; no call follows."""
        ...


class XLADevice:
    """Pages of one model on the devices of the mesh in force, or on the first device; a `Device`.

    With several hosts, each gives and gets the rows of its own shards, and all make the same calls in the same order
    (`SharedDevice`); `own_pages` is then the size that they have agreed on.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        limits: Limits,
        *,
        end_ids: tuple[int, ...],
    ):
        """Make the pages, with numbers of the model's type; a message ends with one of `end_ids`."""
        give_back_around_compiling()
        self._model_config, self._limits, self._end_ids = model_config, limits, end_ids
        self._params = layers_apart(params)
        self._shards, self._mesh = own_shards(), jax.sharding.get_mesh()
        self.num_shards = len(self._shards)
        self.vocab_size = model_config.vocab_size
        make = jax.jit(empty_pages, static_argnums=(0, 1, 2, 3))
        sizes = (num_shards(), limits.num_pages, limits.page_tokens)
        self._empty_pages = lambda: on_devices(make(model_config, *sizes))
        self._pages = self._empty_pages()
        self._copies_pages = copies_pages(model_config.dtype, model_config.head_dim, limits.page_tokens)
        self._shapes: set[tuple[Any, ...]] = set()
        self.row_steps = 0

    @property
    def num_programs(self) -> int:
        """Number of programs that were compiled."""
        return len(self._shapes)

    def take_weights(self, params: Params) -> None:
        """Compute with other weights from the next call on; pages still hold keys of the old ones: forget them."""
        self._params = layers_apart(params)

    def close(self) -> None:
        """Free the memory of pages and weights; no call follows."""
        # At once, even if this object lives on: the learner's step needs the room.
        for pages in jax.tree.leaves(self._pages):
            pages.delete()
        self._params = {}
        _THREADS.submit(give_back)  # 3 to 100 ms, in a thread

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait: there is no other host."""
        await until.wait()

    async def leave(self, *, failed: bool) -> None:
        """Do nothing: there is no other host to tell."""

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""
        with self._new_pages_after_failure():
            await off_the_loop(self._read, read, threads=_THREADS)

    async def sample(self, sample: Sample, own_pages: int | None = None) -> Said:
        """Sample in some rows; return the tokens of each."""
        with self._new_pages_after_failure():
            own_pages = self.own_pages(sample) if own_pages is None else own_pages
            return await off_the_loop(self._sample, sample, self._kind_of(sample, own_pages), threads=_THREADS)

    async def compile_all(self) -> None:
        """Compile every program that a later call may need, by calls whose rows are all padding.

        Another thread calls them one by one, so that a signal ends this after the program that is being compiled.

        Decided: docs/decisions/serve.md, “A server compiles every program before it takes requests”.
        """
        nothing: list[list[Any]] = [[] for _ in range(self.num_shards)]
        for begins, most_rows, most_tokens in self._limits.read_kinds():
            await off_the_loop(self._read, Read(nothing, begins, most_rows, most_tokens), threads=_THREADS)
        for kind in [kind for shape in self._limits.row_shapes for kind in self._kinds(shape)]:
            await off_the_loop(self._sample, Sample(kind.shape, nothing, leave_at=0), kind, threads=_THREADS)

    def own_pages(self, sample: Sample) -> int:
        """Return the most pages that a row of a call has behind its prefix."""
        rows = sample.all_rows()
        return max((len(row.track.table) - row.track.prefix_pages(self._limits) for row in rows), default=0)

    @contextlib.contextmanager
    def _new_pages_after_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # The call that failed was given some of the old ones; memory may not suffice for old and new.
            for pages in jax.tree.leaves(self._pages):
                pages.delete()
            self._pages = self._empty_pages()
            raise

    def _read(self, read: Read) -> None:
        given = self._over_hosts(given_of(read, self._limits, self.num_shards))
        self._shapes.add(("read", self.num_shards, read.most_rows, read.most_tokens, read.begins))
        self._pages = read_tokens(self._model_config, self._params, self._pages, given, begins=read.begins)

    def _kind_of(self, sample: Sample, own_pages: int) -> _Kind:
        return next(kind for kind in self._kinds(sample.shape) if kind.own_table_pages >= own_pages)

    def _kinds(self, shape: RowShape) -> list[_Kind]:
        """Return the programs that sample in rows of a shape, short tables first."""
        # A kernel reads no page beyond a row's own, however long the table is: then the longest table is enough, and
        # each other one would be one more program to compile.
        sizes = self._limits.own_table_sizes(shape) if self._copies_pages else self._limits.own_table_pages[-1:]
        return [_Kind(shape, size) for size in sizes]

    def _sample(self, sample: Sample, kind: _Kind) -> Said:
        asked = asked_of(sample, self._limits, self.num_shards, kind.own_table_pages)
        self._shapes.add(("sample", *kind))
        self._pages, sampled = sample_rows(
            self._model_config,
            self._params,
            self._pages,
            *self._over_hosts(asked),
            np.int32(sample.leave_at),
            end_ids=self._end_ids,
            max_tokens=self._limits.sample_tokens,
        )
        said = said_of(sample, sampled, self._of_this_host)
        self.row_steps += int(sampled.steps) * self.num_shards * sample.shape.prefixes * sample.shape.rows_per_prefix
        return said

    def _over_hosts(self, rows: _T) -> _T:
        """Return arrays [D, …] over the shards of all hosts, from the arrays of this host's shards."""
        if jax.process_count() == 1:
            return rows
        shards, devices = num_shards(), self._mesh.size // num_shards()
        sharding = NamedSharding(self._mesh, PartitionSpec(*spec("batch"), tuple(MESH_AXES[2:])))

        def of_all(x: np.ndarray) -> jax.Array:
            def of_device(index: Any) -> np.ndarray:
                (shard, _, _), (number, _, _) = index[0].indices(shards), index[1].indices(devices)
                own = x[self._shards.index(shard)] if number == 0 else np.zeros(x.shape[1:], x.dtype)
                return own[None, None]

            return jax.make_array_from_callback((shards, devices, *x.shape[1:]), sharding, of_device)

        return _of_first_device(jax.tree.map(of_all, rows))

    def _of_this_host(self, x: jax.Array) -> np.ndarray:
        """Return the part [d, …] of an array over all shards that belongs to this host."""
        if jax.process_count() == 1:
            return np.asarray(x)
        parts = {part.index[0].indices(len(x))[0]: part.data for part in x.addressable_shards}
        own = [np.asarray(parts[shard]) for shard in self._shards]
        return np.concatenate(own) if own else np.zeros((0, *x.shape[1:]), x.dtype)


@jax.jit
def _of_first_device(rows: _T) -> _T:
    """Return arrays [D, …] from [D, devices of a shard, …]: only the first device of a shard was given its rows.

    The others may belong to another host, which does not know them.
    """
    return jax.tree.map(lambda x: constrain(x[:, 0], "batch", *["slots"] * (x.ndim - 2)), rows)


async def off_the_loop(call: Callable[..., _T], *args: Any, threads: Executor | None = None) -> _T:
    """Make a blocking call in one of these `threads`, or in any, under the mesh that is in force here."""
    mesh = jax.sharding.get_mesh()

    def under_the_mesh() -> _T:  # a thread begins without one
        with in_force(None if mesh.empty else mesh):
            return call(*args)

    called = asyncio.get_running_loop().run_in_executor(threads, under_the_mesh)
    try:
        return await asyncio.shield(called)
    except asyncio.CancelledError:
        await asyncio.wait([called])  # a thread cannot be stopped, and it holds weights and pages
        raise
