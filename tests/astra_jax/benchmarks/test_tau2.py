"""τ²-bench: the files of its harness."""

from __future__ import annotations

import json

import pytest

from astra_jax.benchmarks.results import BenchmarkFailed, read_results
from astra_jax.benchmarks.tau2 import pass_hat, read_simulations
from tests.astra_jax.benchmarks.scripted_endpoint import says_hello, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import TAU2


def test_a_file_that_was_cut_while_it_was_rewritten_is_moved_aside(tmp_path, monkeypatch):
    TAU2.set_up(tmp_path, monkeypatch)
    limited = ("--limit", "1", 'domains=["retail"]')
    with scripted_endpoint(TAU2.good) as agent, scripted_endpoint(says_hello) as user:
        assert TAU2.evaluate(tmp_path, agent, user, *limited) == 0
        (tmp_path / "run" / "summary.json").unlink()
        simulations = tmp_path / "run" / "raw" / "data" / "simulations" / "retail.json"
        simulations.write_text(simulations.read_text()[:-20])
        assert TAU2.evaluate(tmp_path, agent, user, *limited) == 0
    assert len(read_results(tmp_path / "run").samples) == 2
    assert simulations.with_suffix(".damaged").exists()


def simulation(reward: float, *said: dict, reason: str = "user_stop") -> dict:
    return {
        "task_id": "0",
        "trial": 0,
        "duration": 1,
        "termination_reason": reason,
        "reward_info": {"reward": reward},
        "messages": [{"role": "assistant", "content": "Hi!"}, *said],
    }


def said(content: str, finish: str = "stop", role: str = "assistant") -> dict:
    return {"role": role, "content": content, "usage": None, "raw_data": {"finish_reason": finish}}


@pytest.mark.parametrize(
    ("found", "passed", "failure"),
    [
        (simulation(1.0, said("Done.")), True, None),
        (simulation(1.0, said("…"), said("Done.")), False, "empty"),  # the official run would have ended there
        (simulation(1.0, said("Do", "length"), said("Done.")), True, None),
        (simulation(0.5, said("Done.")), False, "wrong"),
        (simulation(0.0, said("Done."), reason="max_steps"), False, "step_limit"),
        (simulation(0.0, said("I am", "length", "user"), reason="too_many_errors"), False, "user"),
    ],
)
def test_the_harness_file_is_read_conversation_by_conversation(tmp_path, found, passed, failure):
    path = tmp_path / "retail.json"
    path.write_text(json.dumps({"info": {}, "tasks": [], "simulations": [found]}))
    (sample,) = read_simulations(path, "retail")
    assert (sample.passed, sample.failure, sample.score) == (passed, failure, float(passed))
    assert pass_hat([sample], 1) == passed
    assert sample.steps == len([each for each in found["messages"][1:] if each["role"] == "assistant"])


def test_a_conversation_without_a_reward_is_refused(tmp_path):
    path = tmp_path / "retail.json"
    path.write_text(json.dumps({"simulations": [{**simulation(1.0), "reward_info": None}]}))
    with pytest.raises(BenchmarkFailed, match="has no reward of task 0 trial 0"):
        read_simulations(path, "retail")
    path.write_text('{"simulations": [{"task_id": "0"}]}')
    with pytest.raises(BenchmarkFailed, match=r"simulations\.0\.trial"):
        read_simulations(path, "retail")


def test_pass_hat_is_the_chance_that_several_trials_all_pass(tmp_path):
    path = tmp_path / "retail.json"
    tasks = {"0": (1.0, 1.0, 1.0), "1": (1.0, 0.0, 1.0)}
    found = [
        {**simulation(reward, said("Done.")), "task_id": task, "trial": trial}
        for task, rewards in tasks.items()
        for trial, reward in enumerate(rewards)
    ]
    path.write_text(json.dumps({"simulations": found}))
    samples = read_simulations(path, "retail")
    assert [pass_hat(samples, k) for k in (1, 2, 3)] == pytest.approx([(1 + 2 / 3) / 2, (1 + 1 / 3) / 2, 1 / 2])
    with pytest.raises(ValueError, match="4 or more trials"):
        pass_hat(samples, 4)
