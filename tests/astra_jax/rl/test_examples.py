"""The examples are short, say how they are run, and a run learns with all three."""

from __future__ import annotations

import ast
import json
import math
from pathlib import Path

import pytest

from astra_jax.config import load_config
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox
from tests.astra_jax.rl.configs import tiny_rl_config

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").iterdir())
MOST_LINES = 60
NAMED = {
    "reward": "examples.reward_reads_the_answer:calls_and_answer",
    "objective": "examples.dapo_objective:dapo",
    "curriculum": "examples.curriculum:sometimes_solved",
}


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.suffix == ".py"], ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_it_is_run(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    docstring = ast.get_docstring(ast.parse(text)) or ""
    (key,) = [key for key, name in NAMED.items() if name.startswith(f"examples.{path.stem}:")]
    assert f"astra rl configs/tiny_rl.toml {key}={NAMED[key]}" in docstring


def test_a_shipped_config_takes_the_examples(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config(RLConfig, ROOT / "configs/tiny_rl.toml", [f"{key}={name}" for key, name in NAMED.items()])
    assert {key: getattr(config, key) for key in NAMED} == NAMED


async def test_a_run_learns_with_all_three(taught, tmp_path):
    """In two parts; the policy gives each sampled token the log-prob that it was sampled with."""
    rollout = {"max_prompt_tokens": 256, "max_response_tokens": 160, "max_turns": 6, "temperature": 1.2}
    changes = {"rollout": rollout, "groups_per_rollout": 3, "accumulation": 2}
    config = tiny_rl_config(tmp_path, taught, steps=2, max_rollouts_per_step=8, **changes, **NAMED)
    await run_rl(config, InProcessSandbox())
    lines = [json.loads(line) for line in (config.out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1]
    assert all(line["applied"] == 1 and math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in lines)
    assert lines[0]["mean_abs_logprob_difference"] < 1e-5
