"""`astra rescore`: other rewards for episodes that are logged already, without model, tools or sandbox."""

from __future__ import annotations

import argparse

from astra_jax.episodes.log import logs_of_run, read_episodes, write_episodes
from astra_jax.episodes.rewards import REWARDS, earned, reward_named
from astra_jax.errors import RunUnreadable, UsageError
from synthesis.records import JsonObject


def rescore(options: argparse.Namespace) -> None:
    """Print the mean of each reward over each log of a run; write the episodes with the one that is asked for."""
    for name in options.reward or ():
        try:
            reward_named(name)
        except ValueError as error:
            raise UsageError(f"--reward {name}: {error}; see astra rescore --help") from error
    rewards = options.reward or list(REWARDS)
    if options.out is not None and len(rewards) != 1:
        raise UsageError("--out takes one --reward; see astra rescore --help")
    logs = [options.source] if options.source.is_file() else logs_of_run(options.source)
    if not logs:
        raise RunUnreadable(
            f"{options.source} holds no episodes.jsonl or episodes/step_*.jsonl; name a log or a run's folder"
        )
    print("  ".join(["log".ljust(22), "episodes", "   logged", *(name.rjust(9) for name in rewards)]))
    num_episodes = 0
    rescored: list[JsonObject] = []
    for log in logs:
        episodes = read_episodes(log)
        if not episodes:
            raise RunUnreadable(f"{log} has no episode; name another log")
        values = {"logged": [each.reward for each in episodes]}
        values |= {name: [earned(name, each) for each in episodes] for name in rewards}
        columns = [f"{sum(of) / len(of):.4f}".rjust(max(9, len(name))) for name, of in values.items()]
        print("  ".join([log.name.ljust(22), str(len(episodes)).rjust(8), *columns]))
        num_episodes += len(episodes)
        if options.out is not None:
            with_reward = zip(episodes, values[rewards[0]], strict=True)
            rescored += [
                each.model_copy(update={"reward": value}).model_dump(mode="json") for each, value in with_reward
            ]
    if options.out is not None:
        write_episodes(options.out, rescored)
    where = "" if options.out is None else f" -> {options.out}"
    print(f"rescore: {num_episodes} episodes of {len(logs)} logs under {', '.join(rewards)}{where}")
