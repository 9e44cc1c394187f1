"""What whoever rolls out asks of whoever decodes: token ids in, token ids and their log-probs out.

A decoder knows no environment, no tool and no chat; a caller knows no page, no row and no device. Any decoder passes
the suite in `tests/astra_jax/engine/conformance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, Protocol

from astra_jax.errors import AstraError

_LEAST_TEMPERATURE: Final = 1e-6
PENALTIES: Final = ("presence_penalty", "frequency_penalty", "repetition_penalty")
"""The fields of `Sampling` that are penalties."""
MOST_KEPT_IDS: Final = 64
"""The largest `Sampling.top_k` with which a decoder hands out the ids that it kept."""

Finish = Literal["end", "length", "aborted"]
"""Ended by an end token; by the most tokens it was allowed; by `abort`."""


class DecoderError(AstraError):
    """A decoder cannot do what it was asked for; the message says why."""


@dataclass(frozen=True)
class Sampling:
    """How one message is sampled, and how long it may get.

    Truncation keeps the likeliest ids, of equally likely ones the lowest first: the first `top_k`; of those as few as
    hold `top_p` of their probability; of those the ones at least `min_p` times as likely as the likeliest. One is
    always kept.

    Raises:
        DecoderError: there is no such temperature, truncation or penalty.

    Decided: docs/decisions/rl.md, “The loss uses the token ids that top-k, top-p and min-p kept”.
    """

    max_tokens: int
    """At least 1."""
    temperature: float = 1.0
    """Divides the logits before anything is truncated; from 0 to 100, where nearly all ids are equally likely. 0 is
    greedy and truncates nothing; so is a temperature below 1e-6, by which logits of 32 bits cannot be divided."""
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    stop_ids: tuple[int, ...] = ()
    """Tokens that end it besides those that end every message of the decoder."""
    presence_penalty: float = 0.0
    """Taken from the logit of each id that the message has said, from -2 to 2; before anything else, also greedily."""
    frequency_penalty: float = 0.0
    """The same, for each time that it has."""
    repetition_penalty: float = 1.0
    """Divides what is above 0 of the logits of ids that stand in the prompt or the message, multiplies what is below;
    from 1e-6 to 1e6, between which logits of 32 bits stay finite; 1 is none."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature <= 100:
            raise DecoderError(f"expected a temperature from 0 to 100, found {self.temperature}")
        if self.temperature < _LEAST_TEMPERATURE:
            object.__setattr__(self, "temperature", 0.0)
        # A program is told of them in 32 bits, where a top_p below 2^-126 is 0 and would keep nothing.
        if (
            (self.top_k is not None and not 1 <= self.top_k < 2**31)
            or not 2.0**-126 <= self.top_p <= 1
            or not 0 <= self.min_p <= 1
        ):
            raise DecoderError(
                f"expected top_k from 1 to 2^31 - 1 or none, top_p from 2^-126 to 1, min_p from 0 to 1, found "
                f"{self.top_k}, {self.top_p} and {self.min_p}"
            )

        if not (
            -2 <= self.presence_penalty <= 2
            and -2 <= self.frequency_penalty <= 2
            and 1e-6 <= self.repetition_penalty <= 1e6
        ):
            raise DecoderError(
                "expected presence_penalty and frequency_penalty from -2 to 2 and repetition_penalty from 1e-6 to 1e6, "
                f"found {self.presence_penalty}, {self.frequency_penalty} and {self.repetition_penalty}"
            )

    @property
    def is_penalized(self) -> bool:
        """Whether what the message has said, or was given, changes what is drawn."""
        return (self.presence_penalty, self.frequency_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def hands_out_kept(self) -> bool:
        """Whether the kept ids of each token are handed out: it is truncated, and to few."""
        return self.temperature > 0 and self.top_k is not None and self.top_k <= MOST_KEPT_IDS


@dataclass(frozen=True, order=True)
class Session:
    """One episode, or one conversation: its calls follow one another, each with the tokens of all before.

    Its draws are those of seed, slot, and how many tokens come after the first call's: neither neighbours nor the time
    of a call change them.
    """

    seed: int
    """0 … 2³¹ − 1, as `slot`."""
    slot: int
    salt: str = ""
    """What is cached is shared within one salt only."""
    number: int = 0
    """Tells sessions apart that draw alike."""
    num_prompt_tokens: int = 0
    """Of its first call, where this decoder does not see that one; 0 where it does."""

    def __post_init__(self) -> None:
        if not (0 <= self.seed < 2**31 and 0 <= self.slot < 2**31):
            raise DecoderError(f"expected seed and slot from 0 to 2^31 - 1, found {self.seed} and {self.slot}")


@dataclass(frozen=True)
class Generated:
    """One message."""

    ids: list[int]
    """The token that ended it included."""
    logprobs: list[float]
    """Under the distribution that was sampled from."""
    policy_versions: list[int]
    """Of the weights that each token was sampled with."""
    finish: Finish
    raw_logprobs: list[float] = field(default_factory=list)
    """Under the raw policy: temperature 1, nothing truncated; none where a server does not tell them."""
    kept: list[list[int]] = field(default_factory=list)
    """Of each token the ids that truncation kept, likeliest first; none where `Sampling.hands_out_kept` is false, or a
    server does not tell them."""
    computed_tokens: int | None = field(default=None, compare=False)
    """Of the tokens that it follows, how many were computed for it, the others being found; None where a server does
    not tell."""


Told = Callable[[list[int], list[float]], None]
"""Is told the ids and log-probs of a message's next tokens as soon as they are sampled; it may abort the session."""


@dataclass(frozen=True)
class Capabilities:
    """What a decoder can do beyond generating."""

    takes_weights: bool
    """Whether `update_weights` works: without it nothing can learn from what is sampled."""
    replays: bool
    """Whether seed and slot decide every draw."""
    tells_raw_and_kept: bool
    """Whether messages have `raw_logprobs` and `kept`."""


@dataclass(frozen=True)
class Load:
    """How busy a decoder is, and what it has done so far."""

    sessions: int
    """That it holds something of."""
    waiting: int
    """Messages asked for and not handed out yet."""
    free_pages: int
    row_steps: int
    """Rows × tokens that programs which sample ran for, padding and calls of other hosts included."""
    sampled_tokens: int
    """How many of those sampled a token that someone gets."""
    read_tokens: int
    """Given tokens that were computed."""
    programs: int
    """Shapes compiled."""


class Decoder(Protocol):
    """Samples messages of many sessions at once."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""
        ...

    @property
    def load(self) -> Load:
        """How busy it is."""
        ...

    async def generate(
        self, ids: Sequence[int], sampling: Sampling, session: Session, told: Told | None = None
    ) -> Generated:
        """Sample the message that follows `ids`, all tokens of the session so far.

        `told` hears of all its tokens, in order, before it is returned; where they come from a server, all at once.

        Raises:
            DecoderError: it is too long; an id is none of the vocabulary; or the session is asked for two messages at
                once.
        """
        ...

    def abort(self, session: Session) -> None:
        """End the session's message where it stands: its `generate` returns what there is."""
        ...

    def forget(self, session: Session) -> None:
        """Let go of the session: nobody will ask for it again.

        Raises:
            DecoderError: a message of it is under way.
        """
        ...

    async def update_weights(self, params: Any, version: int) -> None:
        """Sample with other weights from the next token on; nothing that is cached outlives them.

        Raises:
            DecoderError: this decoder takes no weights.
        """
        ...

    async def until_failed(self) -> NoReturn:
        """Wait; raise what it has failed of, also where nobody waits for a message: other hosts may have ended."""
        ...

    async def close(self, *, failed: bool = False) -> None:
        """Let go of everything; nobody may wait for a message. Other hosts hear whether this one has `failed`."""
        ...
