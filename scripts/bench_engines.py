"""The quickstart's RL and evaluation of a policy, by this tree and by the one whose engine decoded in rounds.

    python scripts/bench_engines.py runs/quickstart [--before 70485c8~1] [--turns 2] [--policy sft]

The other tree is checked out beside this one, and gets this one's `synthesis` but for `answers`, and `sandbox`, so that
both read the same records; they run in turns. It is asked for what this one is asked for, as far as it knows the words.

    rl           steps of the quickstart's RL after the first, in which most is compiled: rollouts and updates
    evaluation   one episode in each of 256 unseen worlds at temperature 1, greedily and at 0.5, as many at once as
                 either tree's evaluation has: a second pass, in which nothing is compiled any more

Printed are seconds, and ratios of medians; of RL the mean reward of each step; of an evaluation CPU seconds, how many
tokens were sampled, and a digest of the greedy ones, which both trees share. Above temperature 0 they draw other
numbers, since they cut environments into other lots.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

ROOT = Path(__file__).parents[1]
_STEPS = 4
_TEMPERATURES = (1.0, 0.0, 0.5)


async def learn(run: Path, policy_name: str, url: str) -> dict:
    """Take a few steps of RL, and say how long those after the first took."""
    # These names are the same in both trees, here and below.
    from astra_jax.metrics_file import read_metrics
    from astra_jax.rl.config import RLConfig
    from astra_jax.rl.stage import run_rl
    from sandbox.client import AsyncSandboxClient

    asked = tomllib.loads((ROOT / "configs/tiny_rl.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        places = {
            "out": f"{folder}/rl",
            "init": str(run / policy_name / "policy"),
            "environments": str(run / "rl_environments"),
        }
        config = RLConfig.model_validate(known(RLConfig, {**asked, **places, "steps": _STEPS}))
        async with AsyncSandboxClient(url) as sandbox:
            await run_rl(config, sandbox)
        lines = read_metrics(Path(folder) / "rl/metrics.jsonl")[1:]
    names = ("seconds", "rollout_seconds")
    rewards = [round(line["reward"], 4) for line in lines]
    return {"rewards": rewards, **{name: round(sum(line[name] for line in lines), 2) for name in names}}


async def evaluate(run: Path, policy_name: str, url: str) -> dict:
    """Evaluate at three temperatures twice, and say how long the second pass took."""
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine
    from astra_jax.evaluate import environments as evaluation
    from sandbox.client import AsyncSandboxClient
    from synthesis.record_io import RecordSource
    from synthesis.records import Environment

    configs = next(path for path in (Path("configs"), Path("astra_jax/configs")) if path.is_dir())
    of_tree = tomllib.loads((configs / "tiny_evaluation.toml").read_text())
    rollout = known(RolloutConfig, tomllib.loads((ROOT / "configs/tiny_evaluation.toml").read_text())["rollout"])
    policy = load_policy(run / policy_name / "policy")
    held_out = list(RecordSource(run / "heldout", Environment))
    async with AsyncSandboxClient(url) as sandbox:

        async def at(temperatures: tuple[float, ...]) -> list[Any]:
            limits = {**rollout, "temperature": temperatures[0]}
            config = evaluation.EvaluationConfig.model_validate({**of_tree, "rollout": limits})
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
            if hasattr(evaluation, "evaluate_temperatures"):
                return await evaluation.evaluate_temperatures(
                    temperatures, engine, policy.params, held_out, config, seed=0
                )
            return [await evaluation.evaluate_environments(engine, policy.params, held_out, config, seed=0)]

        together = hasattr(evaluation, "evaluate_temperatures")
        for _ in range(2):
            started, cpu_started = time.monotonic(), time.process_time()
            found = []
            for temperatures in (_TEMPERATURES,) if together else [(one,) for one in _TEMPERATURES]:
                found += await at(temperatures)
            seconds, cpu_seconds = time.monotonic() - started, time.process_time() - cpu_started
    greedy = found[_TEMPERATURES.index(0.0)]
    ids = [list(map(int, episode.ledger.ids)) for group in greedy.groups for episode in group]
    ledgers = [episode.ledger for one in found for group in one.groups for episode in group]
    return {
        "episodes": len(ledgers),
        "sampled_tokens": sum(int(sum(ledger.loss_mask)) for ledger in ledgers),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu_seconds, 2),
        "greedy_tokens": hashlib.md5(json.dumps(ids).encode(), usedforsecurity=False).hexdigest()[:8],
    }


def known(model: type[BaseModel], asked: dict[str, Any]) -> dict[str, Any]:
    """Leave out what a tree's config does not know."""
    return {
        name: known(field.annotation, asked[name])
        if isinstance(asked[name], dict) and _is_model(field)
        else asked[name]
        for name, field in model.model_fields.items()
        if name in asked
    }


def _is_model(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def in_tree(tree: Path, what: str, options: argparse.Namespace) -> dict:
    """Run one kind in a process of its own, with a tree's packages."""
    command = [
        sys.executable,
        str(Path(__file__)),
        str(options.run.resolve()),
        "--policy",
        options.policy,
        "--measure",
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
            # What an answer is worth, it asks in its own words.
            shutil.rmtree(before / "synthesis/answers")
            subprocess.run(
                ["git", "-C", str(before), "checkout", "--quiet", options.before, "synthesis/answers"], check=True
            )
            for what in MEASURED:
                found: dict[str, list[dict]] = {"before": [], "now": []}
                for turn in range(options.turns):
                    for name, tree in (("before", before), ("now", ROOT)):
                        found[name].append(in_tree(tree, what, options))
                        print(json.dumps({"what": what, "tree": name, "turn": turn, **found[name][-1]}), flush=True)
                ratios = {}
                for unit in (unit for unit in found["now"][0] if unit.endswith("seconds")):
                    now, then = (statistics.median(one[unit] for one in found[name]) for name in ("now", "before"))
                    ratios[unit] = round(now / then, 3)
                digests = {one["greedy_tokens"] for ones in found.values() for one in ones if "greedy_tokens" in one}
                same = {"same_greedy_tokens": len(digests) == 1} if digests else {}
                print(json.dumps({"what": what, "ratio": ratios, **same}), flush=True)
        finally:
            subprocess.run([*git, "remove", "--force", str(before)], check=True)


def measure_here(options: argparse.Namespace) -> None:
    """Measure one kind with the packages of this process's path."""
    import jax

    from sandbox.local import local_sandbox

    jax.config.update("jax_compilation_cache_dir", str(Path(tempfile.gettempdir()) / "bench_engines_xla"))
    with local_sandbox() as url:
        print(json.dumps(asyncio.run(MEASURED[options.measure](options.run, options.policy, url))))


MEASURED = {"rl": learn, "evaluation": evaluate}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a quickstart that has ended")
    parser.add_argument("--before", default="70485c8~1", help="the other tree's commit")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--policy", default="sft", choices=("sft", "rl"))
    parser.add_argument("--measure", choices=MEASURED, help=argparse.SUPPRESS)
    given = parser.parse_args()
    measure_here(given) if given.measure else main(given)
