"""The batches of an SFT run: records in, padded or packed rows out, made ahead of the step.

    records ─► samples, rendered when needed ─► schedule (pure) ─► this host's rows of a step ─► Grain's threads ─► step

A step number is the whole position: any step's batch can be made at any time, on any number of hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import grain
import numpy as np

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import ConfigError
from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.data import SFTBatch, make_batch
from astra_jax.sft.sample_source import SampleSource
from astra_jax.sft.schedule import ScheduledBatch, batch_schedule

_BATCHES_AHEAD = 4
_THREADS = 4


class SFTBatches:
    """The batches of a run by step number: a Grain data source of numpy arrays."""

    def __init__(self, config: SFTDataConfig, tokenizer: Tokenizer, *, host_rows: Callable[[int], slice] = slice):
        """Compute the whole schedule.

        `host_rows` maps the number of rows of a batch to the slice that this host makes, by default all. The slices of
        all hosts make up the batch of a single host.

        Raises:
            RecordDirectoryError: a record directory is missing, damaged, or of another kind or schema version.
            ConversationUnreadable: a line of a file of conversations is not a conversation.
            ConfigError: no sample is short enough, or none of those that are held out.
        """
        samples = self._samples = SampleSource(config, tokenizer)
        over_length = samples.lengths_tokens > config.length_buckets[-1]

        def scheduled(is_in: np.ndarray, steps: int | None, epochs: int | None) -> list[ScheduledBatch]:
            return batch_schedule(
                np.where(is_in, samples.lengths_tokens, config.length_buckets[-1] + 1).tolist(),
                length_buckets=config.length_buckets,
                num_rows=config.num_rows,
                packing=config.packing,
                seed=config.seed,
                steps=steps,
                epochs=epochs,
            )

        self._schedule = scheduled(~samples.is_held_out, config.steps, config.epochs)
        self._held_out: list[ScheduledBatch] = []
        if config.held_out_share:
            if not np.any(samples.is_held_out & ~over_length):
                raise ConfigError(f"held_out_share = {config.held_out_share} holds out no sample; raise it")
            self._held_out = scheduled(samples.is_held_out, None, 1)
        self._host_rows = host_rows
        self._pad_id = tokenizer.pad_id
        self.num_dropped_over_length = int(np.count_nonzero(over_length))
        self.num_samples = int(np.count_nonzero(~over_length & ~samples.is_held_out))

    def __len__(self) -> int:
        """Return the number of steps of the run."""
        return len(self._schedule)

    def num_rows(self, step: int) -> int:
        """Return the number of rows of a step's batch, over all hosts."""
        return self._schedule[step].num_rows

    def segment_tokens(self, step: int) -> list[int]:
        """Return the tokens of each sample in a step's batch, over all hosts, without padding."""
        return [int(self._samples.lengths_tokens[number]) for row in self._schedule[step].rows for number in row]

    def __getitem__(self, step: int) -> SFTBatch:
        """Make this host's rows of the batch of one step."""
        return self._made(self._schedule[step])

    def held_out(self) -> Iterator[tuple[SFTBatch, int]]:
        """Make this host's rows of each batch that nothing is learnt from, and say how many all hosts have."""
        return ((self._made(batch), batch.num_rows) for batch in self._held_out)

    def _made(self, batch: ScheduledBatch) -> SFTBatch:
        num_rows, row_tokens, rows = batch
        # `rows` may be fewer than `num_rows`; this host's share is of all of them, the padding included.
        mine = self._host_rows(num_rows)
        samples = [[self._samples[number] for number in row] for row in rows[mine]]
        return make_batch(samples, num_rows=len(range(num_rows)[mine]), row_tokens=row_tokens, pad_id=self._pad_id)

    def from_step(self, step: int) -> grain.DatasetIterator[SFTBatch]:
        """Iterate over the batches from `step` on, which threads make ahead; close the iterator to end the threads."""
        remaining = grain.MapDataset.source(self).slice(slice(step, None))
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
        iterator = iter(remaining.to_iter_dataset(options))
        iterator.start_prefetch()
        return iterator
