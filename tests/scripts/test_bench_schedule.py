"""The pod of the schedule's benchmark has episodes as long as the paper's trajectories, and counts all its rows."""

from __future__ import annotations

import json
import statistics
import sys

import pytest

from astra_jax.plan.clock import run_on_clock
from scripts import bench_schedule
from scripts.bench_schedule import MOST_TURNS, TURNS, lengths_with, run_hosts

OF_THE_CLOCK = ("scheduler", "process")


def test_turns_are_drawn_as_the_papers_calls_are_spread() -> None:
    turns = [max(1, min(round(TURNS.draw(4, slot)), MOST_TURNS)) for slot in range(20_000)]
    assert statistics.mean(turns) == pytest.approx(4.42, abs=0.15)
    assert statistics.mean(turn <= 5 for turn in turns) == pytest.approx(0.722, abs=0.05)
    assert max(turns) == MOST_TURNS == 32


def test_the_pod_is_told_with_two_episodes_a_row_and_as_the_recipe_has_it(monkeypatch, capsys) -> None:
    """The same command prints the same figures, but for the seconds of this machine's CPU; no row-step is uncounted."""
    printed, run = [], run_hosts

    def run_small(hosts: int, episodes: int, rows: int, *further):
        return run(hosts, episodes // 32, rows // 32, *further)

    monkeypatch.setattr(bench_schedule, "run_hosts", run_small)
    monkeypatch.setattr(sys, "argv", ["bench_schedule.py", "pod"])
    for _ in range(2):
        bench_schedule.main()
        line = json.loads(capsys.readouterr().out)
        printed += [
            {name: value for name, value in figures.items() if not name.startswith(OF_THE_CLOCK)}
            for figures in (line.pop("of_the_recipe"), line.pop("of_one_batch"), line)
        ]
    assert printed[:3] == printed[3:]
    recipe, one_batch, pod = printed[:3]
    assert [figures["episodes"] for figures in (recipe, one_batch, pod)] == [24, 8, 32]
    for figures in (recipe, one_batch, pod):
        shares = [figures["row_steps_that_sample"], *figures["row_steps_lost"].values()]
        assert sum(shares) == pytest.approx(1, abs=0.003)
        assert 0 < shares[0] <= min(figures["bound"], figures["rows_busy"]) <= 1
    assert one_batch["row_steps_that_sample"] < recipe["row_steps_that_sample"]
    assert recipe["groups_per_update"] > one_batch["groups_per_update"]
    assert recipe["seconds_per_update"] < one_batch["seconds_per_update"]


def test_every_row_counts_at_every_step() -> None:
    """Four episodes in 16 rows sample in a quarter of the row-steps at most."""
    lengths = lengths_with(TURNS, MOST_TURNS)
    found = run_on_clock(run_hosts(1, 4, 16, lengths, False, None))
    assert found["row_steps_that_sample"] <= 0.25 < found["rows_busy"]
