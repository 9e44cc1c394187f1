"""How many calls episodes make beside those that their questions need, and what recall they have: JSON lines.

    python scripts/calls_needed.py runs/quickstart/heldout OUT/seed0/recall_long/evaluation_with_distractors

The first folder has the environments, each other one is an evaluation in them (`astra evaluate environments`, or an arm
of `scripts/ablate.py`) with one episode in each. Needed is a call for each sub-task. A policy that is rewarded for
recall alone has a reason to call more often only where recall is short.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from synthesis.record_io import RecordSource
from synthesis.records import Environment


def main() -> None:
    """Prints one line for each evaluation: by calls more than needed, how many episodes and their mean recall."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    parser.add_argument("evaluations", type=Path, nargs="+", metavar="EVALUATION")
    arguments = parser.parse_args()
    needed = {each.id: len(each.sub_tasks) for each in RecordSource(arguments.environments, Environment)}
    for evaluation in arguments.evaluations:
        print(json.dumps({"evaluation": str(evaluation), "by_calls_more_than_needed": recalls(evaluation, needed)}))


def recalls(evaluation: Path, needed: dict[str, int]) -> dict[int, dict[str, float]]:
    """Of the episodes that make so many calls more than needed, fewer if below 0: how many, and their mean recall."""
    of_more: dict[int, list[float]] = defaultdict(list)
    for line in (evaluation / "environments.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["episodes"] != 1:
            raise SystemExit(f"expected one episode in {row['id']}, found {row['episodes']}: {evaluation}")
        if row["id"] not in needed:
            raise SystemExit(
                f"expected an evaluation in the environments of the first folder, found {row['id']}: {evaluation}"
            )
        calls, recall = (row["terms"][name][0] for name in ("tool_calls_per_episode", "recall"))
        of_more[int(calls) - needed[row["id"]]].append(recall)
    return {
        more: {"episodes": len(found), "recall": round(statistics.mean(found), 3)}
        for more, found in sorted(of_more.items())
    }


if __name__ == "__main__":
    main()
