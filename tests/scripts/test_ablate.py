"""The results of the ablations are kept from one call of the script to the next."""

from __future__ import annotations

import json

from scripts.ablate import write


def row(quickstart: str, arm: str, f1: float) -> dict:
    return {"quickstart": quickstart, "arm": arm, "with": {"f1": f1}, "train_calls_per_episode": [2.0, 1.5]}


def test_a_call_adds_its_rows_to_those_of_others_and_replaces_its_own(tmp_path):
    write(tmp_path, [row("seed0", "rl", 0.7), row("seed0", "recall", 0.5)])
    write(tmp_path, [row("seed1", "rl", 0.8), row("seed0", "recall", 0.6)])
    rows = json.loads((tmp_path / "ablations.json").read_text())
    assert {(each["quickstart"], each["arm"]): each["with"]["f1"] for each in rows} == {
        ("seed0", "rl"): 0.7,
        ("seed0", "recall"): 0.6,
        ("seed1", "rl"): 0.8,
    }
    assert "recall" in (tmp_path / "calls.svg").read_text()
