"""τ²-bench, driven: by a stand-in of its program, written by hand from the requests that it is described to send."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from astra_jax.benchmarks.results import BenchmarkFailed, read_results
from astra_jax.benchmarks.tau2 import read_simulations
from tests.astra_jax.benchmarks.scripted_endpoint import reply, says_hello, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import (
    config_with_user,
    evaluate_with_user,
    executable,
    stand_in_environment,
)

STAND_IN = Path(__file__).with_name("stand_in_tau2.py")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A config without a user's address, in an environment whose `tau2` is the stand-in."""
    folder = stand_in_environment(tmp_path, monkeypatch, "tau2", "0.2.0")
    executable(folder / "bin" / "tau2", STAND_IN)
    (folder / "data" / "tau2").mkdir(parents=True)
    (folder / "data" / "tau2" / "tasks.json").write_text("[]")
    return config_with_user(tmp_path, "trials = 2", "requests_at_once = 1")


evaluate = partial(evaluate_with_user, "tau2")


def good(body):
    return reply("It is done.") if body["messages"][-1]["role"] == "tool" else reply(None, ("look", "{}"))


def task_of(body) -> str:
    return body["messages"][0]["content"].removeprefix("policy ")


def test_agent_and_user_are_asked_apart_and_every_trial_is_scored(stand_in, tmp_path):
    def sometimes(body):
        return reply("I cannot.") if task_of(body) == "telecom_1 trial 1" else good(body)

    with scripted_endpoint(sometimes) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, "--limit", "4", "max_tokens=99") == 0
        results = read_results(tmp_path / "run")
    assert results.summary.score.value == pytest.approx(7 / 8)
    assert results.summary.by_category["telecom"].value == pytest.approx(3 / 4)
    # pass^2: telecom_1 passed once of two trials.
    assert results.summary.pass_hat == {1: pytest.approx(7 / 8), 2: pytest.approx(3 / 4)}
    assert len(user.bodies) == 8
    assert {body["model"] for body in user.bodies} == {"player"}
    assert set(user.keys) == {"Bearer key-of-user"}
    assert set(agent.keys) == {None}
    assert {body["model"] for body in agent.bodies} == {"scripted"}
    second = agent.bodies[1]
    assert second["max_tokens"] == 99
    assert "content" not in second["messages"][2]
    assert second["messages"][2]["tool_calls"][0]["name"] == "look"
    sample = results.samples[0]
    assert (sample.id, sample.steps, sample.turns, sample.tool_calls) == ("retail/retail_0", 2, 1, 1)
    assert sample.prompt_tokens == 20  # without the user's
    assert results.run.user_simulator == "player"
    assert "key-of-user" not in "".join(
        path.read_text(errors="replace") for path in (tmp_path / "run").rglob("*") if path.is_file()
    )


def test_an_empty_answer_ends_one_conversation_and_not_the_run_and_the_user_s_faults_stand_apart(stand_in, tmp_path):
    def agent_script(body):
        return {
            "retail_0 trial 0": reply(""),
            "retail_1 trial 0": reply("I wait and wa", finish="length"),
            "retail_2 trial 0": reply("No."),
            "retail_3 trial 0": reply("No."),
        }[task_of(body)]

    def user_script(body):
        return reply("I", finish="length") if "retail_2" in task_of(body) else says_hello(body)

    with scripted_endpoint(agent_script) as agent, scripted_endpoint(user_script) as user:
        assert evaluate(stand_in, agent, user, "--limit", "4", 'domains=["retail"]', "trials=1") == 0
    summary = read_results(tmp_path / "run").summary
    assert summary.failures == {"transport": 0, "cut": 1, "empty": 1, "user": 1, "step_limit": 0, "wrong": 1}


def test_what_is_there_is_not_run_again(stand_in, tmp_path, capsys):
    limited = ("--limit", "3", 'domains=["retail"]')
    broken = [True]

    def script(body):
        return (400, {"error": {"message": "no"}}) if broken and task_of(body) == "retail_1 trial 0" else good(body)

    with scripted_endpoint(script) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, *limited) == 1
        assert "expected tau2 run to end well" in capsys.readouterr().err
        broken.clear()
        agent.bodies.clear()
        assert evaluate(stand_in, agent, user, *limited) == 0
        assert "retail_0 trial 0" not in {task_of(body) for body in agent.bodies}
        assert len({task_of(body) for body in agent.bodies}) == 5
        (tmp_path / "run" / "summary.json").unlink()
        simulations = tmp_path / "run" / "raw" / "data" / "simulations" / "retail.json"
        simulations.write_text(simulations.read_text()[:-20])  # killed while the harness rewrote it
        assert evaluate(stand_in, agent, user, *limited) == 0
    assert len(read_results(tmp_path / "run").samples) == 6
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
def test_what_the_harness_leaves_is_read_conversation_by_conversation(tmp_path, found, passed, failure):
    path = tmp_path / "retail.json"
    path.write_text(json.dumps({"info": {}, "tasks": [], "simulations": [found]}))
    (sample,) = read_simulations(path, "retail")
    assert (sample.passed, sample.failure, sample.score) == (passed, failure, float(passed))
    assert sample.steps == len([each for each in found["messages"][1:] if each["role"] == "assistant"])


def test_a_conversation_without_a_reward_is_refused(tmp_path):
    path = tmp_path / "retail.json"
    path.write_text(json.dumps({"simulations": [{**simulation(1.0), "reward_info": None}]}))
    with pytest.raises(BenchmarkFailed, match="expected a reward of task 0 trial 0"):
        read_simulations(path, "retail")
    path.write_text('{"simulations": [{"task_id": "0"}]}')
    with pytest.raises(BenchmarkFailed, match=r"simulations\.0\.trial"):
        read_simulations(path, "retail")
