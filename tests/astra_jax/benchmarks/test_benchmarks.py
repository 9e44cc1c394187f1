"""The contract of the four benchmarks: requests, scores, kinds of failure, lost samples and repeated requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra_jax.benchmarks.harnesses import HARNESSES
from astra_jax.benchmarks.managed_environment import HarnessMissing, managed_environment
from astra_jax.benchmarks.results import read_results
from synthesis.run.lock import run_lock
from tests.astra_jax.benchmarks.scripted_endpoint import reply, says_hello, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import ACEBENCH, AIME, BFCL, TAU2, Driven

TOOL = {"type": "function", "function": {"name": "cd", "parameters": {}, "response": {}}}
BFCL_BODY = {"model": "scripted", "store": False, "temperature": 0.6, "top_k": 20, "max_tokens": 77, "tools": [TOOL]}
ACEBENCH_BODY = {"temperature": 0.6, "max_tokens": 4096, "top_p": 1, "top_k": 20}
ACEBENCH_SETTINGS = ("trials=2", "top_k=20", "max_tokens_floor=4096", "user.temperature=0.5", "temperature=0.6")


@pytest.mark.parametrize(
    ("driven", "arguments", "body", "num_asked", "of_samples", "first"),
    [
        (BFCL, ("--limit", "8", "top_k=20", "max_tokens=77"), BFCL_BODY, (16, 0), 800, (2, 2, 2, 10)),
        (TAU2, ("--limit", "4", "max_tokens=99"), {"temperature": 0.0, "max_tokens": 99}, (16, 8), 228, (2, 1, 1, 10)),
        (ACEBENCH, ("--limit", "4", *ACEBENCH_SETTINGS), ACEBENCH_BODY, (16, 4), 50, (2, 1, 1, 6)),
        (AIME, (), {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_tokens": 100}, (6, 0), 3, (1, 1, 0, 5)),
    ],
    ids=lambda value: value.name if isinstance(value, Driven) else "",
)
def test_a_run_asks_as_the_config_says_is_scored_and_is_then_only_read(
    tmp_path, monkeypatch, capsys, driven, arguments, body, num_asked, of_samples, first
):
    driven.set_up(tmp_path, monkeypatch)
    with scripted_endpoint(driven.good) as agent, scripted_endpoint(says_hello) as user:
        for _ in range(2):
            assert driven.evaluate(tmp_path, agent, user, *arguments) == 0
    assert (len(agent.bodies), len(user.bodies)) == num_asked
    assert {key: agent.bodies[0][key] for key in body} == body
    assert {each["model"] for each in agent.bodies} == {"scripted"}
    assert set(agent.keys) == {None}
    if driven.has_user:
        assert ({each["model"] for each in user.bodies}, set(user.keys)) == ({"player"}, {"Bearer key-of-user"})
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not any(b"key-of-user" in path.read_bytes() for path in files)
    results = read_results(tmp_path / "run")
    sample = results.samples[0]
    assert (sample.steps, sample.turns, sample.tool_calls, sample.completion_tokens) == first
    assert (results.summary.score.value, results.run.of_samples) == (1, of_samples)
    assert f"{driven.name}: 100.0 %" in capsys.readouterr().out
    if driven is BFCL:
        assert results.summary.by_category["base"].interval[0] == pytest.approx(0.342, abs=1e-3)  # Wilson's of 2 of 2
    if driven is TAU2:
        assert "content" not in agent.bodies[1]["messages"][2]  # the request is as the harness made it
    if driven is ACEBENCH:
        assert (user.bodies[0]["temperature"], user.bodies[0]["max_tokens"]) == (0.5, 1000)
    if driven in (ACEBENCH, AIME):  # a conversation's own
        assert len({each["seed"] for each in agent.bodies}) == len(results.samples)


REFUSED = (400, {"error": {"message": "no room"}})
ONE_BFCL = 'categories=["base"]'


def cut_conversation(run: Path) -> None:
    (run / "raw" / "conversations" / "agent_multi_step_1.0" / "outcome.json").write_text('{"sample": {"id"')


def append_half_line(run: Path) -> None:
    """Leave a file of results as a process does that is killed while it writes."""
    (path,) = [*run.glob("raw/answers.jsonl"), *run.glob("raw/result/*/multi_turn/*_result.json")]
    path.write_text(path.read_text() + '{"id": "half')


@pytest.mark.parametrize(
    ("driven", "arguments", "lost", "killed", "again", "words"),
    [
        (BFCL, ("--limit", "3", ONE_BFCL), "multi_turn_base_1", append_half_line, 1, "1 of 3 samples lost an answer"),
        (TAU2, ("--limit", "3", 'domains=["retail"]'), "retail_1 trial 0", None, 5, "tau2 run ended with exit code"),
        (
            *(ACEBENCH, ("--limit", "3", 'categories=["multi_step"]'), "agent_multi_step_0"),
            *(cut_conversation, 2, "1 of 3 samples lost an answer (agent_multi_step_0: no room"),
        ),
        (AIME, (), "2025 p0", append_half_line, 1, "2 of 6 samples lost an answer (2025/p0: HTTP 400"),
    ],
    ids=lambda value: value.name if isinstance(value, Driven) else "",
)
def test_lost_and_half_written_samples_alone_are_asked_again(
    tmp_path, monkeypatch, capsys, driven, arguments, lost, killed, again, words
):
    driven.set_up(tmp_path, monkeypatch)

    def loses(body: Any) -> Any:
        return REFUSED if driven.case_of(body) == lost else driven.good(body)

    with scripted_endpoint(loses) as agent, scripted_endpoint(says_hello) as user:
        assert driven.evaluate(tmp_path, agent, user, *arguments) == 1
        assert words in capsys.readouterr().err
        if killed is not None:
            killed(tmp_path / "run")
        agent.bodies.clear()
        agent.script = driven.good
        assert driven.evaluate(tmp_path, agent, user, *arguments) == 0
    asked = {driven.case_of(body) for body in agent.bodies}
    assert (lost in asked, len(asked)) == (True, again)
    results = read_results(tmp_path / "run")
    assert (results.summary.score.value, results.summary.failures["transport"]) == (1, 0)
    assert len({(sample.id, sample.trial) for sample in results.samples}) == len(results.samples)


def bfcl_fails(body: Any) -> Any:
    # The last one passes in spite of the later failure: the answer is counted, the sample did not fail.
    said = {
        "multi_turn_base_0": (500, {"error": {"message": "broken"}}),
        "multi_turn_base_1": reply(""),
        "multi_turn_base_2": reply("no end of wo", finish="length", tokens=(10, 64)),
        "multi_turn_base_3": reply("I shall not."),
        "multi_turn_base_4": reply("", tokens=(20, 1)) if len(body["messages"]) == 2 else reply(None, ("cd", "{}")),
    }
    return said[BFCL.case_of(body)]


def tau2_fails(body: Any) -> Any:
    said = {"retail_0": reply(""), "retail_1": reply("I wait and wa", finish="length")}
    return said.get(TAU2.case_of(body).split(" ")[0], reply("No."))


def tau2_user_fails(body: Any) -> Any:
    return reply("I", finish="length") if "retail_2" in body["messages"][0]["content"] else says_hello(body)


def acebench_fails(body: Any) -> Any:
    said = {
        "agent_multi_turn_0": REFUSED,
        "agent_multi_turn_1": reply("[no_such_tool()]"),  # at which the code ends
        "agent_multi_turn_2": reply("finish conversation", finish="length"),
        "agent_multi_turn_3": reply(None if "agent:" not in body["messages"][1]["content"] else "finish conversation"),
        "agent_multi_turn_4": reply("I wait."),
    }
    return said.get(ACEBENCH.case_of(body), reply("finish conversation"))


def acebench_user_fails(body: Any) -> Any:
    return reply("I wa", finish="length") if body["messages"][0]["content"] == "multi_turn 5" else says_hello(body)


def aime_fails(body: Any) -> Any:
    said = {"2024 p0": reply(r"\boxed{73}, no: \boxed{74}"), "2024 p1": reply("", finish="length"), "2025 p0": REFUSED}
    return said[AIME.case_of(body)]


@pytest.mark.parametrize(
    ("driven", "agent_script", "user_script", "arguments", "failures", "answers"),
    [
        (
            *(BFCL, bfcl_fails, says_hello, ("--limit", "5", ONE_BFCL)),
            {"transport": 1, "cut": 1, "empty": 1, "wrong": 1},
            {"all": 8, "cut": 2, "empty": 3, "failed_requests": 1, "renamed_calls": 0},
        ),
        (
            *(TAU2, tau2_fails, tau2_user_fails, ("--limit", "4", 'domains=["retail"]', "trials=1")),
            {"cut": 1, "empty": 1, "user": 1, "wrong": 1},
            {"all": 4, "cut": 1, "empty": 1, "failed_requests": 0, "failed_requests_of_user": 0},
        ),
        (
            *(ACEBENCH, acebench_fails, acebench_user_fails),
            ("--limit", "7", 'categories=["multi_turn"]', "max_messages=3"),
            {"transport": 1, "cut": 1, "empty": 1, "user": 1, "step_limit": 1, "wrong": 2},
            {"all": 9, "cut": 1, "empty": 1, "failed_requests": 1, "failed_requests_of_user": 0},
        ),
        (
            *(AIME, aime_fails, says_hello, ()),
            {"transport": 2, "cut": 2, "wrong": 2},
            {"all": 4, "cut": 2, "empty": 2, "failed_requests": 2},
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Driven) else "",
)
def test_failures_are_told_apart_by_cause(
    tmp_path, monkeypatch, driven, agent_script, user_script, arguments, failures, answers
):
    driven.set_up(tmp_path, monkeypatch)
    with scripted_endpoint(agent_script) as agent, scripted_endpoint(user_script) as user:
        assert driven.evaluate(tmp_path, agent, user, *arguments) == ("transport" in failures)
    results = read_results(tmp_path / "run")
    assert {cause: count for cause, count in results.summary.failures.items() if count} == failures
    assert results.summary.answers == answers
    details = {sample.id: sample.detail for sample in results.samples}
    if driven is ACEBENCH:
        assert "NameError: name 'no_such_tool'" in details["agent_multi_turn_1"]
        assert details["agent_multi_turn_6"] == "class attributes wrong"


def test_another_config_other_problems_and_a_second_command_are_refused_and_the_run_stays(
    tmp_path, monkeypatch, capsys
):
    AIME.set_up(tmp_path, monkeypatch)
    with scripted_endpoint(AIME.good) as agent:
        assert AIME.evaluate(tmp_path, agent, agent, "--limit", "1") == 0
        run = read_results(tmp_path / "run").run
        assert (run.samples, run.of_samples, run.trials) == (2, 3, 2)
        agent.bodies.clear()
        assert AIME.evaluate(tmp_path, agent, agent, "--limit", "1", "temperature=1.0") == 2
        assert "temperature: 0.6 before, 1.0 now" in capsys.readouterr().err
        with run_lock(tmp_path / "run" / ".lock"):
            assert AIME.evaluate(tmp_path, agent, agent, "--limit", "1") == 2
        assert "AnotherRun" in capsys.readouterr().err
        (tmp_path / "25.jsonl").write_text('{"id": "p0", "problem": "another", "answer": 1}\n')
        assert AIME.evaluate(tmp_path, agent, agent, "--limit", "1") == 2
        assert "problems of 2025: changed" in capsys.readouterr().err
    assert (agent.bodies, read_results(tmp_path / "run").run) == ([], run)


@pytest.mark.parametrize(
    ("driven", "arguments", "message"),
    [
        (BFCL, ("--limit", "6"), "expected --limit to be a multiple of the 4 categories"),
        (BFCL, ("--limit", "201", ONE_BFCL), "up to 200 cases of each, found 201"),
        (BFCL, ("policy=nowhere",), "both are named"),
        (BFCL, ("categories=[]",), "categories"),
        (AIME, ("max_tokens=1000",), "expected max_tokens below the 1000 tokens"),
    ],
)
def test_wrong_arguments_are_one_line_and_no_request(tmp_path, monkeypatch, capsys, driven, arguments, message):
    driven.set_up(tmp_path, monkeypatch)
    with scripted_endpoint(driven.good) as agent:
        assert driven.evaluate(tmp_path, agent, agent, *arguments) == 2
    error = capsys.readouterr().err
    assert (message in error, error.count("\n"), agent.bodies) == (True, 1, [])
    assert not (tmp_path / "run" / "summary.json").exists()


def bfcl_attacks(body: Any, attack: str) -> Any:
    """Call a tool that is none, which must never be run as Python, and one that is."""
    if body["messages"][-1]["role"] == "tool":
        return reply("Done.")
    return reply(None, ("open", json.dumps({"file": attack, "mode": "w"})), ("ls", "{}"))


def acebench_attacks(body: Any, attack: str) -> Any:
    """Call with an operand that the official code runs as Python."""
    history = body["messages"][1]["content"]
    call = "[turn_on_wifi()]" if "1" in history else f"[turn_on_wifi(a=open('{attack}', 'w').write('x') + 1)]"
    return reply("finish conversation" if "execution" in history else call)


@pytest.mark.slow
@pytest.mark.parametrize(("driven", "attacks"), [(BFCL, bfcl_attacks), (ACEBENCH, acebench_attacks)])
def test_the_official_code_where_it_is_set_up_runs_to_its_end_and_nothing_of_the_model(tmp_path, driven, attacks):
    try:
        managed_environment(HARNESSES[driven.name])
    except HarnessMissing as missing:
        pytest.skip(f"{missing}")
    driven.write_config(tmp_path)
    with (
        scripted_endpoint(lambda body: attacks(body, f"{tmp_path}/pwned"), most_tokens=32768) as agent,
        scripted_endpoint(says_hello) as user,
    ):
        assert driven.evaluate(tmp_path, agent, user, "--limit", "4") == 0
    results = read_results(tmp_path / "run")
    assert (len(results.samples), results.summary.answers["failed_requests"]) == (4, 0)
    assert results.summary.answers.get("renamed_calls") != 0
    assert not (tmp_path / "pwned").exists()
