"""`make` installs torch from where a CPU build is, never the CUDA one, and the quickstart without it."""

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


def make(folder: Path, target: str, torch_is: str) -> tuple[int, list[str], str]:
    """Run a target with a pip and a uv that only write down what they are asked for."""
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
    ],
)
def test_setup_takes_a_cpu_torch_before_all_that_would_bring_another(tmp_path, torch_is, taken):
    code, installed, _ = make(tmp_path, "setup", torch_is)
    assert code == 0
    assert installed == [".[mcp]", *taken, ".[mcp,parity,dev]"]


def test_setup_without_a_cpu_torch_ends_in_one_line_and_is_not_done(tmp_path):
    code, installed, error = make(tmp_path, "setup", "nowhere")
    assert code != 0
    assert installed == [".[mcp]", "torch==2.13.0+cpu", "uv", "torch==2.13.0"]
    assert error.startswith("expected a CPU build of torch 2.13.0 from pip or from uv, found none: ")
    assert not (tmp_path / ".venv" / "installed-dev").exists()


def test_the_quickstart_installs_no_torch(tmp_path):
    code, installed, _ = make(tmp_path, "quickstart", "on the index")
    assert (code, installed) == (0, [".[mcp]"])
