"""Say whether two quickstarts of one seed did the same: records byte for byte, loss curves, figures, weights.

    make quickstart QUICKSTART="--out runs/a" && make quickstart QUICKSTART="--out runs/b"
    python scripts/compare_quickstarts.py runs/a runs/b

Of curves and figures it says how many differ, and the first of them. Seconds and shares of them, bytes of memory and
the service's errors are left out: they belong to the machine. Exit code 1 when anything differs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

_OF_THE_MACHINE = ("second", "rss", "mfu", "other_share", "service_errors")


def contents(run: Path) -> dict[str, Any]:
    """The parts that two runs of one seed must have in common, by name."""
    shards = {str(path.relative_to(run)): _sha256(path) for path in sorted(run.glob("*/*.array_record"))}
    curves = {
        str(path.relative_to(run)): [_comparable(json.loads(line)) for line in path.read_text().splitlines()]
        for path in sorted(run.glob("*/metrics.jsonl"))
    }
    weights = {"hf/model.safetensors": _sha256(run / "hf" / "model.safetensors")}
    return {**shards, **curves, **weights, "summary.json": _comparable(json.loads((run / "summary.json").read_text()))}


def _comparable(figures: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if not any(word in key for word in _OF_THE_MACHINE)}


def figures_of(content: Any, name: str = "") -> dict[str, Any]:
    """Return each single value by where it stands.

    >>> figures_of({"rl": [{"f1": 0.5}, {"f1": 0.75}]})
    {'rl/0/f1': 0.5, 'rl/1/f1': 0.75}
    """
    if not isinstance(content, dict | list):
        return {name: content}
    parts = content.items() if isinstance(content, dict) else enumerate(content)
    below = f"{name}/" if name else ""
    return {place: value for key, part in parts for place, value in figures_of(part, f"{below}{key}").items()}


def difference(first: Any, second: Any) -> str:
    """Return the figures that differ; parts that are known by their digest alone have none.

    >>> difference({"f1": 0.5, "calls": 2}, {"f1": 0.75, "calls": 2})
    ': 1 of 2 figures, f1'
    """
    if not (isinstance(first, dict | list) and isinstance(second, dict | list)):
        return ""
    ours, theirs = figures_of(first), figures_of(second)
    places = list(ours | theirs)
    apart = [place for place in places if place not in ours or place not in theirs or ours[place] != theirs[place]]
    return f": {len(apart)} of {len(places)} figures, {', '.join(apart[:3])}{' …' if len(apart) > 3 else ''}"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    first, second = (contents(Path(argument)) for argument in sys.argv[1:])
    for name in sorted(first.keys() | second.keys()):
        ours, theirs = first.get(name), second.get(name)
        print(f"same    {name}" if ours == theirs else f"DIFFER  {name}{difference(ours, theirs)}")
    if first != second:
        sys.exit(1)


if __name__ == "__main__":
    main()
