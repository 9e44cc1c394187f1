"""Makes the quickstart's figures again, writes them into README.md and docs/experiments.md, and says which do not hold.

    python scripts/figures.py [--runs runs/figures] [--seeds 0 1 2] [--check]

A seed whose `summary.json` is missing is run first (12 minutes each on two cores, one after the other). Lines of both
documents are found by their first words. `--check` writes nothing. Exit code 1 where a promise is broken, or with
`--check` where a document says something else than the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Summary = Mapping[str, Any]
POLICIES = {
    "untrained": "untrained",
    "base": "base",
    "sft": "SFT",
    "rl": "RL",
    "lexical": "`lexical`",
}
_HEAD = (
    "| seed | policy | temperature | F1, unseen worlds | F1, unseen tools | F1, unseen domains | final answer right | "
    "calls per episode | irrelevant calls |"
)


def promises(summary: Summary) -> Iterator[tuple[str, bool]]:
    """Yield each promise of the README about one quickstart, and whether it is kept."""
    at_1, at_best, policies = summary["heldout"], summary["heldout_best"], ("sft", "rl")
    sft, rl = (at_1[name]["f1"] for name in policies)
    best_sft, best_rl = (at_best[name] for name in policies)
    yield f"quickstart in 12 minutes: {summary['seconds']['total'] / 60:.1f}", summary["seconds"]["total"] <= 720
    yield f"quickstart in 4 GiB: {summary['peak_rss_bytes'] / 2**30:.1f}", summary["peak_rss_bytes"] <= 4 * 2**30
    yield f"untrained F1 at most 0.05: {at_1['untrained']['f1']:.3f}", at_1["untrained"]["f1"] <= 0.05
    yield f"SFT's F1 at least 0.30 at temperature 1: {sft:.3f}", sft >= 0.30
    yield f"RL's F1 at least 0.10 above SFT's at temperature 1: {rl - sft:+.3f}", rl - sft >= 0.10
    gain = best_rl["f1"] - best_sft["f1"]
    yield f"RL's F1 at least 0.08 above SFT's, each at its best temperature: {gain:+.3f}", gain >= 0.08
    calls = [at_1[name]["irrelevant_call_share"] for name in policies]
    yield f"RL calls irrelevant tools less often: {calls[0]:.2%} -> {calls[1]:.2%}", calls[1] < calls[0]
    calls = [figures["irrelevant_call_share"] for figures in (best_sft, best_rl)]
    yield f"… half as often, each at its best: {calls[0]:.2%} -> {calls[1]:.2%}", calls[1] <= calls[0] / 2
    answers = [figures["answer_accuracy"] for figures in (best_sft, best_rl)]
    yield (
        f"RL answers rightly no less often, at its best: {answers[0]:.1%} -> {answers[1]:.1%}",
        (answers[1] >= max(answers[0], 0.20)),
    )
    unseen, seen = best_rl["f1_unseen_tools"], best_rl["f1"]
    yield f"F1 on unseen tools at least half of that on unseen worlds: {unseen:.3f}", unseen >= seen / 2
    difference = summary["export"]["max_abs_logit_difference"]
    yield f"exported logits within 1e-4: {difference}", difference is not None and difference <= 1e-4
    yield "tensors bit-equal", summary["export"]["bit_equal"]


def readme_cells(summaries: Sequence[Summary]) -> dict[str, str]:
    """Return what the README shows as seen, by the first cell of its row."""

    def each(figure: Callable[[Summary], str]) -> str:
        return " · ".join(map(figure, summaries))

    def pair(setting: str, key: str, form: str = "{:.3f}") -> str:
        def figure(summary: Summary) -> str:
            return " → ".join(form.format(summary[setting][name][key]) for name in ("sft", "rl"))

        return each(figure).replace("%", " %")

    def lexical(key: str) -> str:
        return each(lambda summary: f"{summary['heldout']['lexical'][key]:.3f}")

    minutes = each(lambda summary: f"{summary['seconds']['total'] / 60:.1f}")
    memory = max(summary["peak_rss_bytes"] for summary in summaries) / 2**30
    return {
        "quickstart after the install": f"{minutes} min, {memory:.1f} GiB",
        "F1 on unseen worlds at temperature 1, untrained": each(lambda s: f"{s['heldout']['untrained']['f1']:.3f}"),
        "… SFT → RL at temperature 1": pair("heldout", "f1"),
        "… SFT → RL, greedy": pair("heldout_greedy", "f1"),
        "… SFT → RL, each at its best of 0.25, 0.5, 0.75": pair("heldout_best", "f1"),
        "… `lexical`, a program that learns nothing": lexical("f1"),
        "F1 on unseen tools, SFT → RL, each at its best": pair("heldout_best", "f1_unseen_tools"),
        "… `lexical` on unseen tools": lexical("f1_unseen_tools"),
        "F1 on unseen domains, SFT → RL, each at its best": pair("heldout_best", "f1_unseen_domains"),
        "… `lexical` on unseen domains": lexical("f1_unseen_domains"),
        "final answer right on unseen worlds, SFT → RL at temperature 1": pair("heldout", "answer_accuracy"),
        "… SFT → RL, each at its best": pair("heldout_best", "answer_accuracy"),
        "… `lexical`'s final answer": lexical("answer_accuracy"),
        "share of calls to irrelevant tools at temperature 1, SFT → RL": pair(
            "heldout", "irrelevant_call_share", "{:.1%}"
        ),
        "share of calls to irrelevant tools, each at its best, SFT → RL": pair(
            "heldout_best", "irrelevant_call_share", "{:.1%}"
        ),
        "exported logits against `transformers`": each(
            lambda s: (
                "not compared"
                if s["export"]["max_abs_logit_difference"] is None
                else f"{s['export']['max_abs_logit_difference']:.1e}".replace("e-0", "e-")
            )
        ),
    }


def with_cells(text: str, cells: Mapping[str, str]) -> str:
    """Return a document with the third cell of each row replaced whose first cell is among `cells`.

    >>> with_cells("| speed | fast | 1 | run |", {"speed": "2"})
    '| speed | fast | 2 | run |'

    Raises:
        ValueError: the document lacks one of the rows.
    """
    lines, missing = text.split("\n"), set(cells)
    for number, line in enumerate(lines):
        columns = line.split(" | ")
        name = columns[0].removeprefix("| ")
        if name in cells and len(columns) > 3:
            columns[2] = cells[name]
            lines[number] = " | ".join(columns)
            missing.discard(name)
    if missing:
        raise ValueError(f"expected rows for {sorted(missing)}, found none")
    return "\n".join(lines)


def experiments_table(summaries: Sequence[Summary]) -> str:
    """Return the table of every policy at every temperature, with intervals."""

    def interval(figures: Mapping[str, Any], key: str) -> str:
        return "{:.3f} [{:.3f}, {:.3f}]".format(figures[key], *figures[f"{key}_interval"])

    lines = [_HEAD, "|" + "---|" * 9]
    for summary in summaries:
        for setting, how in (("heldout", "1"), ("heldout_greedy", "greedy"), ("heldout_best", "{:g} (best)")):
            for name, shown in POLICIES.items():
                figures = summary[setting].get(name)
                if figures is None or (name == "untrained" and setting != "heldout"):
                    continue
                temperature = how.format(figures["temperature"]) if "temperature" in figures else "–"
                cells = [str(summary["seed"]), shown, temperature]
                cells += [interval(figures, key) for key in ("f1", "f1_unseen_tools", "f1_unseen_domains")]
                cells += [f"{figures['answer_accuracy']:.1%}", f"{figures['tool_calls_per_episode']:.2f}"]
                cells += [f"{figures['irrelevant_call_share']:.2%}"]
                lines.append(f"| {' | '.join(cells)} |".replace("%", " %"))
    return "\n".join(lines)


def with_table(text: str, table: str) -> str:
    """Return the experiments with their table replaced.

    Raises:
        ValueError: there is none.
    """
    begin = text.index(_HEAD)
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
    for name, change in (
        ("README.md", lambda text: with_cells(text, readme_cells(summaries))),
        ("docs/experiments.md", lambda text: with_table(text, experiments_table(summaries))),
    ):
        before = (ROOT / name).read_text(encoding="utf-8")
        after = change(before)
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
