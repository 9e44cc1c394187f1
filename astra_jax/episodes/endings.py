"""Judges of a message that should refuse or ask back, as its environment expects: a lexicon, or a model.

An episode is judged at most once. If a refusal is expected, the last message is judged; if a question back is expected,
the first message without a call, after which the user answers or the episode ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from astra_jax.errors import AstraError
from synthesis.answers.expectation import meets_expectation
from synthesis.records import Environment

EndingJudge: TypeAlias = Callable[[Environment, str], Awaitable[bool]]
"""Function of a message without a tool call: whether it ends as the environment expects; it may raise `NoVerdict`."""


class NoVerdict(AstraError):
    """The judge of a message gave no usable verdict; the episode is then left out."""


async def by_lexicon(environment: Environment, said: str) -> bool:
    """Judge by the lexicon of `synthesis.answers.expectation`: the default."""
    return meets_expectation(environment.expectation, said)
