"""Sessions as the schedule sees them, and the calls that it asks a device for.

Track           one session: its tokens, its pages, and the message that it is asked for
Read, Sample    the two kinds of calls, and the rows of each
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.pages import Content


@dataclass(eq=False)
class Track:
    """One session of a decoder, and the message that it is asked for."""

    session: Session
    shard: int
    """Shard whose pages and rows the session uses; it never changes."""
    policy_version: int
    """Version of the weights that the next tokens are computed with."""
    num_prompt_tokens: int
    """Number of tokens of the session's first call: draws are counted from there."""
    ids: list[int] = field(default_factory=list)
    """All tokens of the sequence, given and sampled. The last one is in no page before a token is sampled after it."""
    table: list[int] = field(default_factory=list)
    """Pages in which the sequence lies, in order; the last ones may be empty still."""
    num_cached: int = 0
    """Number of tokens that lie in the pages of the table."""
    contents: list[Content] = field(default_factory=list)
    """Digests of the full pages, by which other sessions find the pages."""
    sampling: Sampling | None = None
    """Rules by which the message is sampled; None while no message is asked for."""
    said: list[int] = field(default_factory=list)
    """Tokens of the message so far; the next two lists have one entry for each."""
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    ticket: int = 0
    """Place of the message in the order in which messages were asked for."""

    @property
    def num_unread(self) -> int:
        """Number of given tokens that have to be read before the session can sample."""
        return len(self.ids) - 1 - self.num_cached

    @property
    def num_left(self) -> int:
        """Number of tokens that the message may still get."""
        return 0 if self.sampling is None else self.sampling.max_tokens - len(self.said)

    def begin(self, ids: list[int], sampling: Sampling, ticket: int) -> None:
        """Begin a message after all tokens so far, `ids`."""
        self.num_prompt_tokens = min(self.num_prompt_tokens, len(ids))  # a rewritten history may be shorter
        self.ids, self.sampling, self.ticket = ids, sampling, ticket
        self.said, self.logprobs, self.versions = [], [], []

    def add(self, said: SaidRow) -> None:
        """Add the tokens that a call sampled: all but the last of `ids` then lie in pages."""
        self.num_cached += len(said.ids)
        self.ids.extend(said.ids)
        self.said.extend(said.ids)
        self.logprobs.extend(said.logprobs)
        self.versions.extend([self.policy_version] * len(said.ids))


class ReadRow(NamedTuple):
    """Tokens of one sequence to read, behind those in its pages."""

    track: Track
    ids: list[int]


class SampleRow(NamedTuple):
    """A sequence that samples up to `max_tokens` in one row."""

    track: Track
    max_tokens: int


class SaidRow(NamedTuple):
    """Tokens that a row sampled in a call, and of each the same figures as in `interface.Generated`."""

    ids: list[int]
    logprobs: list[float]


@dataclass(frozen=True)
class Read:
    """A call that reads given tokens."""

    rows: list[list[ReadRow]]
    """Rows of each shard."""
    begins: bool
    """Whether the sequences of the call have no tokens in pages yet."""
    most_rows: int
    """Number of rows per shard that the call is compiled for; unused rows are padding."""
    most_tokens: int
    """Number of tokens per row that the call is compiled for."""

    def all_rows(self) -> Iterable[ReadRow]:
        """Return the rows of all shards."""
        return itertools.chain.from_iterable(self.rows)


@dataclass(frozen=True)
class Sample:
    """A call that samples."""

    rows: list[list[SampleRow]]
    """Rows of each shard."""
    most_rows: int
    """Number of rows per shard that the call is compiled for; unused rows are padding."""
    most_pages: int
    """Number of pages per row that the call is compiled for."""
    leave_at: int
    """The call ends as soon as at most this number of rows go on."""

    def all_rows(self) -> Iterable[SampleRow]:
        """Return the rows of all shards."""
        return itertools.chain.from_iterable(self.rows)
