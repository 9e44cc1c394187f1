"""The contract between a decoder and its callers: token ids in, token ids and their log-probs out.

A decoder (`decoder.PagedDecoder`) knows no environment, no tool and no chat; a caller knows no page, no row and no
device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

from astra_jax.errors import AstraError

_LEAST_TEMPERATURE: Final = 1e-6

Finish = Literal["end", "length", "aborted"]
"""Reason why a message ended: an end token came; `Sampling.max_tokens` were sampled; `abort` was called."""


class DecoderError(AstraError):
    """A decoder cannot carry out a request; the message names the reason."""


@dataclass(frozen=True)
class Sampling:
    """Rules by which one message is sampled, and its longest length.

    Truncation keeps the likeliest ids, of equally likely ones the lowest first: the first `top_k`; of those as few as
    hold `top_p` of their probability, at least one.

    Raises:
        DecoderError: there is no such temperature or truncation.
    """

    max_tokens: int
    """Tokens of the message, at most; at least 1."""
    temperature: float = 1.0
    """Divisor of the logits, from 0 to 100, before ids are truncated. 0 takes the likeliest id and truncates nothing,
    as does a temperature below 1e-6, by which logits of 32 bits cannot be divided."""
    top_k: int | None = None
    """Likeliest ids that are kept; None: all."""
    top_p: float = 1.0
    """Share of the probability that the kept ids hold; 1: all."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end this message, besides those that end every message of the decoder."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise DecoderError(f"expected a temperature from 0 to 100, found {self.temperature}")
        if self.temperature < _LEAST_TEMPERATURE:  # frozen, so it is set behind the dataclass's back
            object.__setattr__(self, "temperature", 0.0)
        # Programs get them as 32-bit numbers: there a top_p below 2^-126 is 0 and would keep no id.
        if (self.top_k is not None and not 1 <= self.top_k < 2**31) or not 2.0**-126 <= self.top_p <= 1:
            raise DecoderError(
                "expected top_k from 1 to 2^31 - 1 or none, and top_p from 2^-126 to 1, found "
                f"{self.top_k} and {self.top_p}"
            )


@dataclass(frozen=True, order=True)
class Session:
    """One episode, or one conversation: each call gives all tokens of the calls before, and some more.

    A draw follows from seed, slot, and the number of tokens since the first call's. Neither other sessions nor the time
    of a call change it.
    """

    seed: int
    """Seed of all draws, from 0 to 2³¹ − 1."""
    slot: int
    """Number that tells apart the draws of sessions with one seed, from 0 to 2³¹ − 1."""
    number: int = 0
    """Number that tells apart sessions with the same seed and slot."""

    def __post_init__(self) -> None:
        if not (0 <= self.seed < 2**31 and 0 <= self.slot < 2**31):
            raise DecoderError(f"expected seed and slot from 0 to 2^31 - 1, found {self.seed} and {self.slot}")


@dataclass(frozen=True)
class Generated:
    """One message."""

    ids: list[int]
    """Ids of the message's tokens, the end token included."""
    logprobs: list[float]
    """Log-prob of each token under the distribution that it was sampled from."""
    policy_versions: list[int]
    """Version of the weights that each token was sampled with."""
    finish: Finish
    computed_tokens: int | None = field(default=None, compare=False)
    """Given tokens that were computed for this message; the others were found in pages. None if the decoder
    does not tell."""


Told = Callable[[list[int], list[float]], None]
"""Function that hears of a message's tokens, ids and log-probs, as soon as they are sampled; it may call `abort`."""


@dataclass(frozen=True)
class Load:
    """The work of a decoder at this moment, and its counts since it was made."""

    sessions: int
    """Number of sessions that were not forgotten yet."""
    waiting: int
    """Number of messages that were asked for and are not finished."""
    free_pages: int
    """Number of pages that a sequence could be given."""
    row_steps: int
    """Rows × tokens of all calls that sampled, with padding and the calls of other hosts."""
    sampled_tokens: int
    """Number of sampled tokens that were handed out."""
    read_tokens: int
    """Number of given tokens that were computed."""
    call_seconds: float
    """Seconds in which a call was under way."""
    waited_seconds: float
    """Those of them in which other hosts had not come to the call."""
    left_seconds: float
    """Seconds after this host's last call in which other hosts had calls."""
