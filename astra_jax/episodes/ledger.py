"""The token ledger: the exact tokens of one episode, and the writer of each.

Append-only. Tokens that were sampled are kept as they were sampled; tool responses are tokenised once, when they come
in; nothing is ever tokenised again. The loss mask is 1 on sampled tokens and nowhere else.

    ids               [tokens]  prompt │ sampled │ template, tool response │ sampled │ …
    sources           [tokens]  PROMPT │  MODEL  │    TEMPLATE and TOOL    │  MODEL  │ …
    sampled_logprobs  [tokens]    0    │ log p   │           0             │  log p  │ …
    turns             [tokens]    0    │   1     │           1             │   2     │ …
    policy_versions   [tokens]   -1    │ version │          -1             │ version │ …
"""

from __future__ import annotations

import bisect
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
    temperature, at 1 where that is 0, among the ids that truncation kept; 0 elsewhere."""
    turns: list[int] = field(default_factory=list)
    """Turn of each token: 0 for the prompt; k for the tokens of turn k, its tool responses included."""
    policy_versions: list[int] = field(default_factory=list)
    """Optimiser updates that the policy had seen when it sampled a token; -1 for given ones."""

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

    def append_given(self, ids: Sequence[int], sources: Sequence[int], *, turn: int) -> None:
        """Append tokens that the policy did not write.

        Raises:
            ValueError: one of them is said to be the policy's, or the turn lies before the last one.
        """
        if any(source == Source.MODEL for source in sources):
            raise ValueError("tokens of the model enter the ledger by `append_sampled`, with their log-probs")
        self._append(turn, ids, sources, [0.0] * len(ids), [-1] * len(ids))

    def append_sampled(
        self, ids: Sequence[int], logprobs: Sequence[float], *, turn: int, policy_versions: Sequence[int]
    ) -> None:
        """Append tokens exactly as the policy sampled them.

        Raises:
            ValueError: a token has no log-prob or no version, or the turn lies before the last one.
        """
        self._append(turn, ids, [int(Source.MODEL)] * len(ids), logprobs, policy_versions)

    def _append(self, turn: int, ids: Sequence[int], *columns: Sequence[Any]) -> None:
        lengths = [len(ids), *map(len, columns)]
        if len(set(lengths)) > 1:
            raise ValueError(f"a ledger's columns must have one length, found {lengths}")
        if self.turns and turn < self.turns[-1]:
            raise ValueError(f"a ledger only grows: turn {turn} cannot follow turn {self.turns[-1]}")
        sources, logprobs, policy_versions = columns
        # Python's numbers, not numpy's: a waiting episode is saved as JSON.
        self.ids.extend(map(int, ids))
        self.sources.extend(map(int, sources))
        self.sampled_logprobs.extend(map(float, logprobs))
        self.turns.extend([turn] * len(ids))
        self.policy_versions.extend(map(int, policy_versions))
