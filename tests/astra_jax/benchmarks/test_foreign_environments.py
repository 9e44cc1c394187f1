"""Environments of other libraries: ASTRA's rows, and fakes of verifiers and OpenEnv, whose programs run confined."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from astra_jax.benchmarks import foreign_environments, foreign_tasks
from astra_jax.benchmarks.foreign_environments import foreign_certificate
from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed
from astra_jax.errors import UsageError
from astra_jax.evaluate.astra_rows import read_astra_rows
from astra_jax.evaluate.certify import certify
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.export.rl_rows import astra_row

SOUND = json.loads(astra_row(tiny_environment()).model_dump_json())


def test_rows_of_astra_are_attacked_without_gold_calls(tmp_path):
    row = {column: value for column, value in SOUND.items() if column != "environment"}  # as published
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = read_astra_rows(tmp_path / "rows.jsonl")
    assert found.entities == ("Quartz Heron",)  # of all names in the tools' data, that of the question
    certificate = asyncio.run(certify([found], InProcessSandbox(), digest="0f", source="rows"))
    assert (certificate.gold, certificate.gap, certificate.fault) == (None, None, None)
    assert certificate.attacks["told_names"].solved == 1
    assert "style" not in certificate.attacks


@pytest.mark.parametrize(
    "line",
    ["{}", "[]", '{"prompt": []}', "no JSON", ""]
    + [
        json.dumps(SOUND | {column: text})
        for column in ("tool_dict", "sub_qa_dict", "tool_schema")
        for text in ("{}", "[]")
    ]
    + [json.dumps(SOUND | {"sub_qa_dict": text}) for text in ('{"find_flat": "Mill"}', '{"find_flat": []}')],
)
def test_a_line_that_is_no_row_is_named_in_one_line(tmp_path, line):
    # U+2028 may stand inside of a text, and ends no line.
    sound = json.dumps(SOUND | {"prompt": [{"role": "user", "content": "About\u2028Mill?"}]}, ensure_ascii=False)
    (tmp_path / "rows.jsonl").write_text(f"{sound}\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"^line 2 of .*rows.jsonl is no row of ASTRA's data: .+; name another file$"):
        read_astra_rows(tmp_path / "rows.jsonl")


class Rubric:
    async def score_rollout(self, state):
        state["reward"] = float(f"<answer>\n{state['answer']}\n" in state["completion"][0]["content"])


ROWS = [{"prompt": [{"role": "user", "content": f"{n} + 1?"}], "answer": str(n + 1)} for n in (1, 1, 4)]
ADDS = SimpleNamespace(rubric=Rubric(), get_eval_dataset=lambda n: ROWS[:n])


class Shop:
    """An environment that rewards long answers."""

    def reset(self, seed):
        return SimpleNamespace(result={"task": f"sell {seed}"})

    def step(self, action):
        return SimpleNamespace(reward=len(action.arguments["answer"]) / 100)


@pytest.fixture
def in_this_process(monkeypatch):
    """Run the program of the tasks here, on fakes of both libraries."""
    core = SimpleNamespace(CallToolAction=SimpleNamespace)
    fakes = {"adds": SimpleNamespace(load_environment=lambda: ADDS), "openenv": ModuleType("openenv")}
    for name, fake in {**fakes, "openenv.core": core, "shop": SimpleNamespace(make=Shop)}.items():
        monkeypatch.setitem(sys.modules, name, fake)

    async def run(command, *, folder, said, **_):
        monkeypatch.setattr("sys.stdin", io.StringIO(said))
        monkeypatch.chdir(folder)
        await asyncio.to_thread(foreign_tasks.main)

    monkeypatch.setattr(foreign_environments, "run_harness", run)


@pytest.mark.parametrize(
    ("name", "gold_f1", "best", "best_f1"),
    [("verifiers:adds", 1.0, "constant", 0.6667), ("openenv:shop:make", None, "refuse", 0.39)],
)
def test_attacks_that_call_no_tool_act_in_environments_of_others(in_this_process, name, gold_f1, best, best_f1):
    certificate = asyncio.run(foreign_certificate(name, python=Path(sys.executable), count=3))
    assert (certificate.gold_f1, certificate.best_attack, certificate.best_attack_f1) == (gold_f1, best, best_f1)
    assert (certificate.source, certificate.num_environments) == (name, 3)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"prompts": ["?"], "rewards": {"empty": [NaN]}}', "gave no finite rewards"),
        ('{"prompts": ["?"], "rewards": {"empty": [0], "gold": [0]}}', "gold answers of verifiers:adds earn no reward"),
        (None, "verifiers:adds does not run: No module named 'adds'; run it by itself first"),
    ],
)
def test_an_environment_without_sound_rewards_gets_no_certificate(monkeypatch, written, said):
    async def run(command, *, folder, log, **_):
        if written is None:
            raise ProgramFailed(f"python ended with exit code 1; see {log}", "No module named 'adds'")
        (folder / "rewards.json").write_text(written)

    monkeypatch.setattr(foreign_environments, "run_harness", run)
    with pytest.raises(BenchmarkFailed, match=f"^.*{said}[^\n]*$"):
        asyncio.run(foreign_certificate("verifiers:adds", python=Path(sys.executable), count=1))
