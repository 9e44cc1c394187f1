"""Ablations of the RL recipe: a tiny run without one of its parts, or with another in its place, beside the recipe.

    python scripts/ablate.py runs/quickstart --arms recall precision --out runs/ablations

Each arm trains from the SFT policy of a finished quickstart (any seed; name several folders for several seeds), on its
environments, with `configs/tiny_rl.toml` and the arm's changes. Then it is evaluated on the held-out worlds, greedily:
beside the siblings that are held out with them, and beside tools of other domains in their place. An arm that is
finished is not run again. Prints a table in Markdown, one row for each quickstart and arm, and adds its rows to
those of OUT/ablations.json.

    recall, precision       the reward
    no_distractors          RL never shows an irrelevant tool
    foreign_distractors     RL shows tools of other domains in place of siblings
    no_filling              a step learns from one rollout's groups alone
    from_base               RL alone, without SFT

`base`, `sft` and `rl`, the quickstart's own, are always shown. The table also has the F1 of the same episodes without
second calls: without each call that repeats the arguments of the call before it, as the base's calls in doubt do.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any, NamedTuple

from astra_jax.metrics_file import read_metrics
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, IrrelevantTool
from synthesis.run.destination import whole_file

ROOT = Path(__file__).parents[1]


def with_foreign_distractors(source: Path, out: Path) -> Path:
    """Write environments with tools that others of another domain need in place of their irrelevant tools, once."""
    if (out / "dataset.json").exists():  # it is written last
        return out
    environments = list(RecordSource(source, Environment))

    def replaced(environment: Environment) -> Environment:
        rng = random.Random(environment.id)
        taken = {tool.document.name for tool in environment.tools}
        foreign: list[IrrelevantTool] = []
        for other in rng.sample(environments, len(environments)):
            if other.domain == environment.domain or other.language != environment.language:
                continue
            for tool, irrelevant in zip(other.tools, environment.irrelevant_tools[len(foreign) :], strict=False):
                if tool.document.name not in taken:
                    taken.add(tool.document.name)
                    foreign.append(irrelevant.model_copy(update={"tool": tool}))
        return environment.model_copy(update={"irrelevant_tools": tuple(foreign)})

    write_records(out, map(replaced, environments), kind="environment")
    return out


def seed_of(quickstart: Path) -> int:
    """Return the seed of a quickstart that has ended."""
    return int(json.loads((quickstart / "summary.json").read_text())["seed"])


def astra(*words: str | Path, **overrides: Any) -> None:
    """Run one command to its end."""
    command = [
        sys.executable,
        "-m",
        "astra_jax.cli",
        *map(str, words),
        *(f"{key}={value}" for key, value in overrides.items()),
    ]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=sys.stderr)


class Arm(NamedTuple):
    """The changes of one run."""

    overrides: Mapping[str, str] = MappingProxyType({})
    init: str = "sft/policy"
    foreign: bool = False
    """Whether RL shows tools of other domains in place of siblings."""


ARMS = {
    "recall": Arm({"reward": "recall"}),
    "precision": Arm({"reward": "precision"}),
    "no_distractors": Arm({f"irrelevant_per_band.{band}": "0" for band in ("high", "medium", "low")}),
    "foreign_distractors": Arm(foreign=True),
    "no_filling": Arm({"max_rollouts_per_step": "1"}),
    "from_base": Arm(init="base"),
}
SHOWN = (
    "f1",
    "recall",
    "precision",
    "tool_calls_per_episode",
    "irrelevant_call_share",
    "answer_accuracy",
    "tokens_per_turn",
)


def main() -> None:
    """Run the missing arms, and print all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quickstarts", type=Path, nargs="+", metavar="QUICKSTART")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = []
    for quickstart in options.quickstarts:
        folder = options.out / quickstart.name
        for name, policy in (("base", "base"), ("sft", "sft/policy"), ("rl", "rl/policy")):
            rows.append(evaluated(quickstart, name, quickstart / policy, folder))
        for name in options.arms:
            figures = train(quickstart, name, folder)
            rows.append(evaluated(quickstart, name, folder / name / "rl/policy", folder) | figures)
            write(options.out, rows)
    write(options.out, rows)
    print("\n".join(table(rows)))


def train(quickstart: Path, name: str, folder: Path) -> dict[str, Any]:
    """Train an arm, or go on with it; return its seconds and its curve."""
    started, arm = time.monotonic(), ARMS[name]
    environments = quickstart / "environments"
    if arm.foreign:
        environments = with_foreign_distractors(environments, folder / "foreign_environments")
    places = {"seed": seed_of(quickstart), "out": folder / name / "rl", "init": quickstart / arm.init}
    astra("rl", "configs/tiny_rl.toml", environments=environments, **places, **arm.overrides)
    lines = read_metrics(folder / name / "rl/metrics.jsonl")
    return {
        "train_seconds": round(time.monotonic() - started, 1),
        "environments_rolled_out": lines[-1]["groups_valid"] + lines[-1]["groups_degenerate"],
        "train_calls_per_episode": [round(line["tool_calls_per_episode"], 3) for line in lines],
    }


def evaluated(quickstart: Path, name: str, policy: Path, folder: Path) -> dict[str, Any]:
    """Return the held-out figures of a policy, beside siblings and beside tools of other domains."""
    row: dict[str, Any] = {"quickstart": quickstart.name, "arm": name}
    foreign = with_foreign_distractors(quickstart / "heldout", folder / "foreign_heldout")
    for beside, environments in (("siblings", quickstart / "heldout"), ("foreign", foreign)):
        out = folder / name / f"evaluation_beside_{beside}"
        # The seed mixes the tools: the quickstart's own figures come out again.
        settings = {"policy": policy, "environments": environments, "out": out, "seed": seed_of(quickstart)}
        astra("evaluate", "environments", "configs/tiny_evaluation.toml", **settings)
        row[beside] = json.loads((out / "figures.json").read_text())
        episodes = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
        row[beside]["f1_without_second_calls"] = fmean(map(f1_without_second_calls, episodes))
    return row


def f1_without_second_calls(episode: Mapping[str, Any]) -> float:
    """Return the F1 of a logged episode without each call of another tool with the arguments of the call before.

    >>> names = ("former_rent", "final_rent")
    >>> calls = [{"name": name, "arguments": {"flat": "Red Gate"}, "ok": True} for name in names]
    >>> solved = [{"tool": "former_rent", "solved": True}]
    >>> round(f1_without_second_calls({"calls": calls, "sub_questions": solved, "num_subtasks": 1}), 3)
    1.0
    """
    kept: list[Mapping[str, Any]] = []
    for call in episode["calls"]:
        if not kept or call["arguments"] != kept[-1]["arguments"] or call["name"] == kept[-1]["name"]:
            kept.append(call)
    called = {call["name"] for call in kept if call["ok"]}
    solved = sum(bool(each["solved"]) and each["tool"] in called for each in episode["sub_questions"])
    return 2 * solved / (len(kept) + episode["num_subtasks"]) if solved else 0.0


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows so far, beside the rows of earlier calls on other arms and quickstarts."""
    file = out / "ablations.json"
    with (out / ".ablations.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another call may have arms of its own under way
        before = json.loads(file.read_text()) if file.exists() else []
        known = {(row["quickstart"], row["arm"]): row for row in [*before, *rows]}
        with whole_file(file) as partial:
            partial.write_text(json.dumps(list(known.values()), indent=1) + "\n")


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: held-out figures, greedy, beside siblings; F1 beside foreign tools comes last."""
    head = ["quickstart", "arm", "F1", "recall", "precision", "calls", "irrelevant", "answers right", "tokens a turn"]
    head += ["F1 without second calls", "F1 beside foreign tools"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        shown = [
            "{:.3f} [{:.3f}, {:.3f}]".format(row[each]["f1"], *row[each]["f1_interval"])
            for each in ("siblings", "foreign")
        ]
        figures = [f"{row['siblings'][name]:.3f}" for name in (*SHOWN[1:], "f1_without_second_calls")]
        lines.append(f"| {' | '.join([row['quickstart'], row['arm'], shown[0], *figures, shown[1]])} |")
    return lines


if __name__ == "__main__":
    main()
