"""The questions of a run to a language model are told before anything is spent, prose and unknown domains included."""

from __future__ import annotations

import asyncio
import json

import pytest

from astra_jax.cli.command import main
from synthesis.cost import MeteringTeacher, estimate_environments
from synthesis.environments.pipeline import synthesize_environments
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import tiny_config


@pytest.mark.slow
def test_an_estimate_is_near_the_calls_of_the_whole_run(tmp_path, sandbox_url):
    config = tiny_config(seed=0, count=90, out=tmp_path / "out")
    estimated = asyncio.run(estimate_environments(config, sandbox_url)).total
    assert not list(tmp_path.iterdir()), "an estimate leaves nothing behind"
    teacher = MeteringTeacher()
    asyncio.run(synthesize_environments(config, teacher, sandbox_url))
    asked = teacher.estimate().total
    assert estimated.calls == pytest.approx(asked.calls, rel=0.1)
    assert estimated.prompt_tokens == pytest.approx(asked.prompt_tokens, rel=0.1)
    assert estimated.completion_tokens == pytest.approx(asked.completion_tokens, rel=0.1)


def test_prose_that_only_a_language_model_reads_is_counted_in_the_prompts(tmp_path, here):
    passage = {"text": "The lighthouse of Port Ellen was lit in 1832. " * 100, "domain": "lighthouses", "lang": "en"}
    (tmp_path / "passages.json").write_text(json.dumps([passage]))
    config = tiny_config(seed=0, count=6, out=tmp_path / "out")
    plain = asyncio.run(estimate_environments(config, here)).questions
    read = altered(config, knowledge=(tmp_path / "passages.json",))
    prose = asyncio.run(estimate_environments(read, here)).questions
    assert prose["WriteQAInstance"].calls == plain["WriteQAInstance"].calls == 6
    assert prose["WriteQAInstance"].prompt_tokens - plain["WriteQAInstance"].prompt_tokens > 6 * 1000
    assert prose["WriteToolImplementation"].calls == plain["WriteToolImplementation"].calls > 6


def test_the_command_says_the_cost_without_a_key(tmp_path, sandbox_url, monkeypatch, capsys):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = tmp_path / "config.toml"
    config.write_text('seed = 0\ncount = 4\nout = "out"\n[teacher]\nmodel = "m"\nbase_url = "http://127.0.0.1:9"\n')
    command = ["synthesize", "environments", str(config), "--estimate", "--sandbox", sandbox_url]
    assert main(command) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("a cost needs prices: set teacher.usd_per_million")
    prices = ["teacher.usd_per_million_prompt_tokens=2", "teacher.usd_per_million_completion_tokens=8"]
    assert main([*command[:3], *prices, *command[3:], "--json"]) == 0
    line = json.loads(capsys.readouterr().out)
    total = line["estimate"]
    assert line["stage"] == "environments"
    assert total["cost_usd"] == pytest.approx((2 * total["prompt_tokens"] + 8 * total["completion_tokens"]) / 1e6)
    assert total["calls"] == sum(asked["calls"] for asked in line["questions"].values()) >= 4 * 5
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]
