"""Say whether two quickstarts of one seed did the same: records byte for byte, loss curves, figures, weights.

    make quickstart QUICKSTART="--out runs/a" && make quickstart QUICKSTART="--out runs/b"
    python scripts/compare_quickstarts.py runs/a runs/b

Seconds, bytes of memory and the service's errors are left out: they belong to the machine. Exit code 1 when anything
differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

_OF_THE_MACHINE = ("second", "rss", "mfu", "service_errors")


def contents(run: Path) -> dict[str, Any]:
    """What two runs of one seed must have in common, by name."""
    shards = {str(path.relative_to(run)): _sha256(path) for path in sorted(run.glob("*/*.array_record"))}
    curves = {
        str(path.relative_to(run)): [_comparable(json.loads(line)) for line in path.read_text().splitlines()]
        for path in sorted(run.glob("*/metrics.jsonl"))
    }
    weights = {"hf/model.safetensors": _sha256(run / "hf" / "model.safetensors")}
    return {**shards, **curves, **weights, "summary.json": _comparable(json.loads((run / "summary.json").read_text()))}


def _comparable(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if not any(word in key for word in _OF_THE_MACHINE)}


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = (contents(Path(argument)) for argument in sys.argv[1:])
    for name in sorted(first.keys() | second.keys()):
        print(f"{'same  ' if first.get(name) == second.get(name) else 'DIFFER'}  {name}")
    if first != second:
        sys.exit(1)


if __name__ == "__main__":
    main()
