"""`make` installs torch from where a CPU build is, never the CUDA one; each slow test is in one of the four parts."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_import_rules import ROOT

PYTHON = """#!/bin/sh
echo "$*" >> log
case "$*" in
  *importlib.metadata*) test "$TORCH_IS" = installed;;
  *torch==*+cpu*) test "$TORCH_IS" = "on the index";;
esac
"""
UV = """#!/bin/sh
echo "uv $*" >> log
test "$TORCH_IS" = "known to uv"
"""


@pytest.fixture(autouse=True)
def no_settings_of_an_outer_make(monkeypatch) -> None:
    """`make newest SLOW_PART=2` runs these tests, and would hand its variables to their own make."""
    for name in ("MAKEFLAGS", "SLOW_PART"):
        monkeypatch.delenv(name, raising=False)


def make(folder: Path, target: str, torch_is: str) -> tuple[int, list[str], str]:
    """Run a target with a pip and a uv that only write down their arguments."""
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name, script in (("python", PYTHON), ("uv", UV), ("astra", "#!/bin/sh\n")):
        path = folder / ".venv" / "bin" / name
        path.write_text(script)
        path.chmod(0o755)
    done = subprocess.run(
        ["make", "-s", target], cwd=folder, env={**os.environ, "TORCH_IS": torch_is}, capture_output=True, text=True
    )
    installs = [line for line in (folder / "log").read_text().splitlines() if "install" in line]
    return done.returncode, [line.split()[-1] for line in installs], done.stderr


@pytest.mark.parametrize(
    ("torch_is", "taken"),
    [
        ("installed", []),
        ("on the index", ["torch==2.13.0+cpu"]),
        ("known to uv", ["torch==2.13.0+cpu", "uv", "torch==2.13.0"]),
        ("nowhere", ["torch==2.13.0+cpu", "uv", "torch==2.13.0"]),
    ],
)
def test_setup_takes_a_cpu_torch_before_all_that_would_bring_another_or_ends_in_one_line(tmp_path, torch_is, taken):
    code, installed, error = make(tmp_path, "setup", torch_is)
    if torch_is == "nowhere":
        assert (code != 0, installed) == (True, [".[mcp]", *taken])
        assert error.startswith("expected a CPU build of torch 2.13.0 from pip or from uv, found none: ")
        assert not (tmp_path / ".venv" / "installed-dev").exists()
    else:
        assert (code, installed) == (0, [".[mcp]", *taken, ".[mcp,parity,dev]"])


def test_the_quickstart_installs_no_torch(tmp_path):
    assert make(tmp_path, "quickstart", "on the index")[:2] == (0, [".[mcp]"])


def test_each_slow_test_is_in_one_part_of_four(tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / "pyproject.toml").touch()
    parts = []
    for part in "1234":
        (tmp_path / ".ci" / "slow_part").write_text(f"{part}\n")
        printed = subprocess.run(
            ["make", "-n", "-f", ROOT / "Makefile", "slow"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        parts.append([ROOT / word for word in printed.split() if word.startswith("tests/")])
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.slow" in path.read_text(encoding="utf-8")]
    assert len(marked) > 20
    for path in marked:
        found = [part for part in parts if any(path.is_relative_to(place) for place in part)]
        assert len(found) == 1 or path.samefile(__file__), path
    assert all(place.exists() for part in parts for place in part)


def test_an_unknown_part_is_told_and_the_next_one_is_one_of_four(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    command = ["make", "-n", "-f", ROOT / "Makefile", "slow", "SLOW_PART=5"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert told.returncode == 2
    assert 'expected a part from 1 to 4 in SLOW_PART or .ci/slow_part, found "5"' in told.stderr
    assert (ROOT / ".ci" / "slow_part").read_text() in {"1\n", "2\n", "3\n", "4\n"}
