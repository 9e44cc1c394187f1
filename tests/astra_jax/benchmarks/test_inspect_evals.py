"""τ²-bench by two harnesses: inspect-evals, driven: by a stand-in and, where set up, itself; and its log, read."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from astra_jax.benchmarks import harness_process, inspect_evals, managed_environment, tau2
from astra_jax.benchmarks.harnesses import INSPECT_EVALS, TAU2
from astra_jax.benchmarks.inspect_evals_files import read_log
from astra_jax.benchmarks.managed_environment import HarnessMissing, ManagedEnvironment
from astra_jax.benchmarks.results import BenchmarkFailed, HarnessDocument, read_results
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import reply, scripted_endpoint

HERE = Path(__file__).parent


def a_program(path: Path, stand_in: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{os.path.realpath(sys.executable)}\n{(HERE / f'stand_in_{stand_in}.py').read_text()}")
    path.chmod(0o755)


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """Environments whose programs are stand-ins; return the folder of inspect's."""
    found = {
        name: ManagedEnvironment(tmp_path / name, HarnessDocument(package=name, version="stand-in"))
        for name in (TAU2.name, INSPECT_EVALS.name)
    }
    a_program(tmp_path / "tau2" / "bin" / "tau2", "tau2")
    (tmp_path / "tau2" / "data" / "tau2").mkdir(parents=True)
    (tmp_path / "tau2" / "data" / "tau2" / "tasks.json").write_text("[]")
    a_program(tmp_path / "inspect-evals" / "bin" / "inspect", "inspect")
    a_program(tmp_path / "inspect-evals" / "bin" / "python", "inspect_python")
    for module in (tau2, inspect_evals, managed_environment):
        monkeypatch.setattr(module, "managed_environment", lambda harness: found[harness.name])
    return tmp_path / "inspect-evals"


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tau2.toml"
    path.write_text(
        f'out = "{tmp_path}/run"\ntrials = 1\nrequests_at_once = 1\ntemperature = 0.5\n[user]\nmodel = "player"\n'
    )
    return path


def evaluate(config: Path, agent, user, *rest: str) -> int:
    settings = [f"user.url={user.url}", "--cross-check", *rest]
    return main(["evaluate", "tau2", str(config), "--url", agent.url, *settings])


def is_of_second(body) -> bool:
    return "epoch" in body["messages"][0]["content"]


def done_but(*wrong: str):
    """Return what answers: it is done, but not in these conversations of the first harness or of the second."""

    def script(body):
        first, asked = body["messages"][0], body["messages"][0]["content"]
        where = asked.removeprefix("policy ") if first["role"] == "system" else asked
        return reply("I cannot." if where in wrong else "It is done.")

    return script


def speaks_once(body):
    has_spoken = is_of_second(body) and body["messages"][0]["content"] in speaks_once.heard
    speaks_once.heard.add(body["messages"][0]["content"])
    return reply("###STOP###" if has_spoken else "I lost my parcel.", tokens=(5, 2))


@pytest.fixture(autouse=True)
def nothing_heard():
    speaks_once.heard = set()


def test_tasks_that_two_harnesses_score_otherwise_are_named(environment, config, tmp_path, capsys):
    script = done_but("retail_0 trial 0", "telecom_1 epoch 1")
    with scripted_endpoint(script) as agent, scripted_endpoint(speaks_once) as user:
        settings = ("max_tokens=70", "user.max_tokens=30", "user.temperature=0.2", "top_k=20")
        assert evaluate(config, agent, user, "--limit", "4", *settings) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in printed[1:5]] == [
        ["cases", "tau2", "stand-in", "inspect-evals", "stand-in", "differ"],
        ["retail", "2", "50.0", "%", "100.0", "%", "1"],
        ["telecom", "2", "100.0", "%", "50.0", "%", "1"],
        ["all", "4", "75.0", "%", "75.0", "%", "2"],
    ]
    assert printed[5:] == [
        "differs: retail/retail_0: 0 and 1",
        "differs: telecom/telecom_1: 1 and 0",
        f"cross-check -> {tmp_path}/run/cross_check/summary.json",
    ]
    # What inspect-evals writes into its requests is replaced by what the first harness asked for.
    by_agent = [body for body in agent.bodies if is_of_second(body)]
    assert {(each["model"], each["temperature"], each["max_tokens"], each["top_k"]) for each in by_agent} == {
        ("scripted", 0.5, 70, 20)
    }
    by_user = [body for body in user.bodies if is_of_second(body)]
    assert {(each["model"], each["temperature"], each["max_tokens"]) for each in by_user} == {("player", 0.2, 30)}
    second = read_results(tmp_path / "run" / "cross_check")
    assert second.run.harness.package == "inspect-evals"
    assert second.run.user_simulator == "player"
    assert second.summary.failures["wrong"] == 1
    sample = second.samples[3]
    assert (sample.id, sample.turns, sample.steps) == ("telecom/telecom_1", 2, 1)
    assert (sample.prompt_tokens, sample.completion_tokens) == (10, 5)  # of the agent, also what it had read before
    assert sample.detail == "the database does not match"


def test_trials_are_joined_by_task_and_a_finished_cross_check_is_only_read(environment, config, tmp_path, capsys):
    script = done_but("retail_1 epoch 2")
    with scripted_endpoint(script) as agent, scripted_endpoint(speaks_once) as user:
        settings = ("--limit", "2", 'domains=["retail"]', "trials=2")
        assert evaluate(config, agent, user, *settings) == 0
        assert "differs: retail/retail_1: 1 and 0.5" in capsys.readouterr().out
        asked = len(agent.bodies)
        assert evaluate(config, agent, user, *settings, "--json") == 0
        assert len(agent.bodies) == asked
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (last["both"], len(last["differing"]), last["second"]["score"]["value"]) == (2, 1, 0.75)
    assert last["second"]["pass_hat"] == {"1": 0.75, "2": 0.5}
    second = read_results(tmp_path / "run" / "cross_check")
    assert [(sample.id, sample.trial) for sample in second.samples] == [
        ("retail/retail_0", 0),
        ("retail/retail_0", 1),
        ("retail/retail_1", 0),
        ("retail/retail_1", 1),
    ]


@pytest.mark.parametrize("code", [None, "context_length_exceeded"])
def test_a_request_that_fails_in_the_second_is_no_score_of_it_and_ends_with_1(
    environment, config, tmp_path, capsys, code
):
    def script(body):
        if body["messages"][0]["content"] == "telecom_0 epoch 1":
            return 400, {"error": {"message": "no", "code": code}}
        return done_but()(body)

    with scripted_endpoint(script) as agent, scripted_endpoint(speaks_once) as user:
        assert evaluate(config, agent, user, "--limit", "4") == 1
        told = capsys.readouterr()
        assert "only by tau2 stand-in: telecom/telecom_0" in told.out
        assert "found 1 of 4 samples with a lost one (telecom/telecom_0" in told.err
        summary = read_results(tmp_path / "run" / "cross_check").summary
        assert (summary.answers["failed_requests"], summary.failures["transport"]) == (1, 1)
        agent.script = done_but()
        speaks_once.heard = set()
        assert evaluate(config, agent, user, "--limit", "4") == 0
    assert "only by" not in capsys.readouterr().out


def test_a_second_harness_that_runs_fewer_tasks_has_no_figure(environment, config, tmp_path, capsys):
    (environment / "left_out").write_text("retail_1")
    with scripted_endpoint(done_but()) as agent, scripted_endpoint(speaks_once) as user:
        assert evaluate(config, agent, user, "--limit", "4") == 1
    told = capsys.readouterr().err
    assert "expected 4 samples of inspect-evals" in told
    assert "retail/retail_1 trial 0" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run" / "cross_check" / "summary.json").exists()


def test_a_second_harness_that_ends_badly_is_one_line_with_its_reason(environment, config, capsys):
    (environment / "failed").touch()
    with scripted_endpoint(done_but()) as agent, scripted_endpoint(speaks_once) as user:
        assert evaluate(config, agent, user, "--limit", "4") == 1
    told = capsys.readouterr().err
    assert "expected inspect-evals to end retail well, found error: no such file; see" in told
    assert told.count("\n") == 1


def test_without_the_second_harness_nothing_is_run_and_one_line_says_what_to_install(
    environment, config, monkeypatch, tmp_path, capsys
):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with scripted_endpoint(done_but()) as agent, scripted_endpoint(speaks_once) as user:
        assert evaluate(config, agent, user, "--limit", "2") == 1
        assert agent.bodies == []
    told = capsys.readouterr().err
    assert "expected the harness inspect-evals 0.26.0" in told
    assert "make it by `astra evaluate setup inspect-evals`" in told
    assert told.count("\n") == 1
    assert not (tmp_path / "run" / "run.json").exists()


def test_its_command_line_names_the_tasks_and_bounds_a_conversation(environment, config, tmp_path, monkeypatch):
    commands = []
    run_harness = harness_process.run_harness

    async def seen(command, **rest):
        commands.append(list(command))
        await run_harness(command, **rest)

    monkeypatch.setattr(inspect_evals, "run_harness", seen)
    with scripted_endpoint(done_but()) as agent, scripted_endpoint(speaks_once) as user:
        assert evaluate(config, agent, user, "--limit", "2", "max_steps=6", "trials=2", "requests_at_once=3") == 0
    command, condense, *of_telecom = commands
    assert command[1:3] == ["eval", "inspect_evals/tau2_retail"]
    options = " ".join(command)
    for given in (
        "--model openai-api/agent/agent -M strict_tools=false",
        '--model-role user={"model": "openai-api/user/user", "model_args": {"strict_tools": false}}',
        "-T shuffle=false -T message_limit=3",
        "--sample-id retail_0 --epochs 2",
        "--turn-limit 6",
        "--max-samples 3 --max-connections 3",
        "--max-retries 0 --no-fail-on-error",
        "--log-format eval",
    ):
        assert given in options
    assert re.search(r"raw/retail/log\.eval .*raw/retail\.json$", " ".join(condense).replace("\n", " "))
    assert of_telecom[0][2] == "inspect_evals/tau2_telecom"


def test_the_brackets_of_a_task_s_id_are_no_pattern():
    environment = ManagedEnvironment(Path("/e"), HarnessDocument(package="p", version="1"))
    config = tau2.Tau2Config(out=Path("/o"), user={"url": "http://u", "model": "m"})
    command = inspect_evals._command(config, environment, "telecom", ["[a]b|c[P:None]", "7"], Path("/l"))
    assert command[command.index("--sample-id") + 1] == "[[]a]b|c[[]P:None],7"


def answer(
    content: str = "", role: str | None = None, *, stop: str = "stop", calls: int = 0, error: str | None = None
) -> dict:
    """An event of kind `model`, in inspect-ai's form."""
    message = {"role": "assistant", "content": content, "tool_calls": [{"function": "f"}] * calls or None}
    usage = {"input_tokens": 3, "input_tokens_cache_read": 4, "input_tokens_cache_write": None, "output_tokens": 2}
    output = {"model": "m", "choices": [{"message": message, "stop_reason": stop}], "usage": usage}
    return {"event": "model", "role": role, "output": output, "error": error}


STOP = answer("Thanks. ###STOP###", "user")


def conversation(value: str, *events: dict, error: str | None = None) -> dict:
    scores = {"retail_scorer": {"value": value, "explanation": "the end differs"}}
    return {
        "id": "0",
        "epoch": 2,
        "scores": {} if error else scores,
        "error": {"message": error, "traceback": ""} if error else None,
        "total_time": 1.25,
        "events": list(events),
    }


def log_of(tmp_path: Path, *samples: dict) -> Path:
    path = tmp_path / "retail.json"
    path.write_text(json.dumps({"status": "success", "error": None, "samples": samples}))
    return path


@pytest.mark.parametrize(
    ("found", "passed", "failure", "detail"),
    [
        (conversation("C", answer("Hi", "user"), answer("Done."), STOP), True, None, ""),
        (conversation("C", answer("Do", stop="max_tokens"), STOP), True, None, ""),
        (conversation("I", answer("Done."), STOP), False, "wrong", "the end differs"),
        (conversation("I", answer("Do", stop="max_tokens"), answer(), STOP), False, "cut", "the end differs"),
        (conversation("I", answer(" "), STOP), False, "empty", "the end differs"),
        (conversation("I", answer(calls=1), answer("Done."), STOP), False, "wrong", "the end differs"),
        (conversation("I", answer("", "user"), answer("Yes?"), STOP), False, "user", "the end differs"),
        (conversation("I", answer("Hi", "user"), answer("Yes?")), False, "step_limit", "the end differs"),
        (conversation("I", answer(error="gone"), answer("Do", stop="max_tokens"), STOP), False, "transport", "gone"),
        (conversation("I", answer("x", "user", error="gone")), False, "transport", "gone"),
        (
            conversation("I", answer("too long", stop="model_length"), STOP),
            False,
            "transport",
            "the endpoint has refused a request",
        ),
        (conversation("", answer("Done."), error="no such tool"), False, "transport", "no such tool"),
    ],
)
def test_a_log_is_read_conversation_by_conversation(tmp_path, found, passed, failure, detail):
    (sample,) = read_log(log_of(tmp_path, found), "retail")
    assert (sample.id, sample.trial, sample.seconds) == ("retail/0", 1, 1.25)
    assert (sample.passed, sample.failure, sample.score, sample.detail) == (passed, failure, float(passed), detail)


def test_what_the_agent_said_is_counted_and_thoughts_are_no_words(tmp_path):
    thoughts = answer()
    thoughts["output"]["choices"][0]["message"]["content"] = [{"type": "reasoning", "reasoning": "Hm."}]
    said = answer()
    said["output"]["choices"][0]["message"]["content"] = [{"type": "reasoning"}, {"type": "text", "text": "Yes."}]
    user_calls = answer("", "user", calls=1)
    found = conversation("I", answer("Hi", "user"), answer(calls=2), thoughts, said, user_calls, STOP)
    (sample,) = read_log(log_of(tmp_path, found), "retail")
    assert (sample.steps, sample.tool_calls, sample.empty_answers, sample.cut_answers) == (3, 2, 1, 0)
    assert sample.turns == 2
    assert (sample.prompt_tokens, sample.completion_tokens) == (21, 6)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("{", "found a fault at"),
        ('{"status": "success", "samples": [{"id": "0"}]}', r"found a fault at samples\.0\.epoch"),
        ('{"status": "cancelled", "error": null, "samples": []}', "found cancelled: no message"),
        (json.dumps({"status": "success", "samples": [conversation("P", STOP)]}), r"expected one score C or I of ret"),
        (
            json.dumps({"status": "success", "samples": [{**conversation("C", STOP), "scores": None}]}),
            r"of retail/0 trial 1 in .* found \[\]",
        ),
    ],
)
def test_a_log_that_has_no_verdicts_is_refused(tmp_path, log, message):
    path = tmp_path / "retail.json"
    path.write_text(log)
    with pytest.raises(BenchmarkFailed, match=message):
        read_log(path, "retail")


@pytest.mark.slow
def test_inspect_evals_itself_runs_to_its_end(tmp_path, capsys):
    """Where both are set up: `astra evaluate setup tau2 --source DIR`, `astra evaluate setup inspect-evals`."""
    try:
        for harness in (TAU2, INSPECT_EVALS):
            managed_environment.managed_environment(harness)
    except HarnessMissing as missing:
        pytest.skip(str(missing))
    path = tmp_path / "tau2.toml"
    path.write_text(f'out = "{tmp_path}/run"\ntrials = 1\nmax_steps = 10\n[user]\nmodel = "player"\n')

    def agent_script(body):
        said = reply("I see.") if body["messages"][-1]["role"] == "tool" else reply(None, ("calculate", '{"a": 1}'))
        return said[0], {**said[1], "model": "m"}

    def user_script(body):
        said = reply("###STOP###" if "I see." in json.dumps(body) else "I lost my parcel.")
        return said[0], {**said[1], "model": "m"}

    with (
        scripted_endpoint(agent_script, most_tokens=10**6) as agent,
        scripted_endpoint(user_script, most_tokens=10**6) as user,
    ):
        assert evaluate(path, agent, user, "--limit", "4") == 0
    assert "differ" in capsys.readouterr().out
    first, second = read_results(tmp_path / "run"), read_results(tmp_path / "run" / "cross_check")
    assert [sample.id for sample in second.samples] == [sample.id for sample in first.samples]
    assert second.samples[0].id == "retail/0"
    assert second.samples[3].id.startswith("telecom/[")
    assert sum(second.summary.failures[cause] for cause in ("transport", "empty", "cut", "step_limit")) == 0
    assert {(sample.steps, sample.tool_calls, sample.turns) for sample in second.samples} == {(2, 1, 2)}
