"""Lengths and times of the episodes of an update that is simulated: those of a recorded run, or the paper's turns."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from statistics import fmean
from typing import Final

from astra_jax.config import ConfigError
from astra_jax.episodes.log import logs_of_run, read_episodes
from astra_jax.metrics_file import read_metrics
from astra_jax.plan.clock import Lognormal

Turn = tuple[int, int]
"""Tokens of a message, and of what is given after it: 0 after the last one."""
_P90: Final = 1.2816  # standard deviations of a normal distribution below which 90 % of it lie


@dataclasses.dataclass(frozen=True)
class Workload:
    """Lengths and times of episodes. Draws follow from an episode's place, so all what-ifs meet the same ones."""

    words: str
    """Where they come from."""
    prompts: tuple[int, ...]
    """Tokens of prompts that one is drawn from for each group."""
    episodes: tuple[tuple[Turn, ...], ...]
    """Turns of episodes that one is drawn from for each episode."""
    tool_seconds: Lognormal
    """Of all tools of a turn together."""
    most_tool_seconds: float
    valid_share: float
    """Share of groups whose rewards vary."""
    host_seconds: float = 0.0
    """Seconds of a host's own work after each message, one episode at a time."""

    def prompt(self, *key: int) -> int:
        """Return the tokens of the prompt of a group."""
        return random.Random(repr(key)).choice(self.prompts)

    def turns(self, *key: int) -> tuple[Turn, ...]:
        """Return the turns of an episode."""
        return random.Random(repr(key)).choice(self.episodes)

    def tools(self, *key: int) -> float:
        """Return the seconds of the tools of a turn."""
        return min(self.tool_seconds.draw(*key), self.most_tool_seconds)


def paper_workload() -> Workload:
    """Return episodes with as many turns as the paper's trajectories have calls, and lengths and tools of our own.

    Turns are lognormal, 4.42 on average, at most 5 in three of four (the paper: 72.2 %), and never more than 32.
    """
    turns = Lognormal(4.42 * math.exp(-(0.9**2) / 2), 0.9)
    message, given = Lognormal(120, 0.7), Lognormal(60, 0.7)

    def episode(number: int) -> tuple[Turn, ...]:
        count = max(1, min(round(turns.draw(4, number)), 32))
        lengths = [(message.draw(1, number, turn), given.draw(2, number, turn)) for turn in range(count)]
        return tuple(
            (max(1, round(said)), 0 if turn == count - 1 else max(1, round(after)))
            for turn, (said, after) in enumerate(lengths)
        )

    return Workload(
        "4.42 turns of about 120 tokens on average, 60 tokens from tools, prompts of 1,000, half of all groups valid",
        (1000,),
        tuple(map(episode, range(4096))),
        Lognormal(0.5, 0.8),
        2.0,
        0.5,
    )


def recorded_workload(run: Path) -> Workload:
    """Return the lengths of a run's logged episodes, and the tools' times and valid groups of its metrics.

    Raises:
        ConfigError: the run has no logged episodes or no step with tools and a valid group.
        RunUnreadable: a line of its log is no episode.
    """
    episodes = [episode for path in logs_of_run(run) for episode in read_episodes(path)]
    steps = [
        line for line in read_metrics(run / "metrics.jsonl") if line.get("groups_valid") and "tool_seconds_p50" in line
    ]
    if not episodes or not steps:
        raise ConfigError(
            f"{run} has no logged episodes or no step with tools and valid groups; name the `out` of an `astra rl`"
        )
    turns = []
    for episode in episodes:
        count = max(token.turn for token in episode.tokens)
        said, given = [0] * (count + 1), [0] * (count + 1)
        for token in episode.tokens:
            (said if token.source == "model" else given)[token.turn] += 1
        turns.append(tuple(zip(said[1:], [*given[1:-1], 0], strict=True)))
    waits = fmean(max(0, len(each) - 1) for each in turns if len(each) > 1) if any(map(len, turns)) else 1
    middle, high = (fmean(step[f"tool_seconds_{name}"] for step in steps) for name in ("p50", "p90"))
    last = steps[-1]
    return Workload(
        f"{len(episodes)} episodes of {run}",
        tuple(sum(token.turn == 0 for token in episode.tokens) for episode in episodes),
        tuple(turns),
        Lognormal(middle / waits, math.log(max(high / middle, 1.0)) / _P90),
        max(step["tool_seconds_max"] for step in steps),
        last["groups_valid"] / last["groups_submitted"],
    )
