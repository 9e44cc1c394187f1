"""`astra records show` tells a record to a person; `astra init` writes a project whose questions are proven."""

from __future__ import annotations

import json

import pytest

from astra_jax.cli.command import main
from astra_jax.config import load_config
from astra_jax.episodes.finished import FinishedEpisode
from astra_jax.episodes.rewards import reward_named
from astra_jax.evaluate.environments import EvaluationConfig
from astra_jax.rl.config import RLConfig
from astra_jax.sft.config import SFTConfig
from astra_jax.testing import tiny_environment
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import write_records
from synthesis.tools.sources import EXAMPLES_DIRECTORY
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_tools, synthesize_trajectories


def test_an_environment_is_shown_as_its_questions_calls_and_answers(tmp_path, capsys):
    write_records(tmp_path / "records", [tiny_environment(flat="Blue Door", rent=7)], kind="environment")
    assert main(["records", "show", str(tmp_path / "records")]) == 0
    shown = capsys.readouterr().out
    assert 'find_flat(owner="Quartz Heron") -> "Blue Door"\n  q2 after q1: What is the rent of Blue Door?' in shown
    assert "answer:   7\n" in shown
    assert main(["records", "show", str(tmp_path / "records"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] == 7


async def test_a_conversation_and_a_server_are_shown_line_by_line(tmp_path, capsys):
    await synthesize_tools([EXAMPLES_DIRECTORY], tmp_path / "tools")
    await synthesize_trajectories(TrajectoriesConfig(count=1, seed=0, out=tmp_path / "talk"), ProceduralTeacher())
    for records, words in (("talk", ("user: ", "assistant calls: ", "tool: ")), ("tools", (", from ", "): "))):
        assert main(["records", "show", str(tmp_path / records)]) == 0
        shown = capsys.readouterr().out
        assert [word for word in words if word not in shown] == []


def test_a_project_has_configs_that_load_a_reward_that_counts_and_questions_that_are_proven(
    tmp_path, monkeypatch, capsys, sandbox_url
):
    assert main(["init", str(tmp_path / "mine")]) == 0
    monkeypatch.chdir(tmp_path / "mine")
    for config_type, name in ((SFTConfig, "sft"), (RLConfig, "rl"), (EvaluationConfig, "evaluation")):
        load_config(config_type, tmp_path / "mine" / f"{name}.toml")
    reward = reward_named("reward:calls_and_answer")
    assert reward(FinishedEpisode(num_subtasks=1, is_answer_accurate=True)) == pytest.approx(0.5)
    for name in ("questions", "held_out"):
        command = ["synthesize", "functions", "functions.py", f"{name}.jsonl", "--out", name, "--sandbox", sandbox_url]
        assert main([*command, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["rejected"] == {}
    assert main(["init", str(tmp_path / "mine")]) == 2
    assert "is not an empty folder" in capsys.readouterr().err
