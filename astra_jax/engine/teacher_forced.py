"""One sequence that was sampled before, through the decoder's programs again, alone: the log-probs of its tokens.

It goes as a decoder goes: given tokens are read, sampled ones come one after the other, so many a call, and pages hold
what was before. Only what would be drawn now is not gone on with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from astra_jax.engine.interface import MOST_KEPT_IDS, Sampling
from astra_jax.engine.kv_pages import Histories, Pages, empty_pages
from astra_jax.engine.programs import Forced, Given, read_tokens, score_row
from astra_jax.engine.sampling import Truncation
from astra_jax.engine.schedule import Limits
from astra_jax.mesh.placement import on_devices
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params, layers_apart


@dataclass(frozen=True)
class SampledTokens:
    """A sequence, and how some of its tokens were sampled."""

    ids: Sequence[int]
    is_sampled: Sequence[bool]
    """False of the first token."""
    kept: Sequence[Sequence[int]]
    """Of each token the ids that truncation kept; none where they are not known, and are found again."""
    sampling: Sampling

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens before the first one that was sampled."""
        return list(self.is_sampled).index(True)

    def messages(self) -> Iterator[tuple[int, int]]:
        """Yield where each stretch of sampled tokens begins, and where it stops."""
        edges = np.flatnonzero(np.diff([0, *map(int, self.is_sampled), 0])).tolist()
        yield from zip(edges[::2], edges[1::2], strict=True)


def forced_logprobs(
    model_config: ModelConfig,
    params: Params,
    sequence: SampledTokens,
    limits: Limits,
    *,
    temperatures: Sequence[float],
) -> np.ndarray:
    """Return the log-probs of the sampled tokens; float32 [sampled tokens, temperatures, 2].

    Of each: among all ids, and among those that truncation kept (the same where nothing was truncated).

    Raises:
        ConfigError: the platform knows no pages of this type.
        ValueError: the sequence is longer than `limits` allow, or has no sampled token.
    """
    if len(sequence.ids) > limits.max_tokens:
        raise ValueError(f"expected at most {limits.max_tokens} tokens, found {len(sequence.ids)}")
    row = _Row(model_config, params, sequence, limits, np.asarray(temperatures, np.float32))
    return np.concatenate([logprobs for start, stop in sequence.messages() for logprobs in row.message(start, stop)])


class _Row:
    """The pages of one sequence, which are all its own and lie in order."""

    def __init__(
        self,
        model_config: ModelConfig,
        params: Params,
        sequence: SampledTokens,
        limits: Limits,
        temperatures_G: np.ndarray,
    ) -> None:
        self._model_config, self._sequence, self._limits = model_config, sequence, limits
        self._params = layers_apart(params)
        self._temperatures_G = temperatures_G
        empty = empty_pages(model_config, 1, limits.num_pages, limits.page_tokens)
        self._pages: Pages = on_devices(empty)
        self._num_cached = 0
        self._most_prefix_pages = limits.num_prefix_pages(sequence.num_prompt_tokens)

    def message(self, start: int, stop: int) -> Iterator[np.ndarray]:
        """Read what was said before a message, all but its last token, and yield the log-probs of each call."""
        while self._num_cached < start - 1:
            self._read(start - 1 - self._num_cached)
        for first in range(start, stop, self._limits.sample_tokens):
            yield self._score(first, min(stop, first + self._limits.sample_tokens))

    def _read(self, num_unread: int) -> None:
        limits, begins = self._limits, self._num_cached == 0
        _, most = limits.read_shape(num_unread, begins=begins)
        count = min(num_unread, most)
        tokens = np.zeros((1, 1, most), np.int32)
        tokens[0, 0, :count] = self._sequence.ids[self._num_cached : self._num_cached + count]
        given = Given(
            tables_DRn=np.arange(limits.pages_for(limits.max_tokens), dtype=np.int32)[None, None],
            starts_DR=np.full((1, 1), self._num_cached, np.int32),
            tokens_DRT=tokens,
            counts_DR=np.full((1, 1), count, np.int32),
            copies_DR2=np.array([[[0, limits.num_pages]]], np.int32),  # beyond the last page: no copy
        )
        self._pages = read_tokens(self._model_config, self._params, self._pages, given, begins=begins)
        self._num_cached += count

    def _score(self, first: int, stop: int) -> np.ndarray:
        sequence, count, most = self._sequence, stop - first, self._limits.sample_tokens
        sampling = sequence.sampling
        ids = np.zeros(most + 1, np.int32)
        ids[: count + 1] = sequence.ids[first - 1 : stop]
        kept = np.full((most, MOST_KEPT_IDS), -1, np.int32)
        for of_token, known in zip(kept, sequence.kept[first:stop], strict=False):
            of_token[: len(known)] = known
        forced = Forced(
            pending_T=ids[:-1],
            targets_T=ids[1:],
            kept_TK=kept,
            num_tokens=np.array(count, np.int32),
            temperature=np.array(sampling.temperature, np.float32),
            truncation=Truncation(
                jnp.array([sampling.top_k or 0], jnp.int32),
                jnp.array([sampling.top_p], jnp.float32),
                jnp.array([sampling.min_p], jnp.float32),
            ),
            temperatures_G=self._temperatures_G,
        )
        self._pages, logprobs = score_row(self._model_config, self._params, self._pages, self._histories(count), forced)
        self._num_cached += count
        return np.asarray(logprobs)[:count]

    def _histories(self, count: int) -> Histories:
        """Return where what lies in the pages is, and where `count` tokens more go."""
        limits, cached = self._limits, self._num_cached
        num_prefix = min(self._most_prefix_pages, cached // limits.page_tokens)
        num_own = limits.pages_for(cached + count) - num_prefix
        size = next(size for size in limits.own_table_pages[1:] if size >= num_own)
        prefix, own = np.zeros(limits.prefix_table_pages, np.int32), np.zeros(size, np.int32)
        prefix[:num_prefix] = np.arange(num_prefix)
        own[:num_own] = num_prefix + np.arange(num_own)
        return Histories(
            prefix[None, None],
            np.full((1, 1), num_prefix, np.int32),
            own[None, None],
            np.full((1, 1), cached - num_prefix * limits.page_tokens, np.int32),
        )
