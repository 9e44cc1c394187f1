"""Logged episodes are rewarded anew under another reward, without model and without tools."""

from __future__ import annotations

import pytest

from astra_jax.cli.command import main
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import LoggedEpisode, episode_to_json, read_episodes, step_episodes_path, write_episodes
from astra_jax.testing import tiny_environment


@pytest.fixture
def run(tmp_path, taught):
    """Two logged steps; one of two sub-tasks solved by the first of one call, and by the first of four."""
    environment = tiny_environment()
    solved = ToolOutcome("find_flat", {"owner": "Quartz Heron"}, None, "Amber Falcon", "", irrelevant=False)
    in_vain = ToolOutcome("", {}, "malformed_call", None, "", irrelevant=False)
    for step, outcomes in ((0, [solved]), (10, [solved, in_vain, in_vain, in_vain])):
        episode = Episode(environment, environment.tools, TokenLedger(), outcomes=outcomes, final_text="Done.")
        episode.num_turns, episode.stop_reason = 1, "no_tool_call"
        line = episode_to_json(episode, taught.tokenizer, policy=f"step {step}", reward=0.125)
        write_episodes(step_episodes_path(tmp_path / "run", step), [line])
    return tmp_path / "run"


def test_every_log_is_shown_under_every_reward_and_no_token_is_kept(run, capsys, monkeypatch):
    monkeypatch.setattr(LoggedEpisode, "model_dump", lambda *_, **__: 1 / 0)
    assert main(["rescore", str(run)]) == 0
    head, first, last, closing = capsys.readouterr().out.splitlines()
    assert head.split() == [
        *("log", "episodes", "logged", "f1", "recall", "precision", "refusals", "f1_and_answer"),
    ]
    expected = ["0.1250", "0.6667", "0.5000", "1.0000", "0.6667", "0.3333"]
    assert first.split() == ["step_000000.jsonl", "1", *expected]
    expected = ["0.1250", "0.3333", "0.5000", "0.2500", "0.3333", "0.1667"]
    assert last.split() == ["step_000010.jsonl", "1", *expected]
    assert closing.startswith("rescore: 2 episodes of 2 logs under f1, recall,")


def test_episodes_are_written_with_the_reward_that_is_named(run, tmp_path, capsys):
    out = tmp_path / "recall.jsonl"
    assert main(["rescore", str(run), "--reward", "recall", "--out", str(out)]) == 0
    assert [episode.reward for episode in read_episodes(out)] == [0.5, 0.5]
    before = [each for step in (0, 10) for each in read_episodes(step_episodes_path(run, step))]
    assert [each.model_copy(update={"reward": 0.125}) for each in read_episodes(out)] == before


def test_a_function_of_the_user_is_given_the_logged_episode(run, tmp_path, monkeypatch, capsys):
    own = "def said(episode):\n    return len(episode.calls) + (episode.messages[0].content == episode.question)\n"
    (tmp_path / "own_of_rescore.py").write_text(own)
    monkeypatch.chdir(tmp_path)
    assert main(["rescore", str(run), "--reward", "own_of_rescore:said"]) == 0
    _, first, last, _ = capsys.readouterr().out.splitlines()
    assert (first.split()[-1], last.split()[-1]) == ("2.0000", "5.0000")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reward", "f2"], "--reward f2: expected one of f1, recall, precision"),
        (["--reward", "nowhere:half"], "--reward nowhere:half: there is no module nowhere: put nowhere.py into"),
        (["--out", "all.jsonl"], "--out takes one --reward"),
    ],
)
def test_a_wrong_request_ends_in_one_line(run, capsys, arguments, message):
    assert main(["rescore", str(run), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_without_a_log_ends_in_one_line(tmp_path, capsys):
    assert main(["rescore", str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "holds no episodes.jsonl or episodes/step_*.jsonl; name a log" in line
