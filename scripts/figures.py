"""Makes the quickstart's figures again, writes them into README.md and docs/results.md, and says which do not hold.

    python scripts/figures.py [--runs runs/figures] [--seeds 0 1 2] [--check]

A seed whose `summary.json` is missing is run first (10 minutes each on two cores, one after the other). Each
document has one table, found by its head. `--check` writes nothing. Exit code 1 where a promise is broken, or with
`--check` where a document says something else than the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Summary = Mapping[str, Any]
POLICIES = {
    "base": "base",
    "sft": "SFT",
    "rl": "RL",
    "told_names": "`told_names`",
}
_README_HEAD = "| greedy; seed 0 | base | SFT | RL | `told_names` |"
_HEAD = (
    "| seed | policy | F1, unseen worlds | F1, unseen tools | F1, unseen domains | final answer right | "
    "calls per episode | irrelevant calls |"
)


def promises(summary: Summary) -> Iterator[tuple[str, bool]]:
    """Yield each promise of docs/results.md about one quickstart, and whether it is kept."""
    policies = summary["heldout"]
    yield f"quickstart in 10 minutes: {summary['seconds']['total'] / 60:.1f}", summary["seconds"]["total"] <= 600
    yield f"quickstart in 4 GiB: {summary['peak_rss_bytes'] / 2**30:.1f}", summary["peak_rss_bytes"] <= 4 * 2**30
    base, sft, rl = (policies[name] for name in ("base", "sft", "rl"))
    attack = policies["told_names"]["f1"]
    yield f"RL's F1 above a program that knows the names, {attack:.3f}: {rl['f1']:.3f}", rl["f1_interval"][0] > attack
    for name, figures in (("SFT", sft), ("base", base)):
        told = f"RL's F1 above the {name}'s on unseen worlds, intervals apart: {figures['f1']:.3f} -> {rl['f1']:.3f}"
        yield told, rl["f1_interval"][0] > figures["f1_interval"][1]
    for split in ("tools", "domains"):
        before, after = (figures[f"f1_unseen_{split}"] for figures in (base, rl))
        yield f"RL's F1 on unseen {split} not below the base's: {before:.3f} -> {after:.3f}", after >= before
    difference = summary["export"]["max_abs_logit_difference"]
    yield f"exported logits within 1e-4: {difference}", difference is not None and difference <= 1e-4
    yield "tensors bit-equal", summary["export"]["bit_equal"]


def readme_table(summary: Summary) -> str:
    """Return the README's table of one seed: base, SFT and RL (greedy), and the program `told_names`."""
    lines = [_README_HEAD, "|" + "---|" * 5]
    for row, key, form in (
        ("F1, unseen worlds", "f1", "{:.3f}"),
        ("F1, unseen tools", "f1_unseen_tools", "{:.3f}"),
        ("F1, unseen domains", "f1_unseen_domains", "{:.3f}"),
        ("final answer right", "answer_accuracy", "{:.1%}"),
        ("calls of irrelevant tools", "irrelevant_call_share", "{:.1%}"),
        ("calls per episode", "tool_calls_per_episode", "{:.2f}"),
    ):
        cells = [form.format(summary["heldout"][name][key]) for name in ("base", "sft", "rl", "told_names")]
        lines.append(f"| {row} | {' | '.join(cells)} |".replace("%", " %"))
    return "\n".join(lines)


def results_table(summaries: Sequence[Summary]) -> str:
    """Return the table of every policy, with intervals."""

    def interval(figures: Mapping[str, Any], key: str) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(figures[key], *figures[f"{key}_interval"])

    lines = [_HEAD, "|" + "---|" * 8]
    for summary in summaries:
        for name, shown in POLICIES.items():
            figures = summary["heldout"][name]
            cells = [str(summary["seed"]), shown]
            cells += [interval(figures, key) for key in ("f1", "f1_unseen_tools", "f1_unseen_domains")]
            cells += [f"{figures['answer_accuracy']:.1%}", f"{figures['tool_calls_per_episode']:.2f}"]
            cells += [f"{figures['irrelevant_call_share']:.2%}"]
            lines.append(f"| {' | '.join(cells)} |".replace("%", " %"))
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """Return a document with the table replaced that has the same head.

    >>> with_table("A\\n\\n| a |\\n|---|\\n| 1 |\\n\\nB", "| a |\\n|---|\\n| 2 |")
    'A\\n\\n| a |\\n|---|\\n| 2 |\\n\\nB'

    Raises:
        ValueError: the document has no such table.
    """
    begin = text.index(table.split("\n", 1)[0])
    return text[:begin] + table + text[text.index("\n\n", begin) :]


def machine() -> str:
    """Name the tree and the machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    return f"tree {commit.strip() or 'unknown'}, {os.cpu_count()} cores of {platform.machine()}, {platform.system()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "figures")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--check", action="store_true", help="compare the documents with the runs, write nothing")
    options = parser.parse_args()
    if options.seeds != [0, 1, 2] and not options.check:
        parser.error("expected seeds 0 1 2, which the documents show; with others, say --check")
    for seed in options.seeds:
        out = options.runs / f"seed{seed}"
        if not (out / "summary.json").exists():
            command = [sys.executable, "-m", "astra_jax.cli", "quickstart", "--seed", str(seed), "--out", str(out)]
            subprocess.run(command, cwd=ROOT, check=True)
    summaries = [json.loads((options.runs / f"seed{seed}" / "summary.json").read_text()) for seed in options.seeds]
    print(machine())
    broken = False
    for summary in summaries:
        for promise, is_kept in promises(summary):
            print(f"seed {summary['seed']}: {'kept  ' if is_kept else 'BROKEN'} {promise}")
            broken |= not is_kept
    for name, table in (("README.md", readme_table(summaries[0])), ("docs/results.md", results_table(summaries))):
        before = (ROOT / name).read_text(encoding="utf-8")
        after = with_table(before, table)
        if before == after:
            print(f"{name} says what the runs say")
        elif options.check:
            print(f"{name} DIFFERS from the runs")
            broken = True
        else:
            (ROOT / name).write_text(after, encoding="utf-8")
            print(f"{name} written")
    sys.exit(broken)


if __name__ == "__main__":
    main()
