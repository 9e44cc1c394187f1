"""Ablations of the RL recipe: a tiny run without one of its parts, or with another in its place, beside the recipe.

    python scripts/ablate.py runs/quickstart --arms recall precision --out runs/ablations

Each arm trains from the SFT policy of a finished quickstart (any seed; name several folders for several seeds), on its
RL environments, with `configs/tiny_rl.toml` and the arm's changes; then it is evaluated on the 256 held-out worlds,
greedily, once beside distractors and once without any. An arm that is finished is not run again. Prints a table in
Markdown, one row for each quickstart and arm, and writes OUT/calls.svg, the calls per episode while each arm learns, as
means over the quickstarts, and adds its rows to those of OUT/ablations.json.

    recall, precision, f1_and_answer                                     the reward
    no_distractors, any_distractors                                      RL never shows an irrelevant tool; shows any
                                                                         of its domain's, however similar
    long, recall_long, precision_long                                    F1, recall, precision in twice the steps and in
                                                                         episodes of twice the tokens and turns
    no_filling                                                           a step learns from one rollout's groups alone
    from_base                                                            RL alone, without SFT
    trajectories_alone                                                   SFT that sees no environment, then RL
    50_environments, 200_environments, 3200_environments                 of the 640, or further ones
    twice_the_rate                                                       how far a step goes
    sequence_mean, undivided, clip_higher                                other objectives (examples/dapo_objective.py)

`sft` and `rl`, the quickstart's own, are always shown: the policy that RL begins with, and the recipe.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from astra_jax.config import load_config
from astra_jax.metrics_file import read_metrics
from astra_jax.report.charts import line_chart
from synthesis.environments.config import RL_SPLIT, EnvironmentsConfig, held_out_configs
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment, IrrelevantTool
from synthesis.run.destination import whole_file

ROOT = Path(__file__).parents[1]
TWICE_AS_LONG = {"rollout.max_response_tokens": "512", "rollout.max_turns": "10"}
NO_DISTRACTORS = {f"irrelevant_per_band.{band}": "0" for band in ("high", "medium", "low")}


def write_first(quickstart: Path, out: Path, *, count: int) -> None:
    """Write the first `count` environments that the quickstart has for RL."""
    environments = itertools.islice(RecordSource(quickstart / "rl_environments", Environment), count)
    write_records(out, environments, kind="environment")


def with_any_distractors(quickstart: Path, out: Path) -> None:
    """Write the quickstart's environments with as many irrelevant tools, drawn from all that its domain ever has."""
    environments = list(RecordSource(quickstart / "rl_environments", Environment))
    of_domain: dict[str, dict[str, IrrelevantTool]] = {}
    for environment in environments:
        pool = of_domain.setdefault(environment.domain, {})
        pool.update({irrelevant.tool.document.name: irrelevant for irrelevant in environment.irrelevant_tools})

    def drawn_anew(environment: Environment) -> Environment:
        rng = random.Random(environment.id)
        pool = sorted(of_domain[environment.domain].items())
        chosen = rng.sample([irrelevant for _, irrelevant in pool], len(environment.irrelevant_tools))
        # One of each band is shown: here bands only say that all of them are.
        bands = [irrelevant.band for irrelevant in environment.irrelevant_tools]
        relabelled = [one.model_copy(update={"band": band}) for one, band in zip(chosen, bands, strict=True)]
        return environment.model_copy(update={"irrelevant_tools": tuple(relabelled)})

    write_records(out, map(drawn_anew, environments), kind="environment")


def synthesize(quickstart: Path, out: Path, *, count: int) -> None:
    """Synthesise so many environments as the quickstart has for RL, apart from all that it evaluates and SFT reads."""
    training = load_config(EnvironmentsConfig, ROOT / "configs/tiny_environments.toml")
    of_quickstart = training.model_copy(update={"seed": seed_of(quickstart), "out": quickstart / "environments"})
    split = held_out_configs(of_quickstart)[RL_SPLIT]
    apart = [str(quickstart / name) for name in ("environments", "heldout")]
    settings = {"seed": split.seed, "count": count, "out": out, "disjoint_from": json.dumps(apart)}
    astra("synthesize", "environments", "configs/tiny_environments.toml", **settings)


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
    environments: Callable[[Path, Path], None] | None = None
    """Writes other environments than the quickstart's for RL, from its folder into another."""
    sft: Mapping[str, str] | None = None
    """Changes of an SFT of its own, which RL then begins with."""
    limits: Mapping[str, str] = MappingProxyType({})
    """Changes of its episodes in RL and in the evaluation."""


ARMS = {
    **{reward: Arm({"reward": reward}) for reward in ("recall", "precision", "f1_and_answer")},
    **{
        f"{reward}_long".removeprefix("f1_"): Arm({"reward": reward, "steps": "40"}, limits=TWICE_AS_LONG)
        for reward in ("f1", "recall", "precision")
    },
    "no_distractors": Arm(NO_DISTRACTORS),
    "any_distractors": Arm(environments=with_any_distractors),
    "no_filling": Arm({"groups_per_rollout": "16", "max_rollouts_per_step": "1"}),
    "from_base": Arm(init="base"),
    "trajectories_alone": Arm(sft={"environments": "[]"}),
    "50_environments": Arm(environments=functools.partial(write_first, count=50)),
    "200_environments": Arm(environments=functools.partial(write_first, count=200)),
    "3200_environments": Arm(environments=functools.partial(synthesize, count=3200)),
    "twice_the_rate": Arm({"optimizer.learning_rate": "4e-4"}),
    "sequence_mean": Arm({"objective": "examples.dapo_objective:first_grpo"}),
    "undivided": Arm({"objective": "examples.dapo_objective:dr_grpo"}),
    "clip_higher": Arm({"objective": "examples.dapo_objective:dapo"}),
}
COLOURS = ("#0b6e4f", "#c1121f", "#1d4ed8", "#b45309", "#7e22ce", "#0e7490", "#be185d", "#4d7c0f", "#374151")
SHOWN = (
    *("f1", "recall", "precision", "tool_calls_per_episode", "irrelevant_call_share", "answer_accuracy"),
    "recovered_tool_share",
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
        rows.append(evaluated(quickstart, "sft", quickstart / "sft/policy", folder / "sft"))
        recipe = evaluated(quickstart, "rl", quickstart / "rl/policy", folder / "rl")
        rows.append(recipe | curve(quickstart / "rl/metrics.jsonl"))
        for name in options.arms:
            seconds = train(quickstart, ARMS[name], folder / name)
            if ARMS[name].sft is not None:
                own_sft = folder / name / "sft"
                rows.append(evaluated(quickstart, f"{name}, sft", own_sft / "policy", own_sft.with_name("after_sft")))
            of_arm = evaluated(quickstart, name, folder / name / "rl/policy", folder / name, ARMS[name].limits)
            rows.append(of_arm | seconds)
            write(options.out, rows)
    write(options.out, rows)
    print("\n".join(table(rows)))


def train(quickstart: Path, arm: Arm, folder: Path) -> dict[str, Any]:
    """Train an arm, or go on with it; return its seconds and its curve."""
    started = time.monotonic()
    environments = quickstart / "rl_environments"
    if arm.environments is not None:
        environments = written(arm.environments, quickstart, folder / "environments")
    seed = seed_of(quickstart)
    init = quickstart / arm.init
    if arm.sft is not None:
        init = folder / "sft" / "policy"
        read = {name: [str(quickstart / name)] for name in ("trajectories", "environments")}
        read["conversations"] = [str(quickstart / "made_up.jsonl")]
        places = {"seed": seed, "out": folder / "sft", "init": quickstart / "base"}
        astra("sft", "configs/tiny_sft.toml", **places, **{k: json.dumps(v) for k, v in read.items()} | arm.sft)
    astra(
        "rl",
        "configs/tiny_rl.toml",
        seed=seed,
        out=folder / "rl",
        init=init,
        environments=environments,
        **arm.overrides,
        **arm.limits,
    )
    return {"train_seconds": round(time.monotonic() - started, 1)} | curve(folder / "rl/metrics.jsonl")


def written(write_them: Callable[[Path, Path], None], quickstart: Path, out: Path) -> Path:
    """Let an arm write environments, unless it has."""
    if not (out / "dataset.json").exists():  # it is written last: a killed arm is made again, or goes on
        write_them(quickstart, out)
    return out


def curve(metrics: Path) -> dict[str, Any]:
    """Return the curve of a run's steps, and the number of environments that were rolled out."""
    lines = read_metrics(metrics)
    return {
        "environments_rolled_out": lines[-1]["groups_valid"] + lines[-1]["groups_degenerate"],
        "train_calls_per_episode": [round(line["tool_calls_per_episode"], 3) for line in lines],
    }


def evaluated(
    quickstart: Path,
    name: str,
    policy: Path,
    folder: Path,
    limits: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the held-out figures of a policy, beside distractors and without, in episodes of these `limits`."""
    row: dict[str, Any] = {"quickstart": quickstart.name, "arm": name}
    for where, overrides in (("with", limits), ("without", {**limits, **NO_DISTRACTORS})):
        out = folder / f"evaluation_{where}_distractors"
        settings = {"policy": policy, "environments": quickstart / "heldout", "out": out, "rollout.temperature": 0}
        settings["seed"] = seed_of(quickstart)  # it mixes the tools: the quickstart's own figures come out again
        astra("evaluate", "environments", "configs/tiny_evaluation.toml", **settings, **overrides)
        row[where] = json.loads((out / "figures.json").read_text())
    return row


def write(out: Path, rows: list[dict[str, Any]]) -> None:
    """Write the rows so far, beside the rows of earlier calls on other arms and quickstarts."""
    file = out / "ablations.json"
    with (out / ".ablations.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another call may have arms of its own under way
        before = json.loads(file.read_text()) if file.exists() else []
        known = {(row["quickstart"], row["arm"]): row for row in [*before, *rows]}
        with whole_file(file) as partial:
            partial.write_text(json.dumps(list(known.values()), indent=1) + "\n")
    (out / "calls.svg").write_text(drawn(rows))


def placed(percent: re.Match[str]) -> str:
    """Return where a point of a chart, in percent of its area, lies in the drawing."""
    return f"{50 + 5.4 * float(percent[1]):.1f} {40 + 2.6 * float(percent[2]):.1f}"


def drawn(rows: list[dict[str, Any]]) -> str:
    """Return an SVG of the calls per episode over the steps of each arm."""
    runs: dict[str, list[list[float]]] = {}
    for row in rows:
        if calls := row.get("train_calls_per_episode"):
            runs.setdefault(row["arm"], []).append(calls)
    means = {arm: [statistics.fmean(step) for step in zip(*of_arm, strict=False)] for arm, of_arm in runs.items()}
    steps = range(max(map(len, means.values())))
    lines = [{"step": step, **{arm: mean[step] for arm, mean in means.items() if step < len(mean)}} for step in steps]
    chart = line_chart("Tool calls per episode", lines, {arm: arm for arm in means}, from_zero=True)
    assert chart is not None
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 340" font-family="sans-serif" font-size="13">']
    parts.append('<rect width="760" height="340" fill="#fff"/>')
    parts.append(f'<text x="50" y="22" font-weight="bold">{chart.title} while RL learns, mean over quickstarts</text>')
    for tick in chart.y_ticks:
        y = 40 + 2.6 * tick.percent
        parts.append(f'<line x1="50" x2="590" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="42" y="{y + 4:.1f}" text-anchor="end">{tick.label}</text>')
    for tick in chart.x_ticks:
        parts.append(f'<text x="{50 + 5.4 * tick.percent:.1f}" y="320" text-anchor="middle">{tick.label}</text>')
    for number, each in enumerate(chart.curves):
        colour = COLOURS[number % len(COLOURS)]
        path = re.sub(r"([\d.]+) ([\d.]+)", placed, each.smooth_path or each.raw_path)
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="604" y="{56 + 22 * number}" fill="{colour}">{each.name} {each.last}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a table: held-out figures, greedy, beside distractors; F1 without them in the last column."""
    head = ["quickstart", "arm", "F1", "recall", "precision", "calls", "irrelevant", "answers right", "recovered"]
    head.append("F1 without")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for row in rows:
        low, high = row["with"]["f1_interval"]
        figures = [f"{row['with'][name]:.3f}" if name in row["with"] else "–" for name in SHOWN]
        figures[0] += f" [{low:.3f}, {high:.3f}]"
        figures.append(f"{row['without']['f1']:.3f}")
        lines.append(f"| {' | '.join([row['quickstart'], row['arm'], *figures])} |")
    return lines


if __name__ == "__main__":
    main()
