"""Random access to SFT samples of known lengths, rendered from records and conversations when they are needed.

The schedule needs the lengths of all samples, and only rendering tells them. So everything is rendered once and the
lengths are written to a file, which a run that resumes reads.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

import grain
import numpy as np
from tqdm import tqdm

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import ConfigError
from astra_jax.sft.config import SFTDataConfig
from astra_jax.sft.conversations import Conversation, ConversationFile
from astra_jax.sft.data import SFTSample, demonstration_sample, render_sample, user_turn_ends
from synthesis.record_io import RecordSource
from synthesis.records import Environment, Trajectory
from synthesis.run.destination import whole_file

_log = logging.getLogger(__name__)

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

    def __init__(self, config: SFTDataConfig, tokenizer: Tokenizer, *, index: Path):
        """Read the lengths from the file `index`, or render everything once and write it.

        Raises:
            RecordDirectoryError: a directory is missing, damaged, or of another kind or schema version.
            ConversationUnreadable: a line of a file of conversations is not a conversation.
        """
        self._config, self._tokenizer, self._index = config, tokenizer, index
        environments = [RecordSource(directory, Environment) for directory in config.environments]
        self._directories: list[RecordSource[Trajectory] | RecordSource[Environment] | ConversationFile] = [
            *(RecordSource(directory, Trajectory) for directory in config.trajectories),
            *environments,
            *(ConversationFile(file) for file in config.conversations),
        ]
        self._num_records = [
            round(len(source) * config.environments_share) if source in environments else len(source)
            for source in self._directories
        ]
        self._rendered: dict[int, SFTSample] = {}
        self._fingerprint = self._digest()
        # Rows of directory, record, and number of its messages that the sample shows.
        self._places, self.lengths_tokens = self._read_index() or self._make_index()
        # The first pass keeps the same samples, so a resumed run has the same ones in memory.
        self._num_kept = int(np.searchsorted(np.cumsum(self.lengths_tokens), _KEPT_TOKENS, side="right"))

    def __len__(self) -> int:
        return len(self.lengths_tokens)

    def __getitem__(self, number: int) -> SFTSample:
        """Return one sample.

        Raises:
            ConfigError: it no longer has the length in the file of lengths.
        """
        if number in self._rendered:
            return self._rendered[number]
        directory, record_number, num_messages = self._places[number].tolist()
        sample = self._render(self._directories[directory][record_number], num_messages)
        if len(sample.ids) != self.lengths_tokens[number]:
            raise ConfigError(
                f"expected {self.lengths_tokens[number]} tokens in sample {number}, found {len(sample.ids)}: it was "
                f"measured by another version of the program; delete {self._index} and start the run anew"
            )
        # Without a lock: two threads may render the same sample at the same time, with the same result.
        if number < self._num_kept:
            self._rendered[number] = sample
        return sample

    def _render(self, record: Trajectory | Environment | Conversation, num_messages: int) -> SFTSample:
        if isinstance(record, Environment):
            per_band, seed = self._config.irrelevant_per_band, self._config.seed
            sample = demonstration_sample(
                record, self._tokenizer, irrelevant_per_band=per_band, seed=seed, num_messages=num_messages
            )
        else:
            sample = render_sample(record.messages[:num_messages], record.tools, self._tokenizer)
        return dataclasses.replace(sample, kind=1 + _RECORD_TYPES.index(type(record)))

    def _digest(self) -> str:
        """Return a digest of the records, the tokenizer and the settings that decide the lengths."""
        shown = {
            "shards": [
                ["conversations", source.sha256]
                if isinstance(source, ConversationFile)
                else [source.card.kind, sorted(source.card.shards.items())]
                for source in self._directories
            ],
            "records": self._num_records,
            "irrelevant_per_band": sorted(self._config.irrelevant_per_band.items()),
            "seed": self._config.seed,  # decides which distractors a gold episode shows, so its length
            "tokenizer": self._tokenizer.backend.to_str(),
        }
        return sha256(json.dumps(shown).encode()).hexdigest()

    def _read_index(self) -> tuple[np.ndarray, np.ndarray] | None:
        try:
            with self._index.open("rb") as file, np.load(file) as index:
                fingerprint, places, lengths_tokens = (
                    index[name] for name in ("fingerprint", "places", "lengths_tokens")
                )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as fault:
            _log.warning("%s is damaged and made anew: %s", self._index, fault)
            return None
        # Lengths of other records or of another tokenizer are useless, but no fault: they are measured anew.
        return (places, lengths_tokens) if str(fingerprint) == self._fingerprint else None

    def _make_index(self) -> tuple[np.ndarray, np.ndarray]:
        places: list[tuple[int, int, int]] = []
        lengths: list[int] = []
        num_tokens = 0
        for place, sample in self._all_samples():
            num_tokens += len(sample.ids)
            if num_tokens <= _KEPT_TOKENS:
                self._rendered[len(places)] = sample
            places.append(place)
            lengths.append(len(sample.ids))
        places_N3, lengths_N = np.array(places, np.int32).reshape(-1, 3), np.array(lengths, np.int32)
        self._index.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(self._index) as partial, partial.open("wb") as file:  # hosts may share the folder
            np.savez(file, fingerprint=np.array(self._fingerprint), places=places_N3, lengths_tokens=lengths_N)
        return places_N3, lengths_N

    def _all_samples(self) -> Iterator[tuple[tuple[int, int, int], SFTSample]]:
        records = [(number, i) for number, count in enumerate(self._num_records) for i in range(count)]
        if not records:
            return

        def render(place: tuple[int, int]) -> list[tuple[tuple[int, int, int], SFTSample]]:
            directory, number = place
            record = self._directories[directory][number]
            messages = record.demonstrated_messages() if isinstance(record, Environment) else record.messages
            return [((directory, number, end), self._render(record, end)) for end in user_turn_ends(messages)]

        # Grain's threads finish in any order, but its iterator yields in the order of the records.
        options = grain.ReadOptions(num_threads=_THREADS, prefetch_buffer_size=4 * _THREADS)
        rendered = grain.MapDataset.source(records).map(render).to_iter_dataset(options)
        for samples in tqdm(rendered, "sft: rendering", len(records), unit=" records", leave=False, disable=None):
            yield from samples
