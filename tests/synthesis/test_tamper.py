"""The tamper list: fourteen ways to change a record, each of which `records verify` finds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "tamper.py"


@pytest.mark.slow
def test_all_fourteen_ways_are_caught_and_what_was_not_changed_is_not() -> None:
    command = [sys.executable, SCRIPT, "--environments", "20", "--trajectories", "30", "--at-most", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "14 of 14 ways caught every time; 0 false alarms" in done.stdout
