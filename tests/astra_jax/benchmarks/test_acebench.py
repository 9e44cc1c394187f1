"""ACEBench, driven: by a stand-in of its two programs, written by hand, and, where it is set up, by its own code."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from astra_jax.benchmarks import acebench
from astra_jax.benchmarks.acebench import MODEL, ACEBench, Conversation
from astra_jax.benchmarks.harnesses import ACEBENCH_HARNESS
from astra_jax.benchmarks.managed_environment import HarnessMissing, managed_environment
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed, read_results
from tests.astra_jax.benchmarks.scripted_endpoint import reply, says_hello, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import config_with_user, evaluate_with_user, stand_in_environment

STAND_IN = Path(__file__).with_name("stand_in_acebench.py")


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """A config without a user's address, in an environment whose code is the stand-in."""
    folder = stand_in_environment(tmp_path, monkeypatch, "ACEBench", "56dd66c")
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    (folder / "stubs" / "google").mkdir(parents=True)
    (folder / "stubs" / "vllm.py").write_text("LLM = SamplingParams = None\n")
    (folder / "stubs" / "google" / "generativeai.py").touch()
    source = folder / "source"
    for category in ("multi_turn", "multi_step"):
        for kind in ("", "possible_answer"):
            path = source / "data_all" / "data_en" / kind / f"data_agent_{category}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            cases = [{"id": f"agent_{category}_{n}", "question": f"{category} {n}"} for n in range(12)]
            path.write_text("\n".join(json.dumps(case) for case in cases))
    for name in ("generate.py", "eval_main.py"):
        (source / name).write_text(STAND_IN.read_text())
    return config_with_user(tmp_path, "trials = 1", "requests_at_once = 2")


evaluate = partial(evaluate_with_user, "acebench")


def once(body):
    """Say something that evaluates, then stop."""
    return reply("finish conversation" if "execution:" in body["messages"][1]["content"] else "['on']", tokens=(9, 3))


def case_of(body) -> str:
    return body["messages"][0]["content"]


def test_agent_and_user_are_asked_apart_with_what_the_code_cannot_say(stand_in, tmp_path, capsys):
    with scripted_endpoint(once) as agent, scripted_endpoint(says_hello) as user:
        settings = ("trials=2", "top_k=20", "max_tokens_floor=4096", "user.temperature=0.5", "temperature=0.6")
        assert evaluate(stand_in, agent, user, "--limit", "4", *settings) == 0
        results = read_results(tmp_path / "run")
        assert evaluate(stand_in, agent, user, "--limit", "4", *settings) == 0  # finished: only read
    assert len(agent.bodies) == 2 * 8
    assert len(user.bodies) == 4  # of the two cases with turns, in two trials
    assert {sample.id for sample in results.samples} == {
        f"agent_{category}_{number}" for category in ("multi_turn", "multi_step") for number in (0, 1)
    }
    assert results.summary.score.value == 1
    assert results.summary.process == {"multi_turn": 1.0, "multi_step": 1.0}
    body = agent.bodies[0]
    assert (body["temperature"], body["max_tokens"], body["top_p"], body["top_k"]) == (0.6, 4096, 1, 20)
    assert len({body["seed"] for body in agent.bodies}) == 8  # a conversation's own
    assert (user.bodies[0]["temperature"], user.bodies[0]["max_tokens"]) == (0.5, 1000)
    assert {body["model"] for body in agent.bodies} == {"scripted"}
    assert {body["model"] for body in user.bodies} == {"player"}
    assert (set(user.keys), set(agent.keys)) == ({"Bearer key-of-user"}, {None})
    sample = results.samples[0]
    assert (sample.steps, sample.turns, sample.tool_calls, sample.completion_tokens) == (2, 1, 1, 6)
    assert results.run.sampling["max_tokens_floor"] == 4096
    assert results.run.of_samples == 50
    assert "acebench: 100.0 %" in capsys.readouterr().out


def test_failures_are_told_apart_by_cause_and_a_case_that_ends_the_code_is_one_that_failed(stand_in, tmp_path):
    def agent_script(body):
        said = {
            "agent_multi_turn_0": (400, {"error": {"message": "no room"}}),
            "agent_multi_turn_1": reply("[no_such_tool()]"),  # at which the code ends
            "agent_multi_turn_2": reply("finish conversation", finish="length"),
            "agent_multi_turn_3": reply(
                None if "agent:" not in body["messages"][1]["content"] else "finish conversation"
            ),
            "agent_multi_turn_4": reply("I wait."),
            "agent_multi_turn_5": reply("finish conversation"),
            "agent_multi_turn_6": reply("finish conversation"),
        }
        return said[case_of(body)]

    def user_script(body):
        return reply("I wa", finish="length") if case_of(body) == "multi_turn 5" else says_hello(body)

    limited = ("--limit", "7", 'categories=["multi_turn"]', "max_messages=3")
    with scripted_endpoint(agent_script) as agent, scripted_endpoint(user_script) as user:
        assert evaluate(stand_in, agent, user, *limited) == 1
        summary = read_results(tmp_path / "run").summary
        assert summary.failures == {"transport": 1, "cut": 1, "empty": 1, "user": 1, "step_limit": 1, "wrong": 2}
        assert (summary.answers["lost_conversations"], summary.answers["broken_off"]) == (1, 1)
        samples = {sample.id: sample for sample in read_results(tmp_path / "run").samples}
        assert samples["agent_multi_turn_0"].detail == "no room"
        assert "NameError: name 'no_such_tool'" in samples["agent_multi_turn_1"].detail
        assert samples["agent_multi_turn_6"].detail == "class attributes wrong"
        # What was lost is run again, and nothing else.
        agent.script = once
        agent.bodies.clear()
        assert evaluate(stand_in, agent, user, *limited) == 0
        assert {case_of(body) for body in agent.bodies} == {"agent_multi_turn_0"}
    assert read_results(tmp_path / "run").summary.failures["transport"] == 0


def test_an_answer_that_the_code_evaluates_reaches_nothing_of_ours(stand_in, tmp_path, monkeypatch):
    monkeypatch.setattr(acebench, "_CPU_SECONDS", 2)
    (tmp_path / "secret").write_text("secret")
    attempts = {
        "agent_multi_turn_0": f"[open('{tmp_path}/secret').read()]",
        "agent_multi_turn_1": f"[open('{tmp_path}/environment/mine', 'w').write('x')]",
        "agent_multi_turn_2": "[open('own', 'w').write('x')]",
        "agent_multi_turn_3": "[__import__('socket').create_connection(('127.0.0.1', PORT))]",
        "agent_multi_turn_4": "[10 ** 10 ** 10]",
        "agent_multi_turn_5": "['x' * 10 ** 11]",
    }

    def script(body):
        said = attempts[case_of(body)].replace("PORT", agent.url.rpartition(":")[2])
        return reply("finish conversation" if "execution:" in body["messages"][1]["content"] else said)

    with scripted_endpoint(script) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, "--limit", "6", 'categories=["multi_turn"]') == 0
    samples = {sample.id: sample for sample in read_results(tmp_path / "run").samples}
    assert "FileNotFoundError" in samples["agent_multi_turn_0"].detail
    assert "Read-only file system" in samples["agent_multi_turn_1"].detail
    assert samples["agent_multi_turn_2"].passed  # its own folder is its own
    assert "ConnectionRefusedError" in samples["agent_multi_turn_3"].detail
    assert not samples["agent_multi_turn_4"].passed  # out of processor time
    assert "MemoryError" in samples["agent_multi_turn_5"].detail
    assert not (tmp_path / "environment" / "mine").exists()


def test_a_run_that_was_killed_goes_on_with_what_has_not_ended(stand_in, tmp_path):
    limited = ("--limit", "3", 'categories=["multi_step"]')
    with scripted_endpoint(once) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, *limited) == 0
        before = read_results(tmp_path / "run").samples
        agent.bodies.clear()
        conversation = tmp_path / "run" / "raw" / "conversations" / "agent_multi_step_1.0"
        (tmp_path / "run" / "summary.json").unlink()
        (conversation / "outcome.json").write_text('{"sample": {"id"')
        assert evaluate(stand_in, agent, user, *limited) == 0
    assert {case_of(body) for body in agent.bodies} == {"agent_multi_step_1"}
    after = read_results(tmp_path / "run").samples
    assert [each.model_copy(update={"seconds": 0}) for each in after] == [
        each.model_copy(update={"seconds": 0}) for each in before
    ]


def test_a_conversation_whose_outcome_is_gone_is_no_smaller_benchmark(stand_in, tmp_path, capsys, monkeypatch):
    converse = ACEBench._converse

    async def and_loses_the_outcome(*args):
        await converse(*args)
        if args[2].number == 1:
            (args[2].folder / "outcome.json").unlink()

    monkeypatch.setattr(ACEBench, "_converse", and_loses_the_outcome)
    with scripted_endpoint(once) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, "--limit", "2", 'categories=["multi_step"]') == 1
    error = capsys.readouterr().err
    assert "expected the outcomes of" in error
    assert error.count("\n") == 1


def test_code_that_does_not_begin_ends_the_run_and_is_no_figure(stand_in, tmp_path, capsys):
    (tmp_path / "environment" / "stubs" / "vllm.py").unlink()
    with scripted_endpoint(once) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(stand_in, agent, user, "--limit", "4") == 1
    error = capsys.readouterr().err
    assert "expected ACEBench to ask for an answer, found none asked" in error
    assert "No module named 'vllm'" in error
    assert error.count("\n") == 1
    with pytest.raises(BenchmarkFailed, match="found no"):
        read_results(tmp_path / "run")


@pytest.mark.parametrize(
    "score",
    [
        None,
        "",
        "no JSON\n{}",
        '{"total_count": 2, "correct_count": 2, "process_accuracy": 1}',
        '{"total_count": 1, "correct_count": 1, "process_accuracy": 1}\n{"id": 0, "valid": false}',
        '{"total_count": 1, "correct_count": 1, "process_accuracy": "all"}',
    ],
)
def test_what_is_no_verdict_is_a_conversation_that_failed(tmp_path, score):
    conversation = Conversation("multi_step", 0, 0, "en", tmp_path)
    for kind, text in (("result", '{"id": "x", "process": []}'), ("score", score)):
        if text is not None:
            folder = conversation.harness_folder / f"{kind}_all" / f"{kind}_en" / MODEL
            folder.mkdir(parents=True)
            (folder / f"data_agent_multi_step_{kind}.json").write_text(text)
    with pytest.raises(ProgramFailed, match="expected a result and a verdict of ACEBench on one case"):
        conversation.outcome()


@pytest.mark.slow
def test_the_official_code_runs_to_its_end(tmp_path):
    try:
        managed_environment(ACEBENCH_HARNESS)
    except HarnessMissing as missing:
        pytest.skip(f"{missing}")
    config = config_with_user(tmp_path, "trials = 1", "requests_at_once = 2")
    # Its code runs an operand as Python.
    pwn = f"[turn_on_wifi(a=open('{tmp_path}/pwned', 'w').write('x') + 1)]"

    def script(body):
        history = body["messages"][1]["content"]
        return reply("finish conversation" if "execution" in history else "[turn_on_wifi()]" if "1" in history else pwn)

    with scripted_endpoint(script, most_tokens=32768) as agent, scripted_endpoint(says_hello) as user:
        assert evaluate(config, agent, user, "--limit", "4") == 0
    results = read_results(tmp_path / "run")
    assert len(results.samples) == 4
    assert results.summary.failures["transport"] == 0
    assert not (tmp_path / "pwned").exists()
