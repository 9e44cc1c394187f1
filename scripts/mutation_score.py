"""How many of mutmut's mutants the fast tests kill, module by module, where the arithmetic of the method is.

    pip install -e ".[mutation]"
    python scripts/mutation_score.py [--sample N] [--seed S] [--only SUBSTRING] [--processes N] [--resume]

`[tool.mutmut]` in pyproject.toml says which modules, and among which tests; of those each mutant has the ones that run
its function. Of a module with more than N mutants N are drawn by the seed, and its share has a 95 % interval; with
--sample 0 all are tried.
`mutants/` holds what was tried: `mutmut show NAME` says what a survivor has changed. --resume goes on after a stop, or
after a new test, with those that are not killed.

One line per module and one per survivor, then one JSON line; exit code 1 where a module's share is below 80 %. A mutant
that no test runs has survived. One that a timeout, or a crash, ended is killed, and counted apart: a slow machine has
them, too.

Decided: docs/decisions/tests.md, “mutmut mutates the arithmetic, our own table what it cannot reach”.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "mutants"
LEAST_SHARE = 0.8
KILLED = ("killed", "timeout", "segfault")
SURVIVED = ("survived", "no tests")


class Score(NamedTuple):
    """What became of a module's mutants."""

    module: str
    mutants: int
    tried: int
    killed: int
    """By a failing test, by a timeout or by a crash."""
    unclear: int
    """Of those killed, the timeouts and crashes."""

    @property
    def share(self) -> float:
        """Killed ones of those tried."""
        return self.killed / self.tried

    @property
    def half_width(self) -> float:
        """Half of the share's 95 % interval; 0 where no mutant was left out."""
        if self.tried == self.mutants:
            return 0.0
        # Agresti and Coull's two more of each keep a share of 1 from looking certain; drawn without putting back.
        guess = (self.killed + 2) / (self.tried + 4)
        left_out = (self.mutants - self.tried) / (self.mutants - 1)
        return 1.96 * math.sqrt(guess * (1 - guess) / (self.tried + 4) * left_out)


def module_of(mutant: str) -> str:
    """Return the module of a mutant by its name, as mutmut writes it.

    >>> module_of("synthesis.answers.counting.x_is_solved__mutmut_3")
    'synthesis.answers.counting'
    """
    return mutant.rpartition(".")[0]


def drawn(mutants: Sequence[str], *, sample: int, seed: int) -> list[str]:
    """Return at most `sample` mutants of each module, all of them where that is 0."""
    chosen = []
    for module in sorted(set(map(module_of, mutants))):
        names = sorted(name for name in mutants if module_of(name) == module)
        rng = random.Random(f"{seed}/{module}")
        order = rng.sample(names, len(names))  # a larger sample has the smaller one in it
        chosen += order[: sample or None]
    return chosen


def statuses(results: str) -> dict[str, str]:
    """Read what `mutmut results --all` prints: a line `name: status` for each mutant."""
    return dict(line.strip().split(": ", 1) for line in results.splitlines() if "__mutmut_" in line)


def scores(found: Mapping[str, str], chosen: Sequence[str]) -> list[Score]:
    """Count the chosen mutants of each module.

    Raises:
        ValueError: one was not tried, or came to something else.
    """
    if strange := {name: found[name] for name in chosen if found[name] not in (*KILLED, *SURVIVED)}:
        raise ValueError(f"expected that each mutant is killed or survives, found {strange}")
    mutants = Counter(map(module_of, found))
    tried = Counter(map(module_of, chosen))
    killed = Counter(module_of(name) for name in chosen if found[name] in KILLED)
    unclear = Counter(module_of(name) for name in chosen if found[name] in KILLED[1:])
    return [Score(name, mutants[name], tried[name], killed[name], unclear[name]) for name in sorted(tried)]


def of_all(table: Sequence[Score]) -> tuple[float, float]:
    """Return the share that all mutants of all modules would have, and half of its 95 % interval."""
    mutants = sum(score.mutants for score in table)
    share = sum(score.mutants * score.share for score in table) / mutants
    return share, math.hypot(*(score.mutants * score.half_width for score in table)) / mutants


def main() -> None:
    """Try the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=20, metavar="N", help="mutants of a module; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="of the mutants' names")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N", help="that try mutants at once")
    parser.add_argument("--resume", action="store_true", help="try only what no test has killed yet")
    options = parser.parse_args()
    if not options.resume:
        shutil.rmtree(MUTANTS, ignore_errors=True)
    if not (found := _results()):
        # mutmut makes all mutants before it tries the first one; this module has few.
        _mutmut("run", "--max-children", str(options.processes), "astra_jax.rl.advantage.*")
        found = _results()
    chosen = drawn([name for name in found if options.only in name], sample=options.sample, seed=options.seed)
    if not chosen:
        sys.exit(f"expected a mutant whose name has {options.only!r}, found none")
    if left := [name for name in chosen if found[name] not in KILLED]:
        print(f"{len(left)} of {len(found)} mutants are tried", file=sys.stderr)
        _mutmut("run", "--max-children", str(options.processes), *left)
        found = _results()
    table = scores(found, chosen)
    print(f"{'module':42} mutants  tried  killed  timeouts  survived  share")
    for score in table:
        uncertainty = f" ± {100 * score.half_width:.0f}" if score.half_width else ""
        print(
            f"{score.module:42} {score.mutants:7} {score.tried:6} {score.killed:7} {score.unclear:9}"
            f" {score.tried - score.killed:9}  {100 * score.share:.0f}{uncertainty} %"
        )
    for name in chosen:
        if found[name] in SURVIVED:
            print(f"{found[name]}: {name}")
    below = [score.module for score in table if score.share < LEAST_SHARE]
    share, half_width = of_all(table)
    totals = {column: sum(getattr(score, column) for score in table) for column in ("mutants", "tried", "killed")}
    figures = {"share": round(share, 3), "half_width": round(half_width, 3), "sample": options.sample}
    print(json.dumps({**totals, **figures, "seed": options.seed, "below": below}))
    sys.exit(bool(below))


def _results() -> dict[str, str]:
    return statuses(_mutmut("results", "--all=true")) if MUTANTS.is_dir() else {}


def _mutmut(*arguments: str) -> str:
    """Run mutmut on the copy that it makes of this checkout; what its tests say is only shown where it fails."""
    environment = os.environ | {"PYTHONPATH": str(MUTANTS), "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "mutmut", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nexpected mutmut to run through, found the above")
    return done.stdout


if __name__ == "__main__":
    main()
