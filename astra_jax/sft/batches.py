"""The batches of an SFT run: records in, padded or packed rows out, made in the background ahead of the step.

    records ─► samples, rendered when needed ─► schedule (pure) ─► this host's rows of a step ─► Grain's threads ─► step

A step number is the whole position: any step's batch can be made at any time, on any number of hosts.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import grain
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import ConfigError
from astra_jax.sft.data import SFTBatch, make_batch
from astra_jax.sft.sample_source import SampleSource
from astra_jax.sft.schedule import batch_schedule, rows_per_batch
from synthesis.records import SimilarityBand

_BATCHES_AHEAD = 4
_THREADS = 4


class SFTDataConfig(BaseModel):
    """What to learn from, in which batches, for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = Field(ge=0, lt=2**31)
    """Seed of every random draw, from 0 to 2³¹ − 1."""
    steps: int | None = Field(default=None, gt=0)
    """Optimiser updates of the run; a run has either this or `epochs`."""
    epochs: int | None = Field(default=None, gt=0)
    """Passes over all samples; a run has either this or `steps`."""
    trajectories: tuple[Path, ...] = ()
    """Record directories of trajectories."""
    environments: tuple[Path, ...] = ()
    """Record directories of environments, whose demonstrations are learnt: gold episodes, or episodes with a habit."""
    environments_share: float = Field(default=1.0, ge=0, le=1)
    """Share of each such directory that is learnt from, its first records; the paper's SFT learns from none."""
    conversations: tuple[Path, ...] = ()
    """Files of JSON lines with `messages` and `tools` in OpenAI's form."""
    irrelevant_per_band: dict[SimilarityBand, int] = {}
    """K: the most distractors of each similarity band that a gold episode shows."""
    length_buckets: tuple[int, ...] = Field(min_length=1)
    """Lengths in tokens that rows are padded to, rising; a sample over the largest is dropped and counted."""
    packing: bool = False
    """Whether a row holds several samples, apart by segments; each row then has the length of the largest bucket."""
    batch_tokens: int = Field(gt=0)
    """Tokens per step, padding included."""

    @model_validator(mode="after")
    def _check(self) -> SFTDataConfig:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"expected either steps or epochs, found steps={self.steps} and epochs={self.epochs}")
        if any(low >= high for low, high in zip((0, *self.length_buckets), self.length_buckets, strict=False)):
            raise ValueError(f"expected length_buckets that rise from above 0, found {list(self.length_buckets)}")
        return self

    @property
    def batch_shapes(self) -> list[tuple[int, int]]:
        """Rows and tokens per row of every batch that can occur."""
        buckets = self.length_buckets[-1:] if self.packing else self.length_buckets
        return [(rows_per_batch(self.batch_tokens, bucket), bucket) for bucket in buckets]


class StepBatches(ABC):
    """The batches of a run by step number: a Grain data source of numpy arrays."""

    fingerprint: str
    """Differs when the data or its order differs."""

    @abstractmethod
    def __len__(self) -> int:
        """The steps of the run."""

    @abstractmethod
    def num_rows(self, step: int) -> int:
        """Return how many rows a step's batch has over all hosts."""

    @abstractmethod
    def segment_tokens(self, step: int) -> list[int]:
        """Return how many tokens each sample in a step's batch has, over all hosts, padding left out."""

    @abstractmethod
    def __getitem__(self, step: int) -> SFTBatch:
        """Make this host's rows of the batch of one step."""

    def position(self, step: int) -> dict[str, Any]:
        """Return what a checkpoint keeps so that the run goes on with the batch of `step`."""
        return {"step": step, "fingerprint": self.fingerprint}

    def from_position(self, position: dict[str, Any]) -> grain.DatasetIterator[SFTBatch]:
        """Iterate from a position, or from the first step (`{}`), over batches that threads make ahead.

        Close the iterator to end the threads.

        Raises:
            ConfigError: the position is one in other data, or in the same data in another order.
        """
        if position and (expected := position.get("fingerprint")) != self.fingerprint:
            raise ConfigError(
                f"expected the data that the checkpoint was trained on (fingerprint {expected}), found "
                f"{self.fingerprint}: records, tokenizer, seed or the layout of batches have changed; "
                "restore them, or give another `out`"
            )
        remaining = grain.MapDataset.source(self).slice(slice(position.get("step", 0), None))
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=_BATCHES_AHEAD)
        iterator = iter(remaining.to_iter_dataset(options))
        iterator.start_prefetch()
        return iterator


class SFTBatches(StepBatches):
    """The batches of a run that learns from records and conversations."""

    def __init__(
        self,
        config: SFTDataConfig,
        tokenizer: Tokenizer,
        *,
        index: Path,
        host_rows: Callable[[int], slice] = slice,
    ):
        """Work out the whole schedule; `index` is the file of sample lengths, written by the first run.

        `host_rows` says which of so many rows of a batch this host makes (all of them, unless told otherwise): over all
        hosts they make up the batch that a single host would have made.

        Raises:
            RecordDirectoryError: a record directory is missing, damaged, or of another kind or schema version.
            ConversationUnreadable: a line of a file of conversations is none.
            ConfigError: no sample is short enough.
        """
        self._samples = SampleSource(
            config.trajectories,
            config.environments,
            config.conversations,
            tokenizer,
            environments_share=config.environments_share,
            irrelevant_per_band=config.irrelevant_per_band,
            seed=config.seed,
            index=index,
        )
        order = config.model_dump(mode="json", include={"seed", "length_buckets", "packing", "batch_tokens"})
        self._schedule = batch_schedule(
            self._samples.lengths_tokens.tolist(), steps=config.steps, epochs=config.epochs, **order
        )
        self.fingerprint = sha256(json.dumps([self._samples.fingerprint, order]).encode()).hexdigest()[:16]
        self._host_rows = host_rows
        self._pad_id = tokenizer.pad_id
        over_length = self._samples.lengths_tokens > config.length_buckets[-1]
        self.num_dropped_over_length = int(np.count_nonzero(over_length))
        self.num_samples = len(self._samples) - self.num_dropped_over_length

    def __len__(self) -> int:
        """The steps of the run."""
        return len(self._schedule)

    def num_rows(self, step: int) -> int:
        """Return how many rows a step's batch has over all hosts."""
        return self._schedule[step].num_rows

    def segment_tokens(self, step: int) -> list[int]:
        """Return how many tokens each sample in a step's batch has, over all hosts, padding left out."""
        return [int(self._samples.lengths_tokens[number]) for row in self._schedule[step].rows for number in row]

    def __getitem__(self, step: int) -> SFTBatch:
        """Make this host's rows of the batch of one step.

        Raises:
            ConfigError: a sample no longer has the length that was written down.
        """
        num_rows, row_tokens, rows = self._schedule[step]
        # `rows` may be fewer than `num_rows`; this host's share is of all of them, the padding included.
        mine = self._host_rows(num_rows)
        samples = [[self._samples[number] for number in row] for row in rows[mine]]
        return make_batch(samples, num_rows=len(range(num_rows)[mine]), row_tokens=row_tokens, pad_id=self._pad_id)
