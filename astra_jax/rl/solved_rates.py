"""The solved rate of each environment since an RL run began, and the curriculum that decides by it.

A curriculum is a function of the user (docs/variants.md): `rolls_out(rate, epoch)` returns whether an environment with
finished episodes is rolled out again when its turn comes in an epoch. Without a curriculum every environment is.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from astra_jax.config import ConfigError
from astra_jax.episodes.rollout import Group
from astra_jax.named_functions import function_named
from synthesis.records import JsonObject
from synthesis.run.destination import write_whole

SOLVED_RATES_FILE: Final = "solved_rates.jsonl"


@dataclass
class EnvironmentRate:
    """Outcomes of the episodes of one environment since the run began."""

    episodes: int = 0
    """Number of episodes with a reward."""
    solved: int = 0
    """Number of episodes that solved every sub-task, a checked ending included."""
    reward_sum: float = 0.0
    """Sum of the rewards of these episodes."""
    last_epoch: int = -1
    """The last epoch in which the environment was rolled out, from 0."""

    @property
    def solved_rate(self) -> float:
        """Share of the episodes that solved every sub-task, from 0 to 1; there must be an episode."""
        return self.solved / self.episodes


Curriculum = Callable[[EnvironmentRate, int], bool]


def curriculum_named(name: str, folder: Path | None = None) -> Curriculum:
    """Return the curriculum that a config names; `folder` is the folder of the config.

    Raises:
        ValueError: there is no such function, or it does not take a rate and an epoch.
    """
    curriculum = function_named(name, {}, folder)
    try:
        inspect.signature(curriculum).bind(EnvironmentRate(), 0)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"a curriculum takes two arguments, a rate and an epoch ({error}): write def rolls_out(rate, epoch)"
        ) from error
    return curriculum


@dataclass
class SolvedRates:
    """The rates of all environments that have been drawn, by id."""

    of: dict[str, EnvironmentRate] = field(default_factory=dict)

    def note_draw(self, environment_id: str, epoch: int) -> None:
        """Note that an environment is about to be rolled out in an epoch."""
        self.of.setdefault(environment_id, EnvironmentRate()).last_epoch = epoch

    def add(self, group: Group, rewards: Sequence[float]) -> None:
        """Count the episodes of a group with rewards, degenerate or not."""
        rate = self.of.setdefault(group[0].environment.id, EnvironmentRate())
        counts = [episode.counts for episode in group]
        rate.episodes += len(group)
        rate.solved += sum(each.num_solved == each.num_subtasks for each in counts)
        rate.reward_sum += sum(rewards)

    def sits_out(self, environment_id: str, epoch: int, rolls_out: Curriculum | None) -> bool:
        """Whether a curriculum passes an environment over; an environment without finished episodes never is.

        Raises:
            ConfigError: the curriculum returned neither True nor False.

        >>> rates = SolvedRates({"hard": EnvironmentRate(episodes=8, solved=1)})
        >>> rates.sits_out("hard", 4, lambda rate, epoch: rate.solved_rate > 0.5), rates.sits_out("hard", 4, None)
        (True, False)
        """
        rate = self.of.get(environment_id)
        if rolls_out is None or rate is None or rate.episodes == 0:
            return False
        decision = rolls_out(dataclasses.replace(rate), epoch)
        if not isinstance(decision, bool | np.bool_):
            raise ConfigError(f"the curriculum returned {decision!r} for {rate}; return True or False")
        return not decision

    def write(self, path: Path) -> None:
        """Write one JSON line for each environment with an episode, by id."""
        lines = [
            {
                "environment_id": environment_id,
                "episodes": rate.episodes,
                "solved": rate.solved,
                "mean_reward": rate.reward_sum / rate.episodes,
            }
            for environment_id, rate in sorted(self.of.items())
            if rate.episodes
        ]
        write_whole(path, "".join(json.dumps(line) + "\n" for line in lines))

    # --- the state between two updates ---

    def position(self) -> JsonObject:
        """Return a copy of all rates as JSON: a checkpoint is written while counting goes on."""
        return {environment_id: list(astuple(rate)) for environment_id, rate in self.of.items()}

    @classmethod
    def at(cls, position: Mapping[str, Sequence[Any]]) -> SolvedRates:
        """Return the rates of a position."""
        return cls({environment_id: EnvironmentRate(*rate) for environment_id, rate in position.items()})
