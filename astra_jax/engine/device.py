"""The pages on the devices, and the calls of compiled programs that a schedule asks for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.engine.kv_pages import Histories, empty_pages
from astra_jax.engine.penalties import Penalties
from astra_jax.engine.programs import Asked, Given, Sampled, read_tokens, sample_rows
from astra_jax.engine.schedule import Copy, Limits, Read, RowShape, SaidRow, Sample, SampleRow, Track
from astra_jax.engine.triton_pages import has_kernel
from astra_jax.freed_memory import give_back, give_back_around_compiling
from astra_jax.mesh.placement import host_shards, in_force, on_devices
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, layers_apart
from astra_jax.model.sharding import MESH_AXES, ambient_mesh, constrain, spec

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
        self._has_kernel = has_kernel(model_config.dtype, model_config.head_dim, limits.page_tokens)
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
        return max((len(row.track.table) - self._limits.read_prefix_pages(row.track) for row in rows), default=0)

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
        limits, num_tokens = self._limits, read.most_tokens
        rows = [of_shard + [None] * (read.most_rows - len(of_shard)) for of_shard in read.rows]
        shape = (self.num_shards, read.most_rows)
        tables, tokens = (
            np.zeros((*shape, limits.pages_for(limits.max_tokens)), np.int32),
            np.zeros((*shape, num_tokens), np.int32),
        )
        starts, counts = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for place, row in _enumerated(rows):
            if row is not None:
                tables[place][: len(row.track.table)] = row.track.table
                tokens[place][: len(row.ids)] = row.ids
                starts[place], counts[place] = row.track.num_cached, len(row.ids)
        self._shapes.add(("read", shape, num_tokens, read.begins))
        copies = self._copies([None if row is None else row.copy for of_shard in rows for row in of_shard], shape)
        given = self._over_hosts(Given(tables, starts, tokens, counts, copies))
        self._pages = read_tokens(self._model_config, self._params, self._pages, given, begins=read.begins)

    def _kind_of(self, sample: Sample, own_pages: int) -> _Kind:
        is_penalized = any(row.track.sampling.is_penalized for row in sample.all_rows() if row.track.sampling)
        kinds = (kind for kind in self._kinds(sample.shape) if kind.is_penalized == is_penalized)
        return next(kind for kind in kinds if kind.own_table_pages >= own_pages)

    def _kinds(self, shape: RowShape) -> list[_Kind]:
        """Return the programs that sample in rows of a shape, of each sort the shortest tables first."""
        # The length of a table costs a kernel nothing, and every size is one more program; penalties are rare.
        longest = self._limits.own_table_pages[-1:]
        sizes = longest if self._has_kernel else self._limits.own_table_sizes(shape)
        kinds = [_Kind(shape, size, is_penalized=False) for size in sizes]
        return kinds + [_Kind(shape, size, is_penalized=True) for size in longest if self.penalizes]

    def _sample(self, sample: Sample, kind: _Kind) -> tuple[Said, int]:
        prefixes, width = sample.shape
        filled = [
            [
                of_prefix + [None] * (width - len(of_prefix))
                for of_prefix in of_shard + [[]] * (prefixes - len(of_shard))
            ]
            for of_shard in sample.rows
        ]
        flat: list[list[SampleRow | None]] = [
            [row for of_prefix in of_shard for row in of_prefix] for of_shard in filled
        ]
        shape = (self.num_shards, prefixes * width)
        asked = {name: np.zeros(shape, np.int32) for name in Asked._fields}
        for name in ("temperature_DR", "top_p_DR", "min_p_DR"):
            asked[name] = np.zeros(shape, np.float32)
        for place, row in _enumerated(flat):
            if row is not None:
                self._ask(asked, place, row)
        tracks = [
            [[None if row is None else row.track for row in of_prefix] for of_prefix in of_shard] for of_shard in filled
        ]
        histories = self._histories(tracks, kind)
        penalties = self._penalties(flat, shape) if kind.is_penalized else None
        self._shapes.add(("sample", *kind))
        copies = self._copies([None if row is None else row.copy for of_shard in flat for row in of_shard], shape)
        self._pages, sampled = sample_rows(
            self._model_config,
            self._params,
            self._pages,
            *self._over_hosts((histories, Asked(**asked), copies)),
            np.int32(sample.leave_at),
            penalties,
            end_ids=self._end_ids,
            max_tokens=self._limits.sample_tokens,
        )
        said, steps = self._said(flat, sampled), int(sampled.steps)
        self.row_steps += steps * self.num_shards * prefixes * width
        return said, steps

    def _said(self, flat: list[list[SampleRow | None]], sampled: Sampled) -> Said:
        """Return what each row said; here the host waits for the devices."""
        asked = [(place, row.track.sampling) for place, row in _enumerated(flat) if row is not None]
        # As large as all the rest sixty times: it stays where it is unless somebody wants it.
        kept = self._of_this_host(sampled.kept_DRTK) if any(how.hands_out_kept for _, how in asked) else None
        columns = [*map(self._of_this_host, (sampled.ids_DRT, sampled.logprobs_DRT, sampled.raw_logprobs_DRT))]
        counts = self._of_this_host(sampled.counts_DR)
        said = []
        for place, how in asked:
            ids, logprobs, raw_logprobs = (column[place][: counts[place]].tolist() for column in columns)
            of_row = SaidRow(ids, logprobs, raw_logprobs, [])
            if kept is not None and how.hands_out_kept:
                of_row.kept.extend(of_token[of_token >= 0].tolist() for of_token in kept[place][: counts[place]])
            said.append(of_row)
        return said

    @staticmethod
    def _ask(asked: dict[str, np.ndarray], place: tuple[int, int], row: SampleRow) -> None:
        track = row.track
        assert track.sampling is not None
        for name, value in (
            ("pending_DR", track.ids[-1]),
            ("limit_DR", row.max_tokens),
            ("drawn_DR", len(track.ids) - track.num_prompt_tokens),
            ("seed_DR", track.session.seed),
            ("slot_DR", track.session.slot),
            ("temperature_DR", track.sampling.temperature),
            ("top_k_DR", track.sampling.top_k or 0),
            ("top_p_DR", track.sampling.top_p),
            ("min_p_DR", track.sampling.min_p),
        ):
            asked[name][place] = value

    def _penalties(self, flat: list[list[SampleRow | None]], shape: tuple[int, int]) -> Penalties:
        """Return the texts of rows, and what they are penalised by."""
        asked = [(place, row.track) for place, row in _enumerated(flat) if row is not None]
        penalties = Penalties(
            ids_DRL=np.full((*shape, self._limits.max_tokens), -1, np.int32),
            num_given_DR=np.zeros(shape, np.int32),
            presence_DR=np.zeros(shape, np.float32),
            frequency_DR=np.zeros(shape, np.float32),
            repetition_DR=np.ones(shape, np.float32),
        )
        for place, track in asked:
            assert track.sampling is not None
            penalties.ids_DRL[place][: len(track.ids)] = track.ids
            penalties.num_given_DR[place] = len(track.ids) - len(track.said)
            penalties.presence_DR[place] = track.sampling.presence_penalty
            penalties.frequency_DR[place] = track.sampling.frequency_penalty
            penalties.repetition_DR[place] = track.sampling.repetition_penalty
        return penalties

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

    def _histories(self, tracks: list[list[list[Track | None]]], kind: _Kind) -> Histories:
        """Return where the tokens of rows lie, and where their new ones go."""
        page_tokens = self._limits.page_tokens
        num_prefixes, width = kind.shape
        prefix_tables = np.zeros((self.num_shards, num_prefixes, self._limits.prefix_table_pages), np.int32)
        prefix_pages = np.zeros((self.num_shards, num_prefixes), np.int32)
        owns: list[tuple[tuple[int, int], list[int], int]] = []
        for shard, of_shard in enumerate(tracks):
            for number, of_prefix in enumerate(of_shard):
                for row, track in enumerate(of_prefix):
                    if track is None:
                        continue
                    count = self._limits.read_prefix_pages(track)
                    prefix_tables[shard, number, :count] = track.table[:count]
                    prefix_pages[shard, number] = count
                    owns.append(
                        ((shard, number * width + row), track.table[count:], track.num_cached - count * page_tokens)
                    )
        own_tables = np.zeros((self.num_shards, num_prefixes * width, kind.own_table_pages), np.int32)
        own_counts = np.zeros((self.num_shards, num_prefixes * width), np.int32)
        for place, table, count in owns:
            own_tables[place][: len(table)] = table
            own_counts[place] = count
        return Histories(prefix_tables, prefix_pages, own_tables, own_counts)

    def _copies(self, copies: Sequence[Copy | None], shape: tuple[int, int]) -> np.ndarray:
        nothing = (0, self._limits.num_pages)  # beyond the last page: no copy
        return np.array([nothing if copy is None else copy for copy in copies], np.int32).reshape(*shape, 2)


def num_shards() -> int:
    """Return over how many shards of the batch the mesh in force deals rows and pages out."""
    mesh = ambient_mesh()
    return 1 if mesh is None else int(mesh.shape["data"] * mesh.shape["fsdp"])


def num_hosts() -> int:
    """Return how many hosts have devices of the mesh in force, be they there or only planned for."""
    mesh = jax.sharding.get_mesh()
    return 1 if mesh.empty else len({device.process_index for device in mesh.devices.flat})


@jax.jit
def _of_first_device(rows: _T) -> _T:
    """Return arrays [D, …] from [D, devices of a shard, …]: the first device knows its shard's rows.

    The others may belong to another host, which does not.
    """
    return jax.tree.map(lambda x: constrain(x[:, 0], "batch", *["slots"] * (x.ndim - 2)), rows)


def own_shards() -> tuple[int, ...]:
    """Return which of them are this host's: it schedules their rows."""
    return tuple(range(num_shards())) if jax.process_count() == 1 else host_shards(jax.sharding.get_mesh())


def _enumerated(rows: Sequence[Sequence[Any]]) -> list[tuple[tuple[int, int], Any]]:
    return [((shard, number), row) for shard, of_shard in enumerate(rows) for number, row in enumerate(of_shard)]


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
