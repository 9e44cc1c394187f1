"""The token ledger: the exact tokens of one episode, and the writer of each.

Append-only. Tokens that were sampled are kept as they were sampled; tool responses are tokenised once, when they come
in; nothing is ever tokenised again. The loss mask is 1 on sampled tokens and nowhere else.

    ids               [tokens]  prompt │ sampled │ template, tool response │ sampled │ …
    sources           [tokens]  PROMPT │  MODEL  │    TEMPLATE and TOOL    │  MODEL  │ …
    sampled_logprobs  [tokens]    0    │ log p   │           0             │  log p  │ …
    turns             [tokens]    0    │   1     │           1             │   2     │ …
    policy_versions   [tokens]   -1    │ version │          -1             │ version │ …
    kept_counts       [tokens]    0    │  kept   │           0             │  kept   │ …
    kept_ids                             the ids kept of each token, one after the other

Decided: docs/decisions/rl.md, “The loss uses the token ids that top-k and top-p kept”.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astra_jax.chat.format import Source


@dataclass
class TokenLedger:
    """The tokens of one episode, in order."""

    ids: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    """Writer of each token, a value of `chat.format.Source`."""
    sampled_logprobs: list[float] = field(default_factory=list)
    """Log-probability of each sampled token under the distribution that it was drawn from: the policy at its sampling
    temperature, at 1 where that is 0, among the kept ids where it was truncated; 0 elsewhere."""
    turns: list[int] = field(default_factory=list)
    """Turn of each token: 0 for the prompt; k for the tokens of turn k, its tool responses included."""
    policy_versions: list[int] = field(default_factory=list)
    """Optimiser updates that the policy had seen when it sampled a token; -1 for given ones."""
    kept_counts: list[int] = field(default_factory=list)
    """Ids that truncation kept for each sampled token; 0 if none are recorded, because there was no truncation or no
    `top_k` (`Sampling.hands_out_kept`)."""
    kept_ids: array[int] = field(default_factory=lambda: array("i"))
    """The kept ids, token after token, the likeliest of each token first."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def num_prompt_tokens(self) -> int:
        """Number of tokens before the first turn."""
        # Turns never fall, so the first token of turn 1 is found by halving.
        return bisect.bisect_left(self.turns, 1)

    @property
    def num_response_tokens(self) -> int:
        """Number of tokens after the prompt, tool responses included."""
        return len(self) - self.num_prompt_tokens

    @property
    def loss_mask(self) -> np.ndarray:
        """Loss mask: 1 on sampled tokens, 0 elsewhere; float32 [tokens]."""
        return (np.asarray(self.sources) == Source.MODEL).astype(np.float32)

    @property
    def kept(self) -> list[list[int]]:
        """Ids that truncation kept, a list for each token."""
        ends = itertools.accumulate(self.kept_counts)
        return [self.kept_ids[end - count : end].tolist() for count, end in zip(self.kept_counts, ends, strict=True)]

    def append_given(self, ids: Sequence[int], sources: Sequence[int], *, turn: int) -> None:
        """Append tokens that the policy did not write.

        Raises:
            ValueError: one of them is said to be the policy's, or the turn lies before the last one.
        """
        if any(source == Source.MODEL for source in sources):
            raise ValueError("tokens of the model enter the ledger by `append_sampled`, with their log-probs")
        self._append(turn, ids, sources, [0.0] * len(ids), [-1] * len(ids), [()] * len(ids))

    def append_sampled(
        self,
        ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        turn: int,
        policy_versions: Sequence[int],
        kept: Sequence[Sequence[int]] = (),
    ) -> None:
        """Append tokens exactly as the policy sampled them; `kept` holds the ids kept of each, or nothing at all.

        Raises:
            ValueError: a token has no log-prob or no version, or was not among the kept ids; or the turn lies before
                the last one.
        """
        if kept and (
            len(kept) != len(ids) or any(token not in of_token for token, of_token in zip(ids, kept, strict=True))
        ):
            raise ValueError("expected each sampled token among the ids that truncation kept where it was drawn")
        self._append(turn, ids, [int(Source.MODEL)] * len(ids), logprobs, policy_versions, kept or [()] * len(ids))

    def _append(self, turn: int, ids: Sequence[int], *columns: Sequence[Any]) -> None:
        lengths = [len(ids), *map(len, columns)]
        if len(set(lengths)) > 1:
            raise ValueError(f"a ledger's columns must have one length, found {lengths}")
        if self.turns and turn < self.turns[-1]:
            raise ValueError(f"a ledger only grows: turn {turn} cannot follow turn {self.turns[-1]}")
        sources, logprobs, policy_versions, kept = columns
        # Python's numbers, not numpy's: a waiting episode is saved as JSON.
        self.ids.extend(map(int, ids))
        self.sources.extend(map(int, sources))
        self.sampled_logprobs.extend(map(float, logprobs))
        self.turns.extend([turn] * len(ids))
        self.policy_versions.extend(map(int, policy_versions))
        self.kept_counts.extend(map(len, kept))
        for of_token in kept:
            self.kept_ids.extend(of_token)
