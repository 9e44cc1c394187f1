"""How often each environment has been solved since an RL run began, and which of them sit an epoch out for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any, Final

from astra_jax.episodes.rollout import Group
from synthesis.records import JsonObject
from synthesis.run.destination import whole_file

SOLVED_RATES_FILE: Final = "solved_rates.jsonl"


@dataclass
class EnvironmentRate:
    """What came of the episodes of one environment."""

    episodes: int = 0
    solved: int = 0
    """Episodes that solved every sub-task, a checked ending included."""
    reward_sum: float = 0.0
    last_epoch: int = -1
    """The last one in which it was drawn."""

    @property
    def solved_rate(self) -> float:
        """Share of its episodes that solved everything, from 0 to 1; there must be some."""
        return self.solved / self.episodes


@dataclass
class SolvedRates:
    """The rates of all environments that have been drawn, by id."""

    of: dict[str, EnvironmentRate] = field(default_factory=dict)

    def note_draw(self, environment_id: str, epoch: int) -> None:
        """Write down that an environment is about to be rolled out."""
        self.of.setdefault(environment_id, EnvironmentRate()).last_epoch = epoch

    def add(self, group: Group, rewards: Sequence[float]) -> None:
        """Count the episodes of a group, degenerate or not; one that has no rewards counts nowhere."""
        rate = self.of.setdefault(group[0].environment.id, EnvironmentRate())
        counts = [episode.counts for episode in group]
        rate.episodes += len(group)
        rate.solved += sum(each.num_solved == each.num_subtasks for each in counts)
        rate.reward_sum += sum(rewards)

    def sits_out(self, environment_id: str, epoch: int, *, low: float, high: float) -> bool:
        """Say whether an environment is passed over: drawn in the epoch before, its rate is outside [low, high].

        It comes back in the epoch after, since a policy that learns may have left its rate behind.

        >>> rates = SolvedRates({"hard": EnvironmentRate(8, 1, 2.0, last_epoch=3)})
        >>> [rates.sits_out("hard", epoch, low=0.2, high=0.8) for epoch in (4, 5)]
        [True, False]
        """
        rate = self.of.get(environment_id)
        return (
            rate is not None
            and rate.episodes > 0
            and rate.last_epoch == epoch - 1
            and not low <= rate.solved_rate <= high
        )

    def write(self, path: Path) -> None:
        """Write one JSON line for each environment with an episode, by id.

        Raises:
            OSError: the disk is full or not writable.
        """
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
        with whole_file(path) as partial:
            partial.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    # --- the state between two updates ---

    def position(self) -> JsonObject:
        """Return all rates as JSON of their own: a checkpoint is written while they go on."""
        return {environment_id: list(astuple(rate)) for environment_id, rate in self.of.items()}

    @classmethod
    def at(cls, position: Mapping[str, Sequence[Any]]) -> SolvedRates:
        """Return the rates that a position holds."""
        return cls({environment_id: EnvironmentRate(*rate) for environment_id, rate in position.items()})
