"""The arrays of a call, made of the rows of a schedule, and the rows made of its results.

All arrays are the host's, over the shards that it schedules. A row without a sequence is padding, all zeros.

Dimensions as in `programs`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np

from astra_jax.engine.kv_pages import Histories
from astra_jax.engine.programs import Asked, Given, Sampled
from astra_jax.engine.sizes import Limits
from astra_jax.engine.tracks import Read, SaidRow, Sample, SampleRow

_REAL = ("temperature_DR", "top_p_DR", "min_p_DR")


def given_of(read: Read, limits: Limits, num_shards: int) -> Given:
    """Return the arrays of a call that reads."""
    shape = (num_shards, read.most_rows)
    given = Given(
        tables_DRn=np.zeros((*shape, limits.pages_for(limits.max_tokens)), np.int32),
        starts_DR=np.zeros(shape, np.int32),
        tokens_DRT=np.zeros((*shape, read.most_tokens), np.int32),
        counts_DR=np.zeros(shape, np.int32),
    )
    # Tables are as long as the longest sequence; their zeros behind a row's pages name page 0, which is not looked at.
    for shard, of_shard in enumerate(read.rows):
        for number, (track, ids) in enumerate(of_shard):
            place = shard, number
            given.tables_DRn[place][: len(track.table)] = track.table
            given.tokens_DRT[place][: len(ids)] = ids
            given.starts_DR[place], given.counts_DR[place] = track.num_cached, len(ids)
    return given


def asked_of(sample: Sample, limits: Limits, num_shards: int, own_table_pages: int) -> tuple[Histories, Asked]:
    """Return the arrays of a call that samples: histories, and orders to the rows."""
    prefixes, width = sample.shape
    shape = (num_shards, prefixes * width)
    histories = Histories(
        prefix_tables_DPn=np.zeros((num_shards, prefixes, limits.prefix_table_pages), np.int32),
        prefix_pages_DP=np.zeros((num_shards, prefixes), np.int32),
        own_tables_DRn=np.zeros((*shape, own_table_pages), np.int32),
        own_counts_DR=np.zeros(shape, np.int32),
    )
    asked = Asked(*(np.zeros(shape, np.float32 if name in _REAL else np.int32) for name in Asked._fields))
    for (shard, row), (track, max_tokens) in placed(sample):
        assert track.sampling is not None
        # Rows of one prefix have the same first pages: it is told once, and only the pages behind it row by row.
        num_prefix = track.prefix_pages(limits)
        prefix, own = track.table[:num_prefix], track.table[num_prefix:]
        histories.prefix_tables_DPn[shard, row // width, :num_prefix] = prefix
        histories.prefix_pages_DP[shard, row // width] = num_prefix
        histories.own_tables_DRn[shard, row, : len(own)] = own
        histories.own_counts_DR[shard, row] = track.num_cached - num_prefix * limits.page_tokens
        # The last token so far is pending: the program computes it first, and samples from its logits.
        values: dict[str, float] = {
            "pending_DR": track.ids[-1],
            "limit_DR": max_tokens,
            "drawn_DR": len(track.ids) - track.num_prompt_tokens,
            "seed_DR": track.session.seed,
            "slot_DR": track.session.slot,
            "temperature_DR": track.sampling.temperature,
            "top_k_DR": track.sampling.top_k or 0,
            "top_p_DR": track.sampling.top_p,
            "min_p_DR": track.sampling.min_p,
        }
        for name, value in values.items():
            getattr(asked, name)[shard, row] = value
    return histories, asked


def said_of(sample: Sample, sampled: Sampled, of_this_host: Callable[[jax.Array], np.ndarray]) -> list[SaidRow]:
    """Return the tokens that each row said, in the order of `Sample.all_rows`; here the host waits for the devices."""
    rows = list(placed(sample))
    wants_kept = [track.sampling is not None and track.sampling.hands_out_kept for _, (track, _) in rows]
    # Sixty times as large as all the others together: it stays on the devices unless a row wants it.
    kept = of_this_host(sampled.kept_DRTK) if any(wants_kept) else None
    columns = [*map(of_this_host, (sampled.ids_DRT, sampled.logprobs_DRT))]
    counts = of_this_host(sampled.counts_DR)
    said = []
    for (place, _), wants in zip(rows, wants_kept, strict=True):
        count = counts[place]
        ids, logprobs = (column[place][:count].tolist() for column in columns)
        of_tokens = kept[place][:count] if kept is not None and wants else []
        said.append(SaidRow(ids, logprobs, [of_token[of_token >= 0].tolist() for of_token in of_tokens]))
    return said


def placed(sample: Sample) -> Iterator[tuple[tuple[int, int], SampleRow]]:
    """Yield the rows of a call, each with its place: shard, and number among the rows of that shard."""
    for shard, of_shard in enumerate(sample.rows):
        for prefix, of_prefix in enumerate(of_shard):
            for number, row in enumerate(of_prefix):
                yield (shard, prefix * sample.shape.rows_per_prefix + number), row
