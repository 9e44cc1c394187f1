"""Tokens, pages and rows of a decoder: every number that decides which programs are compiled.

decode_limits    a rollout: all episodes start at once, and the episodes of a group share the pages of their prompt
serving_limits   a server: conversations come at any time
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from astra_jax.mesh.placement import num_shards
from astra_jax.model.sharding import TPU_LANES, platform

# Sizes on any platform:
_SAMPLE_TOKENS: Final = 16
_FIRST_READ_TOKENS: Final = 512  # enough to keep any chip busy; more take the compiler longer
_READ_ROWS: Final = 8
_LAST_ROWS: Final = (8, 2)
_PAGE_TOKENS: Final = 32
# Sizes on a CPU, where a row costs the same in a call of few rows as in a call of many:
_READ_ROWS_OF_CPU: Final = 4  # seldom more answers of tools wait at once
_ROWS_OF_CPU: Final = 16
_LEAVE_SHARE_OF_CPU: Final = 3 / 4  # to begin a call costs as much as four tokens of every row
# Sizes of a server:
_SERVED_PAGE_TOKENS: Final = 16
_FEW_SERVED_ROWS: Final = 4
_SERVED_READ_TOKENS: Final = 32
_SHORTER_SERVED_READS: Final = (128, 256)  # a turn is longer than a tool's answer, and mostly shorter than a prompt


@dataclass(frozen=True)
class Limits:
    """Tokens, pages and rows of a decoder; "per shard" means per shard of the batch (`data` × `fsdp`)."""

    max_tokens: int
    """Tokens of the longest sequence, prompt and all messages."""
    num_pages: int
    """Pages per shard."""
    page_tokens: int
    """Tokens per page."""
    row_counts: tuple[int, ...]
    """Rows per shard in which a call can sample, the largest number first; each is a program."""
    sample_tokens: int
    """Tokens that a call samples in a row, at most."""
    read_rows: int
    """Sequences per shard in a call that reads behind tokens that were read before."""
    read_tokens: int
    """Most tokens that each of these sequences reads in the call."""
    first_read_rows: int
    """Sequences per shard in a call that reads first tokens."""
    first_read_tokens: int
    """Most tokens that each of these sequences reads in the call."""
    first_sample_tokens: int | None = None
    """Tokens of the first call of a message, so that its reader sees it begin early; None: `sample_tokens`."""
    shorter_read_tokens: tuple[int, ...] = ()
    """Shorter rows of the calls with `first_read_tokens`, in rising order: short texts then cost less."""
    shorter_tables: tuple[int, ...] = ()
    """Pages per row of shorter tables for sampling, in rising order: where pages are copied, short rows cost less."""
    leave_share: float = 7 / 8
    """Share of rows, below 1: a call that samples ends when at most this share of its rows goes on."""

    def pages_for(self, num_tokens: int) -> int:
        """Return the number of pages that `num_tokens` take."""
        return -(-num_tokens // self.page_tokens)

    @property
    def longest_table(self) -> int:
        """Number of pages of the longest sequence."""
        return self.pages_for(self.max_tokens)

    @property
    def tables(self) -> tuple[int, ...]:
        """Pages per row in the tables of calls that sample, in rising order; each is a program."""
        return (*(short for short in self.shorter_tables if short < self.longest_table), self.longest_table)

    def read_shape(self, num_tokens: int, *, begins: bool) -> tuple[int, int]:
        """Return the rows per shard, and the tokens per row, of the call that reads `num_tokens` of a sequence.

        A sequence `begins` if none of its tokens were read before.
        """
        most = next((most for most in self.shorter_read_tokens if num_tokens <= most), self.first_read_tokens)
        # An answer of a tool is short: two calls of short rows read it, or as many as compute half of a long call. A
        # prompt is long, and so is a history whose pages were given away.
        num_short = -(-num_tokens // self.read_tokens)
        computed = num_short * self.read_rows * self.read_tokens
        if not begins and (num_short <= 2 or 2 * computed <= self.first_read_rows * most):
            return self.read_rows, self.read_tokens
        return self.first_read_rows, most

    def read_kinds(self) -> list[tuple[bool, int, int]]:
        """Return every (begins, rows, tokens) of `read_shape`: a program is compiled for each."""
        lengths = range(1, self.max_tokens)
        kinds = ((begins, *self.read_shape(most, begins=begins)) for begins in (True, False) for most in lengths)
        return list(dict.fromkeys(kinds))


class RolloutSizes(Protocol):
    """The part of a rollout's config that decides sizes (`episodes.rollout.RolloutConfig`)."""

    @property
    def max_prompt_tokens(self) -> int: ...
    @property
    def max_response_tokens(self) -> int: ...
    @property
    def read_tokens(self) -> int: ...
    @property
    def kv_share(self) -> float: ...


def decode_limits(
    config: RolloutSizes, num_groups: int, group_size: int, groups_with_rows: int | None = None
) -> Limits:
    """Return pages for `num_groups` at once; with a `kv_share` of 1 all episodes may be of full length.

    Rows are for the episodes of `groups_with_rows` at once, or of all; the others wait until one is free.
    """
    shards = num_shards()
    groups = -(-num_groups // shards)
    max_tokens = config.max_prompt_tokens + config.max_response_tokens
    prompt_pages = -(-config.max_prompt_tokens // _PAGE_TOKENS)
    response_pages = -(-config.max_response_tokens // _PAGE_TOKENS) + 1
    all_pages = groups * (prompt_pages + group_size * response_pages)
    most_read = min(-(-config.max_prompt_tokens // TPU_LANES) * TPU_LANES, _FIRST_READ_TOKENS)
    is_cpu = platform() == "cpu" and shards == 1
    rows = min(groups, -(-(groups_with_rows or num_groups) // shards)) * group_size
    return Limits(
        max_tokens=max_tokens,
        # At least one sequence has room.
        num_pages=max(math.ceil(all_pages * config.kv_share), -(-max_tokens // _PAGE_TOKENS)),
        page_tokens=_PAGE_TOKENS,
        row_counts=row_counts_for(min(rows, _ROWS_OF_CPU) if is_cpu else rows),
        sample_tokens=_SAMPLE_TOKENS,
        read_rows=min(_READ_ROWS_OF_CPU if is_cpu else _READ_ROWS, rows),
        read_tokens=config.read_tokens,
        first_read_rows=min(_READ_ROWS, groups),
        first_read_tokens=most_read,
        # On a CPU the padding behind the end of a prompt costs as much as a prompt.
        shorter_read_tokens=(most_read // 2,) if is_cpu else (),
        shorter_tables=(prompt_pages + response_pages // 2,),
        leave_share=_LEAVE_SHARE_OF_CPU if is_cpu else Limits.leave_share,
    )


def row_counts_for(rows: int) -> tuple[int, ...]:
    """Return the numbers of rows of a call: all rows, half of them, and fewer for the last episodes.

    >>> row_counts_for(256), row_counts_for(10), row_counts_for(1)
    ((256, 128, 8, 2), (10, 8, 5, 2), (1,))
    """
    return tuple(sorted({rows, -(-rows // 2), *(last for last in _LAST_ROWS if last < rows)}, reverse=True))


def serving_limits(most_tokens: int, rows: int) -> Limits:
    """Return pages and rows for as many conversations at once as rows, each of at most `most_tokens`.

    >>> serving_limits(4096, 16).row_counts, serving_limits(4096, 16).tables
    ((16, 4, 1), (16, 64, 256))
    """
    first_read_tokens = min(_FIRST_READ_TOKENS, -(-most_tokens // TPU_LANES) * TPU_LANES)
    longest = -(-most_tokens // _SERVED_PAGE_TOKENS)
    return Limits(
        max_tokens=most_tokens,
        num_pages=rows * longest,
        page_tokens=_SERVED_PAGE_TOKENS,
        row_counts=tuple(count for count in dict.fromkeys((rows, _FEW_SERVED_ROWS, 1)) if count <= rows),
        sample_tokens=_SAMPLE_TOKENS,
        first_sample_tokens=1,
        read_rows=min(_FEW_SERVED_ROWS, rows),
        read_tokens=_SERVED_READ_TOKENS,
        first_read_rows=1,
        first_read_tokens=first_read_tokens,
        shorter_read_tokens=tuple(most for most in _SHORTER_SERVED_READS if most < first_read_tokens),
        shorter_tables=(-(-longest // 16), -(-longest // 4)),
    )
