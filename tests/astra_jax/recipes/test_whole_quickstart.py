"""The quickstart itself, from tool documents to HuggingFace weights, at the smallest size that has every stage."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from astra_jax.config import CONFIGS, load_config
from astra_jax.recipes import quickstart as recipe
from astra_jax.recipes.quickstart import QuickstartFailed, quickstart
from astra_jax.rl import rollouts
from astra_jax.serve.requests import ChatRequest, read_body
from astra_jax.testing import tiny_environment
from synthesis.environments import config as environments_config
from synthesis.environments.config import EnvironmentsConfig
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment

SMALLER = {
    "tiny_trajectories.toml": {"count": 24},
    "tiny_environments.toml": {"count": 24},
    "tiny_sft.toml": {"steps": 4, "checkpoint_every_steps": 2, "batch_tokens": 2048},
    "tiny_rl.toml": {
        "steps": 1,
        "group_size": 2,
        "groups_per_step": 2,
        "groups_per_rollout": 2,
        "episodes_per_row": 2,
        "accumulation": 2,
    },
    "tiny_evaluation.toml": {"environments_at_once": 4},
}
NUM_HELD_OUT = 4  # as many as are shown, so that the log has every episode of the figures


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    configs = tmp_path / "configs"
    shutil.copytree(CONFIGS, configs)
    for name, settings in SMALLER.items():
        text = (configs / name).read_text(encoding="utf-8")
        for key, value in settings.items():
            text, changes = re.subn(rf"(?m)^{key} = [\d.]+", f"{key} = {value}", text)
            assert changes == 1, (name, key)
        (configs / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(recipe, "CONFIGS", configs)
    # Four steps of SFT earn nothing, and groups without variance teach nothing: RL gets a reward that varies.
    monkeypatch.setattr(rollouts, "finished_episode", lambda episode, _: episode)
    monkeypatch.setattr(rollouts, "earned", lambda _, episode: sum(episode.ledger.ids) % 7 / 7)
    for name, count in (("NUM_HELD_OUT", NUM_HELD_OUT), ("NUM_UNSEEN", 4)):
        monkeypatch.setattr(environments_config, name, count)
    return tmp_path / "run"


@pytest.mark.slow
def test_every_stage_runs_and_the_summary_follows_from_the_episodes(small: Path) -> None:
    summary = quickstart(small, seed=3, tool_documents=[])
    assert summary == json.loads((small / "summary.json").read_text())
    stages = [value for stage, value in summary["seconds"].items() if stage != "total"]
    assert max(stages) < summary["seconds"]["total"] < sum(stages), "evaluations run beside other stages"
    assert summary["environments"] == {
        "train": 24,
        **dict.fromkeys(("heldout", "heldout_tools", "heldout_domains"), 4),
    }
    assert summary["export"]["bit_equal"]
    logged: list[dict[str, Any]] = [json.loads(line) for line in (small / "episodes.jsonl").read_text().splitlines()]
    assert {episode["split"] for episode in logged} == {"heldout", "heldout_tools", "heldout_domains"}
    episodes = [episode for episode in logged if episode["split"] == "heldout"]
    for policy in ("sft", "rl"):
        own = [episode for episode in episodes if episode["policy"] == policy]
        figures = summary["heldout"][policy]
        assert len(own) == figures["episodes"] == NUM_HELD_OUT
        # Each figure anew, from the logged episodes. So small a policy solves nothing, so that F1 and
        # answers are 0 here; tokens are not.
        f1s = [f1_of(episode) for episode in own]
        assert figures["f1"] == pytest.approx(fmean(f1s), abs=1e-9)
        assert figures["answer_accuracy"] == fmean(episode["is_answer_accurate"] for episode in own)
        assert figures["tool_calls_per_episode"] == fmean(episode["num_tool_calls"] for episode in own)
        # Turns of the model, by its tokens in the log.
        tokens = sum(source == "model" for episode in own for _, _, source, *_ in episode["tokens"])
        assert figures["tokens_per_turn"] == pytest.approx(tokens / sum(episode["num_turns"] for episode in own))
        assert tokens > 0
    counts = {"n": NUM_HELD_OUT, "n_unseen_tools": 4, "n_unseen_domains": 4}
    assert {"base", "sft", "rl"} <= set(summary["heldout"])
    for figures in summary["heldout"].values():
        assert {key: figures[key] for key in counts} == counts
    assert "n = 4 unseen worlds, 4 unseen tools, 4 unseen domains" in (small / "report.html").read_text()
    assert read_body(ChatRequest, (small / "question.json").read_bytes()).tools
    assert 0.1 < summary["heldout"]["told_names"]["f1"] < 0.7
    assert summary["heldout"]["told_names"]["episodes"] == NUM_HELD_OUT
    assert {episode["environment_id"] for episode in episodes} == {
        environment.id for environment in RecordSource(small / "heldout", Environment)
    }


def f1_of(episode: dict[str, Any]) -> float:
    solved, subtasks, calls = (episode[key] for key in ("num_solved", "num_subtasks", "num_tool_calls"))
    if not solved:
        return 0.0
    recall, precision = solved / subtasks, solved / (calls + 1e-6)
    return 2 * precision * recall / (precision + recall)


def test_splits_that_share_something_end_the_quickstart(tmp_path: Path) -> None:
    training = load_config(EnvironmentsConfig, CONFIGS / "tiny_environments.toml")
    configs = [training.model_copy(update={"out": tmp_path / name}) for name in ("training", "held_out")]
    environment = tiny_environment().model_copy(update={"entities": ("Amber Fox",)})
    for config in configs:
        write_records(config.out, [environment], kind="environment")
    with pytest.raises(QuickstartFailed, match=r"but shares \{'entities': \d+, 'answers': \d+\}"):
        recipe._require_apart(configs[0].out, configs[1])
