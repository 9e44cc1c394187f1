"""How long another threshold takes on a finished run of trajectories, and whom it asks: one JSON line.

    python scripts/bench_reselection.py [--count 1000] [--mean 0.97]

A run with the embedded teacher, then the same command with another `reward_thresholds.mean`, then with the first again:
seconds, requests and trajectories kept of each, and whether the last has the bytes of the first.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import io
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.reward_axes import RewardThresholds


class Counting(ProceduralTeacher):
    """Counts what it is asked."""

    asked = 0

    async def ask(self, request: Any, *, seed: int) -> Any:
        """Answer as ever."""
        self.asked += 1
        return await super().ask(request, seed=seed)


def digest_of(folder: Path) -> str:
    """Name the bytes of a folder."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.iterdir()))).hexdigest()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--mean", type=float, default=0.97)
    options = parser.parse_args()
    line: dict[str, Any] = {"work": "reselection", "count": options.count}
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        digests = []
        for name, mean in (("made", 0.6), ("selected", options.mean), ("selected_back", 0.6)):
            teacher = Counting()
            thresholds = RewardThresholds(mean=mean)
            config = TrajectoriesConfig(count=options.count, out=out, reward_thresholds=thresholds)
            started = time.monotonic()
            report = asyncio.run(synthesize_trajectories(config, teacher, progress=io.StringIO()))
            seconds = round(time.monotonic() - started, 2)
            line[name] = {"mean": mean, "seconds": seconds, "requests": teacher.asked, "kept": report.kept}
            digests.append(digest_of(out))
    print(json.dumps({**line, "same_bytes": digests[0] == digests[2]}))


if __name__ == "__main__":
    main()
