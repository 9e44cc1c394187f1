"""The pages on the devices, and the calls of compiled programs that a schedule asks for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.engine.arguments import asked_of, given_of, penalties_of, said_of
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
# A process has two decoders at most. glibc keeps what a thread frees where that thread, and few others, will look for
# it: of the calls of many threads, or of new ones for each run, more is kept than is in use.
_THREADS = ThreadPoolExecutor(2, "decoder")


class _Kind(NamedTuple):
    """The program of a call that samples: calls that differ in these alone are compiled anew."""

    shape: RowShape
    own_table_pages: int
    is_penalized: bool


Said = list[SaidRow]
"""Of each row, in the order of `Sample.all_rows`."""


class Device(Protocol):
    """What carries out a schedule. A call takes its time without holding up the event loop."""

    num_shards: int
    """That this host schedules."""
    vocab_size: int
    penalizes: bool
    """Whether it knows what rows have said."""

    @property
    def num_programs(self) -> int:
        """Shapes compiled so far."""
        ...

    @property
    def row_steps(self) -> int:
        """Rows of this host × tokens that programs which sample ran for, padding and calls of other hosts included."""
        ...

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""
        ...

    async def sample(self, sample: Sample) -> tuple[Said, int]:
        """Sample in some rows; return what each said, and for how many tokens the program ran."""
        ...

    def take_weights(self, params: Any) -> None:
        """Go on with other weights."""
        ...

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Have nothing to call before the event is set; where it `holds_up` the others, they call nothing so long."""
        ...

    async def leave(self, *, failed: bool) -> None:
        """Have nothing to call any more, because all is done or because something has failed."""
        ...

    def close(self) -> None:
        """Give the memory of pages back; nobody calls again."""
        ...


class XLADevice:
    """Pages of one model on the devices of the mesh in force, or on the first one; two programs that work on them.

    Where there are several hosts, each gives the rows of its own shards, if it has any, and is told of these; all make
    the same calls, in the same order (`SharedDevice`). `own_pages` are then those that all have agreed on.
    """

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        limits: Limits,
        *,
        end_ids: tuple[int, ...],
    ):
        """Make the pages, which hold numbers of the model's type; messages end with one of `end_ids`."""
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
        # Hosts agree on a call in a few numbers (`SharedDevice`), and whether a row is penalised is none of them.
        self.penalizes = jax.process_count() == 1
        self._copies_pages = copies_pages(model_config.dtype, model_config.head_dim, limits.page_tokens)
        self._shapes: set[tuple[Any, ...]] = set()
        self.row_steps = 0

    @property
    def num_programs(self) -> int:
        """Shapes compiled so far."""
        return len(self._shapes)

    def take_weights(self, params: Params) -> None:
        """Go on with other weights; the pages keep what they hold, so nobody may read them."""
        self._params = layers_apart(params)

    def close(self) -> None:
        """Give the memory of pages back; nobody calls again."""
        # At once, whoever still knows of this device: the learner's step needs the room.
        for pages in jax.tree.leaves(self._pages):
            pages.delete()
        self._params = {}
        _THREADS.submit(give_back)  # 3 to 100 ms that nobody waits for

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait: nobody else calls."""
        await until.wait()

    async def leave(self, *, failed: bool) -> None:
        """Nobody else calls, so nobody is to be told."""

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""
        with self._new_pages_after_failure():
            await off_the_loop(self._read, read, threads=_THREADS)

    async def sample(self, sample: Sample, own_pages: int | None = None) -> tuple[Said, int]:
        """Sample in some rows; return what each said, and for how many tokens the program ran."""
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
        """Return how many pages behind their prefix the rows of a call have at most."""
        rows = sample.all_rows()
        return max((len(row.track.table) - row.track.prefix_pages(self._limits) for row in rows), default=0)

    @contextlib.contextmanager
    def _new_pages_after_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # Some of the old ones were given to the call that failed; for both there may be no room.
            for pages in jax.tree.leaves(self._pages):
                pages.delete()
            self._pages = self._empty_pages()
            raise

    def _read(self, read: Read) -> None:
        given = self._over_hosts(given_of(read, self._limits, self.num_shards))
        self._shapes.add(("read", self.num_shards, read.most_rows, read.most_tokens, read.begins))
        self._pages = read_tokens(self._model_config, self._params, self._pages, given, begins=read.begins)

    def _kind_of(self, sample: Sample, own_pages: int) -> _Kind:
        is_penalized = any(row.track.sampling.is_penalized for row in sample.all_rows() if row.track.sampling)
        kinds = (kind for kind in self._kinds(sample.shape) if kind.is_penalized == is_penalized)
        return next(kind for kind in kinds if kind.own_table_pages >= own_pages)

    def _kinds(self, shape: RowShape) -> list[_Kind]:
        """Return the programs that sample in rows of a shape, of each sort the shortest tables first."""
        # The length of a table costs a kernel nothing, and every size is one more program; penalties are rare.
        longest = self._limits.own_table_pages[-1:]
        sizes = self._limits.own_table_sizes(shape) if self._copies_pages else longest
        kinds = [_Kind(shape, size, is_penalized=False) for size in sizes]
        return kinds + [_Kind(shape, size, is_penalized=True) for size in longest if self.penalizes]

    def _sample(self, sample: Sample, kind: _Kind) -> tuple[Said, int]:
        asked = asked_of(sample, self._limits, self.num_shards, kind.own_table_pages)
        self._shapes.add(("sample", *kind))
        self._pages, sampled = sample_rows(
            self._model_config,
            self._params,
            self._pages,
            *self._over_hosts(asked),
            np.int32(sample.leave_at),
            penalties_of(sample, self._limits, self.num_shards) if kind.is_penalized else None,
            end_ids=self._end_ids,
            max_tokens=self._limits.sample_tokens,
        )
        said, steps = said_of(sample, sampled, self._of_this_host), int(sampled.steps)
        self.row_steps += steps * self.num_shards * sample.shape.prefixes * sample.shape.rows_per_prefix
        return said, steps

    def _over_hosts(self, rows: _T) -> _T:
        """Return arrays [D, …] over the shards of all hosts, from those of this one."""
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
        """Return the part [d, …] of an array over all shards that belongs to this host's."""
        if jax.process_count() == 1:
            return np.asarray(x)
        parts = {part.index[0].indices(len(x))[0]: part.data for part in x.addressable_shards}
        own = [np.asarray(parts[shard]) for shard in self._shards]
        return np.concatenate(own) if own else np.zeros((0, *x.shape[1:]), x.dtype)


@jax.jit
def _of_first_device(rows: _T) -> _T:
    """Return arrays [D, …] from [D, devices of a shard, …]: the first device knows its shard's rows.

    The others may belong to another host, which does not.
    """
    return jax.tree.map(lambda x: constrain(x[:, 0], "batch", *["slots"] * (x.ndim - 2)), rows)


async def off_the_loop(call: Callable[..., _T], *args: Any, threads: Executor | None = None) -> _T:
    """Call what waits for the devices in one of these `threads`, or in any, under the mesh that is in force here."""
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
