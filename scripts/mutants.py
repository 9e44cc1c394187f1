"""Break lines that matter, one at a time, and list the changes that no fast test notices.

    python scripts/mutants.py [--only SUBSTRING] [--json]
    python scripts/mutants.py --mutmut 20 [--json]    # needs pip install -e ".[mutation]"

`tests/mutants.toml` has the changes. In a copy of the tracked files the tests of all folders concerned must pass first;
then each change is applied alone, and the fast tests of its file's folder are run, its own test file first. With
`--mutmut N` mutmut changes the modules that [tool.mutmut] of pyproject.toml names, and N mutants of each module are
tried (0: all); `mutmut show NAME` then shows a survivor.

A failing test kills a mutant, and so does a time limit. The last line is JSON: killed, total, survivors. The exit code
is 1 if fewer than 95 % are killed, or fewer than 80 % of a module's by mutmut.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests" / "mutants.toml"
LEAST_SHARE, LEAST_SHARE_OF_A_MODULE = 0.95, 0.8
TIMEOUT_SECONDS = 900
KILLED = ("killed", "timeout", "segfault")
Row = Mapping[str, str]


def fault(row: Row, root: Path) -> str | None:
    """Return one line that says why a row does not fit the code in `root`, or None if it does."""
    path = root / row["file"]
    if set(row) != {"file", "old", "new", "why"}:
        return f"{TABLE.name}: a row has {sorted(row)}; give it file, old, new and why"
    if not path.is_file():
        return f"{TABLE.name}: {row['file']} does not exist; name the file that has {row['old']!r} now"
    found = path.read_text(encoding="utf-8").count(row["old"])
    if found != 1 or row["new"] == row["old"]:
        return f"{row['file']} has {row['old']!r} {found} times; it must stand there once, and differ from new"
    return None


def killers_of(file: str, root: Path) -> list[str]:
    """Return the tests that may kill a mutant of a file: its own test file, its doctests, its folder's tests."""
    folder = root / "tests" / Path(file).parent
    while not folder.is_dir():
        folder = folder.parent
    own = folder / f"test_{Path(file).stem}.py"
    paths = [*([own] if own.is_file() else []), root / file, folder]
    return [str(path.relative_to(root)) for path in paths]


def by_table(only: str) -> dict[str, bool]:
    """Try the rows of the table; return by place whether each was killed."""
    rows = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutant"]
    if faults := [line for row in rows if (line := fault(row, ROOT))]:
        sys.exit("\n".join(faults))
    chosen = [row for row in rows if any(only in text for text in row.values())]
    if not chosen:
        sys.exit(f"no row of {TABLE.name} has {only!r}")
    found = {}
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copy = Path(folder)
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in listed.split("\0"):
            if (ROOT / name).is_file():
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy / name)
        for tests in sorted({killers_of(row["file"], copy)[-1] for row in chosen}):
            if _is_killed(copy, [tests]):
                sys.exit(f"{tests} fails or takes too long without a mutant; mend it first")
        for row in chosen:
            path = copy / row["file"]
            text = path.read_text(encoding="utf-8")
            place = f"{row['file']}:{text[: text.index(row['old'])].count(chr(10)) + 1} {row['why']}"
            path.write_text(text.replace(row["old"], row["new"]), encoding="utf-8")
            found[place] = _is_killed(copy, killers_of(row["file"], copy))
            path.write_text(text, encoding="utf-8")
            print("killed  " if found[place] else "SURVIVED", place, file=sys.stderr, flush=True)
    return found


def _is_killed(copy: Path, tests: Sequence[str]) -> bool:
    """Run fast tests in the copy; return whether one fails or they take too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", *tests]
    # Byte code of a mutant could be taken for that of its file.
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    with (copy / "pytest.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            code = 1
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code not in (0, 1):
        sys.exit(f"{(copy / 'pytest.log').read_text()[-4000:]}\npytest could not run {tests} (exit code {code})")
    return code == 1


def by_mutmut(sample: int) -> dict[str, bool]:
    """Let mutmut try `sample` mutants of each module; return by name whether each was killed."""
    shutil.rmtree(ROOT / "mutants", ignore_errors=True)
    _mutmut("run", "astra_jax.rl.advantage.*")  # all mutants are made before the first is tried; this module has few
    lines = [line for line in _mutmut("results", "--all=true").splitlines() if "__mutmut_" in line]
    chosen = drawn([line.split(":")[0].strip() for line in lines], sample)
    _mutmut("run", *chosen)
    statuses = dict(
        line.strip().split(": ", 1) for line in _mutmut("results", "--all=true").splitlines() if ": " in line
    )
    if strange := {name: statuses[name] for name in chosen if statuses[name] not in (*KILLED, "survived", "no tests")}:
        sys.exit(f"mutmut did not try all mutants to the end: {strange}")
    return {name: statuses[name] in KILLED for name in chosen}


def drawn(names: Sequence[str], sample: int) -> list[str]:
    """Return `sample` mutants of each module, the same ones each time; all of them if it is 0."""
    chosen = []
    for module in sorted(set(map(_module_of, names))):
        of_module = sorted(name for name in names if _module_of(name) == module)
        random.Random(module).shuffle(of_module)
        chosen += of_module[: sample or None]
    return chosen


def _module_of(name: str) -> str:
    return name.rpartition(".")[0]


def _mutmut(*arguments: str) -> str:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "mutants"),
        "JAX_PLATFORMS": "cpu",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "mutmut", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout[-4000:]}{done.stderr[-4000:]}\nmutmut failed, see above")
    return done.stdout


def main() -> None:
    """Try the mutants that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="SUBSTRING", help="try rows of the table whose text has it")
    parser.add_argument("--mutmut", type=int, metavar="N", help="try N of mutmut's mutants of each module instead")
    parser.add_argument("--json", action="store_true", help="print the last line alone")
    options = parser.parse_args()
    found = by_table(options.only) if options.mutmut is None else by_mutmut(options.mutmut)
    least = LEAST_SHARE if options.mutmut is None else LEAST_SHARE_OF_A_MODULE
    groups: dict[str, list[bool]] = {}
    for name, is_killed in found.items():
        groups.setdefault("all" if options.mutmut is None else _module_of(name), []).append(is_killed)
    for group, killed in groups.items() if not options.json else ():
        print(f"{group}: {sum(killed)} of {len(killed)} killed")
    survivors = [place for place, is_killed in found.items() if not is_killed]
    print(json.dumps({"killed": sum(found.values()), "total": len(found), "survivors": survivors}))
    sys.exit(any(sum(killed) < least * len(killed) for killed in groups.values()))


if __name__ == "__main__":
    main()
