"""Rollouts and a greedy evaluation of a quickstart's policy, by this tree's engine and by another tree's, in turns.

    python scripts/bench_engines.py runs/quickstart [--before 70485c8~1] [--turns 2] [--policy sft]

The default is the tree whose engine decoded in rounds. It is checked out beside this one, and gets this one's
`synthesis` and `sandbox`, so that both read the same records. `rl` are 160 episodes of the quickstart's RL, 20 groups
of 8 at once; `greedy` is one episode in each of 256 unseen worlds, as many at once as either tree's evaluation has.
Printed are seconds and CPU seconds of a second pass, in which nothing is compiled any more, digests of all tokens,
which both trees share, and ratios of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_GROUPS = 20


async def roll_out(run: Path, policy_name: str, what: str, rollout: dict[str, Any], at_once: int, url: str) -> dict:
    """Run the episodes of one kind twice, and say how long the second pass took."""
    # These names are the same in both trees.
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
    from astra_jax.episodes.tool_mixing import mix_tools
    from sandbox.client import AsyncSandboxClient
    from synthesis.record_io import RecordSource
    from synthesis.records import Environment

    policy = load_policy(run / policy_name / "policy")
    limits = {name: value for name, value in rollout.items() if name in RolloutConfig.model_fields}
    environments = list(RecordSource(run / ("heldout" if what == "greedy" else "rl_environments"), Environment))
    group_size = 1
    if what == "greedy":
        limits["temperature"] = 0
    else:
        group_size = 8
        random.Random(0).shuffle(environments)
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, RolloutConfig(**limits))
        bands = {"high": 1, "medium": 1, "low": 1}
        starts = [Start(one, mix_tools(one, irrelevant_per_band=bands, seed=0)) for one in environments]
        starts = [start for start in starts if engine.can_run(start)]
        if what == "rl":
            starts = starts[:at_once]
        for _ in range(2):
            groups: list[list[Any]] = []
            started, cpu_started = time.monotonic(), time.process_time()
            for first in range(0, len(starts), at_once):
                chosen = starts[first : first + at_once]
                groups += await engine.run(policy.params, chosen, group_size=group_size, seed=first)
            seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
    ids = [list(map(int, episode.ledger.ids)) for group in groups for episode in group]
    return {
        "episodes": len(ids),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "tokens": hashlib.md5(json.dumps(ids).encode(), usedforsecurity=False).hexdigest()[:8],
    }


def in_tree(tree: Path, what: str, options: argparse.Namespace) -> dict:
    """Run one kind in a process of its own, with a tree's packages."""
    command = [
        sys.executable,
        str(Path(__file__)),
        str(options.run.resolve()),
        "--policy",
        options.policy,
        "--roll-out",
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([*command, what], cwd=tree, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main(options: argparse.Namespace) -> None:
    """Measure both trees in turns."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(before), options.before], check=True)
        try:
            for package in ("synthesis", "sandbox"):
                shutil.rmtree(before / package)
                shutil.copytree(ROOT / package, before / package)
            for what in ("rl", "greedy"):
                found: dict[str, list[dict]] = {"before": [], "now": []}
                for turn in range(options.turns):
                    for name, tree in (("before", before), ("now", ROOT)):
                        found[name].append(in_tree(tree, what, options))
                        print(json.dumps({"what": what, "tree": name, "turn": turn, **found[name][-1]}), flush=True)
                medians = {
                    unit: [statistics.median(one[unit] for one in found[name]) for name in ("now", "before")]
                    for unit in ("seconds", "cpu_seconds")
                }
                ratios = {unit: round(now / then, 3) for unit, (now, then) in medians.items()}
                same = len({one["tokens"] for ones in found.values() for one in ones}) == 1
                print(json.dumps({"what": what, "ratio": ratios, "same_tokens": same}), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)


def roll_out_here(options: argparse.Namespace) -> None:
    """Run one kind with the packages of this process's path, as its tree's configs say."""
    import jax

    from sandbox.local import local_sandbox

    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "bench_engines_xla"))
    configs = next(path for path in (Path("configs"), Path("astra_jax/configs")) if path.is_dir())
    evaluation = tomllib.loads((configs / "tiny_evaluation.toml").read_text())
    # What is asked is today's in both trees: as much of it as the other one knows.
    today = tomllib.loads((ROOT / "configs/tiny_rl.toml").read_text())["rollout"]
    at_once = evaluation["environments_at_once"] if options.roll_out == "greedy" else _GROUPS
    with local_sandbox() as url:
        print(json.dumps(asyncio.run(roll_out(options.run, options.policy, options.roll_out, today, at_once, url))))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--before", default="70485c8~1", help="the other tree's commit")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--policy", default="sft", choices=("sft", "rl"))
    parser.add_argument("--roll-out", choices=("rl", "greedy"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    roll_out_here(given) if given.roll_out else main(given)
