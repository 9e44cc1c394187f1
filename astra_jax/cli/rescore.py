"""`astra rescore`: other rewards for episodes that are logged already."""

from __future__ import annotations

import argparse
from pathlib import Path

from astra_jax.cli.arguments import Commands
from astra_jax.errors import UsageError


def add_rescore(commands: Commands) -> None:
    """Add the command."""
    rescore = commands.add_parser(
        "rescore",
        help="other rewards for logged episodes, without a model",
        description="Reads the episode logs of a run (its episodes.jsonl, or those of its training steps) and prints "
        "the mean of each reward beside the one that the run had: f1 (the paper's), recall, precision, "
        "refusals, f1_and_answer (astra_jax/episodes/rewards.py), or MODULE:FUNCTION of your own file in the working "
        "directory.",
    )
    rescore.add_argument("source", type=Path, metavar="RUN", help="a run's folder, or one log")
    rescore.add_argument(
        "--reward", action="append", metavar="NAME", help="only this reward; may be given several times"
    )
    rescore.add_argument("--out", type=Path, metavar="FILE.jsonl", help="write all episodes with that one reward")
    rescore.set_defaults(run=_rescore)


def _rescore(options: argparse.Namespace) -> None:
    from astra_jax.episodes.log import read_episodes, write_episodes
    from astra_jax.episodes.rewards import REWARDS, reward_named
    from astra_jax.evaluate.rescore import all_logs, rescore, with_reward

    for name in options.reward or ():
        try:
            reward_named(name)
        except ValueError as error:
            raise UsageError(f"--reward {name}: {error}; see astra rescore --help") from error
    rewards = options.reward or list(REWARDS)
    if options.out is not None and len(rewards) != 1:
        raise UsageError("expected --reward once beside --out; see astra rescore --help")
    logs = all_logs(options.source)
    print("  ".join(["log".ljust(22), "episodes", "   logged", *(name.rjust(9) for name in rewards)]))
    num_episodes = 0
    for log in logs:
        found = rescore(log, rewards)
        figures = [("logged", found.logged), *found.means.items()]
        columns = [f"{figure:.4f}".rjust(max(9, len(name))) for name, figure in figures]
        print("  ".join([log.name.ljust(22), str(found.num_episodes).rjust(8), *columns]))
        num_episodes += found.num_episodes
    if options.out is not None:
        lines = [
            episode.model_dump(mode="json") for log in logs for episode in with_reward(read_episodes(log), rewards[0])
        ]
        write_episodes(options.out, lines)
    where = "" if options.out is None else f" -> {options.out}"
    print(f"rescore: {num_episodes} episodes of {len(logs)} logs under {', '.join(rewards)}{where}")
