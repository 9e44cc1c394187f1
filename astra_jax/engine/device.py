"""The pages on the devices, and the calls of compiled programs that a schedule asks for.

Device       the contract: read, sample, idle, leave, close
XLADevice    pages and programs of JAX, for the shards of one host
given_of, asked_of, said_of    the arrays of a call, made of rows, and the rows made of its results

Dimensions of arrays as in `programs`; those of the host are over the shards that it schedules.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeAlias, TypeVar

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from astra_jax.engine.kv_pages import empty_pages
from astra_jax.engine.programs import Asked, Given, Sampled, read_tokens, sample_rows
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, SaidRow, Sample
from astra_jax.engine.triton_pages import has_kernel
from astra_jax.mesh.placement import in_force, num_shards, on_devices, own_shards
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, layers_apart
from astra_jax.model.sharding import MESH_AXES, constrain, spec

_T = TypeVar("_T")
Said: TypeAlias = list[SaidRow]
"""Tokens of each row of a call, in the order of `Sample.all_rows`."""


class Device(Protocol):
    """Pages and programs that carry out a schedule. A call does not hold up the event loop."""

    num_shards: int
    """Shards of the batch whose rows this host schedules."""
    vocab_size: int
    """Ids of the model's vocabulary."""

    @property
    def row_steps(self) -> int:
        """Rows of this host × tokens of all calls that sampled, with padding and the calls of other hosts."""

    @property
    def waited_seconds(self) -> float:
        """Seconds of this host's calls in which others had not come to agree on them."""

    @property
    def left_seconds(self) -> float:
        """Seconds in which this host had ended, and others had not."""

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""

    async def sample(self, sample: Sample) -> Said:
        """Sample in some rows; return the tokens of each."""

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait for the event, without calls of its own; with `holds_up` other hosts make no calls meanwhile either."""

    async def leave(self, *, failed: bool) -> None:
        """Make no call any more, because all messages are done or because something has `failed`."""

    def close(self) -> None:
        """Free the memory of pages and weights; no call follows."""


class XLADevice:
    """Pages of one model on the devices of the mesh in force, or on the first device; a `Device`.

    With several hosts, each gives and gets the rows of its own shards, and all make the same calls in the same order
    (`SharedDevice`).
    """

    def __init__(self, model_config: ModelConfig, params: Params, limits: Limits, *, end_ids: tuple[int, ...]):
        """Make the pages, with numbers of the model's type; a message ends with one of `end_ids`."""
        self._model_config, self._limits, self._end_ids = model_config, limits, end_ids
        self._params = layers_apart(params)
        self._shards, self._mesh = own_shards(), jax.sharding.get_mesh()
        self.num_shards = len(self._shards)
        self.vocab_size = model_config.vocab_size
        make = jax.jit(empty_pages, static_argnums=(0, 1, 2, 3))
        sizes = (num_shards(), limits.num_pages, limits.page_tokens)
        self._empty_pages = lambda: on_devices(make(model_config, *sizes))
        self._pages = self._empty_pages()
        # A kernel reads no page beyond a row's own, however long its table is: one table is one program less.
        reads_in_place = has_kernel(model_config.dtype, model_config.head_dim, limits.page_tokens)
        self._tables = limits.tables[-1:] if reads_in_place else limits.tables
        self.row_steps = 0
        self.waited_seconds = self.left_seconds = 0.0  # there are no others

    def close(self) -> None:
        """Free the memory of pages and weights at once, even if this object lives on; no call follows."""
        self._delete_pages()
        self._params = {}

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        """Wait: there is no other host."""
        await until.wait()

    async def leave(self, *, failed: bool) -> None:
        """Do nothing: there is no other host to tell."""

    async def read(self, read: Read) -> None:
        """Read the given tokens of some rows."""
        with self._new_pages_after_failure():
            await off_the_loop(self._read, read)

    async def sample(self, sample: Sample) -> Said:
        """Sample in some rows; return the tokens of each."""
        with self._new_pages_after_failure():
            return await off_the_loop(self._sample, sample)

    async def compile_all(self) -> None:
        """Compile every program that a later call may need, by calls whose rows are all padding.

        Another thread calls them one by one, so that a signal ends this after the program that is being compiled.

        Decided: docs/decisions/serve.md, “A server compiles every program before it takes requests”.
        """
        nothing: list[list[Any]] = [[] for _ in range(self.num_shards)]
        for begins, most_rows, most_tokens in self._limits.read_kinds():
            await off_the_loop(self._read, Read(nothing, begins, most_rows, most_tokens))
        for count in self._limits.row_counts:
            for most_pages in self._tables:
                await off_the_loop(self._sample, Sample(nothing, count, most_pages, leave_at=0))

    @contextlib.contextmanager
    def _new_pages_after_failure(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            # The call that failed was given some of the old ones; memory may not suffice for old and new.
            self._delete_pages()
            self._pages = self._empty_pages()
            raise

    def _delete_pages(self) -> None:
        for pages in jax.tree.leaves(self._pages):
            pages.delete()

    def _read(self, read: Read) -> None:
        given = self._over_hosts(given_of(read, self._limits.longest_table))
        self._pages = read_tokens(self._model_config, self._params, self._pages, given, begins=read.begins)

    def _sample(self, sample: Sample) -> Said:
        most_pages = next(table for table in self._tables if table >= sample.most_pages)
        self._pages, sampled = sample_rows(
            self._model_config,
            self._params,
            self._pages,
            self._over_hosts(asked_of(sample, most_pages)),
            np.int32(sample.leave_at),
            end_ids=self._end_ids,
            max_tokens=self._limits.sample_tokens,
        )
        said = said_of(sample, sampled, self._of_this_host)
        self.row_steps += int(sampled.steps) * self.num_shards * sample.most_rows
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


async def off_the_loop(call: Callable[..., _T], *args: Any) -> _T:
    """Make a blocking call in a thread, under the mesh that is in force here."""
    mesh = jax.sharding.get_mesh()

    def under_the_mesh() -> _T:  # a thread begins without one
        with in_force(None if mesh.empty else mesh):
            return call(*args)

    # No task: the end of a loop cancels all tasks, and one would seem done while its thread runs.
    called = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, under_the_mesh)
    try:
        return await asyncio.shield(called)
    except asyncio.CancelledError:
        while not called.done():  # a thread cannot be stopped, and it holds weights and pages
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([called])
        raise


def given_of(read: Read, most_pages: int) -> Given:
    """Return the arrays of a call that reads."""
    shape = (len(read.rows), read.most_rows)
    given = Given(
        tables_DRn=np.zeros((*shape, most_pages), np.int32),
        starts_DR=np.zeros(shape, np.int32),
        tokens_DRT=np.zeros((*shape, read.most_tokens), np.int32),
        counts_DR=np.zeros(shape, np.int32),
    )
    # Zeros behind a row's pages name page 0, which is not looked at.
    for shard, of_shard in enumerate(read.rows):
        for number, (track, ids) in enumerate(of_shard):
            place = shard, number
            given.tables_DRn[place][: len(track.table)] = track.table
            given.tokens_DRT[place][: len(ids)] = ids
            given.starts_DR[place], given.counts_DR[place] = track.num_cached, len(ids)
    return given


def asked_of(sample: Sample, most_pages: int) -> Asked:
    """Return the arrays of a call that samples; a row without a sequence is padding, all zeros."""
    shape = (len(sample.rows), sample.most_rows)
    real = ("temperature_DR", "top_p_DR")
    asked = Asked(
        np.zeros((*shape, most_pages), np.int32),
        *(np.zeros(shape, np.float32 if name in real else np.int32) for name in Asked._fields[1:]),
    )
    for shard, of_shard in enumerate(sample.rows):
        for number, (track, max_tokens) in enumerate(of_shard):
            sampling = track.sampling
            assert sampling is not None
            asked.tables_DRn[shard, number, : len(track.table)] = track.table
            values: dict[str, float] = {
                "starts_DR": track.num_cached,
                "pending_DR": track.ids[-1],
                "limit_DR": max_tokens,
                "drawn_DR": len(track.ids) - track.num_prompt_tokens,
                "seed_DR": track.session.seed,
                "slot_DR": track.session.slot,
                "temperature_DR": sampling.temperature,
                "top_k_DR": sampling.top_k or 0,
                "top_p_DR": sampling.top_p,
            }
            for name, value in values.items():
                getattr(asked, name)[shard, number] = value
    return asked


def said_of(sample: Sample, sampled: Sampled, of_this_host: Callable[[jax.Array], np.ndarray]) -> Said:
    """Return the tokens that each row said; here the host waits for the devices."""
    ids, logprobs, counts = map(of_this_host, (sampled.ids_DRT, sampled.logprobs_DRT, sampled.counts_DR))
    places = [(shard, number) for shard, of_shard in enumerate(sample.rows) for number in range(len(of_shard))]
    return [
        SaidRow(ids[place][: counts[place]].tolist(), logprobs[place][: counts[place]].tolist()) for place in places
    ]
