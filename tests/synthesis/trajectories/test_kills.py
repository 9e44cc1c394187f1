"""Killed at random moments, a run ends with the bytes of one that was left alone, and pays once."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

pytest.importorskip("openai", reason="needs the extra `openai`")

from tests.synthesis.journals import num_finished
from tests.synthesis.trajectories.test_pipeline import bytes_of

ROOT = Path(__file__).parents[3]


def one_life(teacher: str, directory: Path, seconds: float = float("inf")) -> float | None:
    """Run until the end or until it is killed; return the seconds that a whole life took, None for a killed one."""
    directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.synthesis.trajectories.mortal_run", teacher, str(directory), str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_KEY": "sk-test"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if ended.returncode == -signal.SIGKILL:
        return None
    assert ended.returncode == 0, ended.stderr
    return float(ended.stdout)


def cached_calls(directory: Path) -> set[int]:
    """Return the numbers of the calls whose replies are in the cache; those that judges share have none."""
    if not (directory / "replies.sqlite").exists():
        return set()
    database = sqlite3.connect(directory / "replies.sqlite")
    try:
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'replies'").fetchone():
            return set()
        return {number for (number,) in database.execute("SELECT prompt_tokens FROM replies")}
    finally:
        database.close()


def asked_calls(directory: Path) -> list[int]:
    """Return the numbers of the calls that reached the endpoint; a line that a kill cut short was none."""
    path = directory / "asked"
    return (
        [int(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if path.exists()
        else []
    )


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["procedural", "openai"])
def test_a_run_killed_twenty_times_ends_with_the_same_bytes_and_repeats_no_cached_call(tmp_path, teacher):
    undisturbed = tmp_path / "undisturbed"
    whole_seconds = one_life(teacher, undisturbed)
    expected = bytes_of(undisturbed / "out")
    rng = Random(0)
    num_kills = num_whole = 0
    left_behind: set[tuple[int, int]] = set()
    directory = tmp_path / "killed-0"
    while num_kills < 20:
        known, num_asked = cached_calls(directory), len(asked_calls(directory))
        seconds = one_life(teacher, directory, seconds=rng.uniform(0, whole_seconds / 2))
        assert known.isdisjoint(asked_calls(directory)[num_asked:])
        if seconds is None:
            num_kills += 1
            finished = num_finished(directory.glob("out.work/*.sqlite"))
            left_behind.add((finished, len(cached_calls(directory))))
        else:  # it got through between two kills: another run is killed next
            assert bytes_of(directory / "out") == expected
            num_whole += 1
            directory = tmp_path / f"killed-{num_whole}"
    known, num_asked = cached_calls(directory), len(asked_calls(directory))
    one_life(teacher, directory)
    assert bytes_of(directory / "out") == expected
    assert known.isdisjoint(asked_calls(directory)[num_asked:])
    assert not directory.joinpath("out.work").exists()
    assert len(left_behind) >= 4  # the moments were different ones
    print(f"{num_kills} kills at {len(left_behind)} stages of {num_whole + 1} runs of {whole_seconds:.1f} s")
    if teacher == "openai":
        assert len(set(asked_calls(undisturbed))) == len(asked_calls(undisturbed))
        assert cached_calls(undisturbed) & set(asked_calls(undisturbed))
