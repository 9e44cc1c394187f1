"""Judges of a message that should refuse or ask back, as its environment expects: a lexicon, or a model.

An episode is judged at most once. If a refusal is expected, the last message is judged; if a question back is expected,
the first message without a call, after which the user answers or the episode ends.
"""

from __future__ import annotations

from typing import Protocol

from astra_jax.errors import AstraError
from synthesis.answers.expectation import meets_expectation
from synthesis.records import Environment


class NoVerdict(AstraError):
    """The judge of a message gave no usable verdict; the episode is then left out."""


class EndingJudge(Protocol):
    """Judges messages without a tool call, where the environment expects a refusal or a question back."""

    async def __call__(self, environment: Environment, said: str) -> bool:
        """Return whether a message ends as the environment expects.

        Raises:
            NoVerdict: this message got no verdict.
        """


async def by_lexicon(environment: Environment, said: str) -> bool:
    """Judge by the lexicon of `synthesis.answers.expectation`: the default."""
    return meets_expectation(environment.expectation, said)
