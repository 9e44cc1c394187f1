"""Random access to SFT samples of known lengths, rendered when they are needed.

The schedule needs the lengths of all samples, and only rendering tells them: each run renders everything once.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Final

import grain
import numpy as np
from tqdm import tqdm

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.conversations import Conversation, ConversationFile
from astra_jax.sft.data import SFTSample, gold_sample, render_sample, user_turn_ends
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Trajectory

_THREADS = 8
"""Threads that render when everything is measured: a tokenizer releases Python's lock."""
_RECORD_TYPES: Final = (Trajectory, Environment, Conversation)
"""Record type of each of `KINDS`, in its order."""
_KEPT_TOKENS = 2**24
"""Tokens of the samples that stay in memory once rendered (128 MiB): all of a small set, the first of a large one."""


class SampleSource:
    """The samples of all records: one per answered user turn of a trajectory or conversation, one per environment.

    Several threads may read it at the same time.
    """

    lengths_tokens: np.ndarray
    """The tokens of each sample, int32 [samples]."""
    is_held_out: np.ndarray
    """Whether nothing is learnt from each sample [samples]; a record's samples are held out together."""

    def __init__(self, config: SFTDataConfig, tokenizer: Tokenizer):
        """Render everything once."""
        self._config, self._tokenizer = config, tokenizer
        self._directories: list[RecordSource[Trajectory] | RecordSource[Environment] | ConversationFile] = [
            *(RecordSource(directory, Trajectory) for directory in config.trajectories),
            *(RecordSource(directory, Environment) for directory in config.environments),
            *(ConversationFile(file) for file in config.conversations),
        ]
        self._kept: list[SFTSample] = []
        places, lengths, num_tokens = [], [], 0
        for place, sample in self._all_samples():
            num_tokens += len(sample.ids)
            if num_tokens <= _KEPT_TOKENS:
                self._kept.append(sample)
            places.append(place)
            lengths.append(len(sample.ids))
        # Rows of directory, record, and number of its messages that the sample shows.
        self._places = np.array(places, np.int32).reshape(-1, 3)
        self.lengths_tokens = np.array(lengths, np.int32)
        # By the place of a record alone: another record in the same file changes nothing.
        draws = (random.Random(f"{config.seed}/held out/{place[:2]}").random() for place in places)
        self.is_held_out = np.array([draw < config.held_out_share for draw in draws], bool)

    def __len__(self) -> int:
        return len(self.lengths_tokens)

    def __getitem__(self, number: int) -> SFTSample:
        if number < len(self._kept):
            return self._kept[number]
        directory, record_number, num_messages = self._places[number].tolist()
        return self._render(self._directories[directory][record_number], num_messages)

    def _render(self, record: Trajectory | Environment | Conversation, num_messages: int) -> SFTSample:
        if isinstance(record, Environment):
            per_band, seed = self._config.irrelevant_per_band, self._config.seed
            sample = gold_sample(
                record, self._tokenizer, irrelevant_per_band=per_band, seed=seed, num_messages=num_messages
            )
        else:
            sample = render_sample(record.messages[:num_messages], record.tools, self._tokenizer)
        return dataclasses.replace(sample, kind=1 + _RECORD_TYPES.index(type(record)))

    def _all_samples(self) -> Iterator[tuple[tuple[int, int, int], SFTSample]]:
        records = [(i, number) for i, source in enumerate(self._directories) for number in range(len(source))]
        if not records:
            return

        def render(place: tuple[int, int]) -> list[tuple[tuple[int, int, int], SFTSample]]:
            directory, number = place
            record = self._directories[directory][number]
            messages = record.gold_messages() if isinstance(record, Environment) else record.messages
            return [((directory, number, end), self._render(record, end)) for end in user_turn_ends(messages)]

        # Grain's threads finish in any order, but its iterator yields in the order of the records.
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=4 * _THREADS)
        rendered = grain.MapDataset.source(records).map(render).to_iter_dataset(options)
        for samples in tqdm(rendered, "sft: rendering", len(records), unit=" records", leave=False, disable=None):
            yield from samples
