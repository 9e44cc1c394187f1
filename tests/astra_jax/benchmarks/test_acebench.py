"""ACEBench: text of a model that its code evaluates, and its verdicts."""

from __future__ import annotations

from functools import partial

import pytest

from astra_jax.benchmarks import acebench
from astra_jax.benchmarks.acebench import MODEL, ACEBench, Conversation
from astra_jax.benchmarks.endpoint import SimulatedUser
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed, read_results
from tests.astra_jax.benchmarks.scripted_endpoint import reply, says_hello, scripted_endpoint
from tests.astra_jax.benchmarks.stand_ins import ACEBENCH


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    ACEBENCH.set_up(tmp_path, monkeypatch)
    return partial(ACEBENCH.evaluate, tmp_path)


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
        said = attempts[ACEBENCH.case_of(body)].replace("PORT", agent.url.rpartition(":")[2])
        return reply("finish conversation" if "execution:" in body["messages"][1]["content"] else said)

    with scripted_endpoint(script) as agent, scripted_endpoint(says_hello) as user:
        assert stand_in(agent, user, "--limit", "6", 'categories=["multi_turn"]') == 0
    samples = {sample.id: sample for sample in read_results(tmp_path / "run").samples}
    assert "FileNotFoundError" in samples["agent_multi_turn_0"].detail
    assert "Read-only file system" in samples["agent_multi_turn_1"].detail
    assert samples["agent_multi_turn_2"].passed  # its own folder is its own
    assert "ConnectionRefusedError" in samples["agent_multi_turn_3"].detail
    assert not samples["agent_multi_turn_4"].passed  # out of processor time
    assert "MemoryError" in samples["agent_multi_turn_5"].detail
    assert not (tmp_path / "environment" / "mine").exists()


def test_a_conversation_whose_outcome_is_gone_is_no_smaller_benchmark(tmp_path):
    user = SimulatedUser(url="http://user", model="player")
    config = acebench.ACEBenchConfig(out=tmp_path, user=user, trials=1, categories=("multi_step",))
    with pytest.raises(BenchmarkFailed, match=r"has the outcomes of 0 of 2 conversations"):
        ACEBench(config, 2).read(tmp_path)


def test_code_that_does_not_begin_ends_the_run_and_is_no_figure(stand_in, tmp_path, capsys):
    (tmp_path / "environment" / "stubs" / "vllm.py").unlink()
    with scripted_endpoint(ACEBENCH.good) as agent, scripted_endpoint(says_hello) as user:
        assert stand_in(agent, user, "--limit", "4") == 1
    error = capsys.readouterr().err
    assert "ACEBench asked for no answer: " in error
    assert "No module named 'vllm'" in error
    assert error.count("\n") == 1
    with pytest.raises(BenchmarkFailed, match=r"holds no finished run of a benchmark: .* is missing"):
        read_results(tmp_path / "run")


@pytest.mark.parametrize(
    "score",
    [
        None,
        "",
        "no JSON\n{}",
        '{"total_count": 2, "correct_count": 2}',
        '{"total_count": 1, "correct_count": 1}\n{"id": 0, "valid": false}',
    ],
)
def test_a_conversation_without_a_verdict_has_failed(tmp_path, score):
    conversation = Conversation("multi_step", 0, 0, "en", tmp_path)
    for kind, text in (("result", '{"id": "x", "process": []}'), ("score", score)):
        if text is not None:
            folder = conversation.harness_folder / f"{kind}_all" / f"{kind}_en" / MODEL
            folder.mkdir(parents=True)
            (folder / f"data_agent_multi_step_{kind}.json").write_text(text)
    with pytest.raises(ProgramFailed, match=r"ACEBench's result and verdict on one case in .* cannot be read: "):
        conversation.outcome()
