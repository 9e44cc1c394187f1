"""The documents have the tables that the figures are written into, and a broken promise is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scripts import figures

ROOT = Path(__file__).parents[2]


def a_summary(**changes: Any) -> dict[str, Any]:
    policy = {"f1": 0.0, "answer_accuracy": 0.5, "tool_calls_per_episode": 2.0, "irrelevant_call_share": 0.03}
    policy |= {"f1_unseen_tools": 0.1, "f1_unseen_domains": 0.2, "temperature": 1.0}
    policy |= {f"{key}_interval": [0.0, 0.1] for key in ("f1", "f1_unseen_tools", "f1_unseen_domains")}  # type: ignore[misc]
    setting = {
        "base": policy,
        "sft": policy | {"f1": 0.35, "f1_interval": [0.3, 0.4]},
        "rl": policy | {"f1": 0.5, "f1_interval": [0.45, 0.55], "f1_unseen_tools": 0.25},
        "told_names": {key: value for key, value in policy.items() if key != "temperature"},
    }
    return {
        "seed": 0,
        "seconds": {"total": 600.0},
        "peak_rss_bytes": 2 << 30,
        "export": {"max_abs_logit_difference": 1.3e-05, "bit_equal": True},
        "heldout": setting,
        **changes,
    }


def test_the_documents_have_the_tables() -> None:
    summaries = [a_summary(), a_summary()]
    readme = figures.readme_table(summaries[0])
    assert readme.split("\n")[2] == ("| F1, unseen worlds | 0.000 | 0.350 | 0.500 | 0.000 |")
    for name, table in (("README.md", readme), ("docs/results.md", figures.results_table(summaries))):
        assert table in figures.with_table((ROOT / name).read_text(encoding="utf-8"), table)


def test_a_promise_that_is_not_kept_is_told() -> None:
    assert all(kept for _, kept in figures.promises(a_summary()))
    slow = a_summary(seconds={"total": 601.0})
    assert [promise for promise, kept in figures.promises(slow) if not kept] == ["quickstart in 10 minutes: 10.0"]
    unlike = a_summary(export={"max_abs_logit_difference": None, "bit_equal": False})
    assert len([promise for promise, kept in figures.promises(unlike) if not kept]) == 2
