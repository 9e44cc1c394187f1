"""The episodes that the page shows, and their tokens cut into runs of one writer."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from astra_jax.episodes.log import LoggedEpisode, LoggedToken, SourceName

MAX_EPISODES = 12

POLICIES: Final = ("base", "sft", "rl")
"""The policies in the order in which they are compared; others follow as they come."""
PROGRAMS: Final = ("told_names",)
"""The programs of `evaluate/baselines.py`, which learn nothing."""
_NAMES: Final = {"base": "Base", "sft": "SFT", "rl": "RL", "told_names": "Names alone"}


@dataclass(frozen=True)
class ShownToken:
    """A token, or the tokens that one character spans."""

    text: str
    tooltip: str
    """Turn and log-prob of a sampled token; empty if the tooltip of the run says enough."""


@dataclass(frozen=True)
class TokenRun:
    """Neighbouring tokens of one writer and turn."""

    source: SourceName
    turn: int
    num_tokens: int
    tooltip: str
    tokens: list[ShownToken]


@dataclass(frozen=True)
class ShownEpisode:
    """An episode: its prompt, and the response that followed."""

    record: LoggedEpisode
    prompt: list[TokenRun]
    response: list[TokenRun]
    num_prompt_tokens: int
    num_loss_tokens: int


def choose_episodes(episodes: Sequence[LoggedEpisode]) -> list[list[ShownEpisode]]:
    """Return about a dozen episodes, those of one environment together, one per policy.

    Environments that have scenarios and languages not yet shown come first, then those that come first in the log.
    """
    by_environment: dict[str, dict[str, LoggedEpisode]] = {}
    for episode in episodes:
        by_environment.setdefault(episode.environment_id, {}).setdefault(episode.policy, episode)
    policies = policy_order([episode.policy for episode in episodes])
    num_shown = 0
    waiting = list(by_environment.values())
    shown: list[list[ShownEpisode]] = []
    times_shown: Counter[tuple[str, str]] = Counter()
    while waiting and num_shown < MAX_EPISODES:
        chosen = min(waiting, key=lambda by_policy: times_shown[_kind(by_policy)])
        waiting.remove(chosen)
        times_shown[_kind(chosen)] += 1
        shown.append([show(chosen[policy]) for policy in policies if policy in chosen])
        num_shown += len(chosen)
    return shown


def policy_order(policies: Sequence[str]) -> list[str]:
    """Return each policy once, in the order in which they are compared.

    >>> policy_order(["rl", "teacher", "base", "rl"])
    ['base', 'rl', 'teacher']
    """
    return [policy for policy in dict.fromkeys([*POLICIES, *policies]) if policy in policies]


def policy_name(policy: str) -> str:
    """Return the name of a policy as a page shows it."""
    return _NAMES.get(policy, policy)


def show(episode: LoggedEpisode) -> ShownEpisode:
    """Cut an episode's tokens into runs of one writer."""
    runs = list(_runs(episode.tokens))
    return ShownEpisode(
        record=episode,
        prompt=[run for run in runs if run.turn == 0],
        response=[run for run in runs if run.turn > 0],
        num_prompt_tokens=sum(run.num_tokens for run in runs if run.turn == 0),
        num_loss_tokens=sum(run.num_tokens for run in runs if run.source == "model"),
    )


def _runs(tokens: Sequence[LoggedToken]) -> Iterator[TokenRun]:
    for (source, turn), group in itertools.groupby(tokens, key=lambda token: (token.source, token.turn)):
        run = list(group)
        where = f"{source} · turn {turn}" if turn else source
        shown = [_shown(whole, where) for whole in _whole_characters(run)]
        yield TokenRun(source, turn, len(run), "" if source == "model" else f"{where} · no loss", shown)


def _whole_characters(tokens: Sequence[LoggedToken]) -> Iterator[list[LoggedToken]]:
    """Join tokens without a text to the token in which their character began."""
    together: list[LoggedToken] = []
    for token in tokens:
        if token.text and together:
            yield together
            together = []
        together.append(token)
    if together:
        yield together


def _shown(tokens: Sequence[LoggedToken], where: str) -> ShownToken:
    if tokens[0].source != "model":
        return ShownToken(tokens[0].text, "")
    logprobs = ", ".join(f"{token.sampled_logprob:.3f}" for token in tokens)
    probability = math.exp(sum(token.sampled_logprob for token in tokens))
    return ShownToken(tokens[0].text, f"{where} · log p {logprobs} (p {probability:.1%})")


def _kind(by_policy: dict[str, LoggedEpisode]) -> tuple[str, str]:
    episode = next(iter(by_policy.values()))
    return episode.scenario, episode.language
