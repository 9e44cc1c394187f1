"""Evaluations: F1 is the paper's under any reward, final answers have a figure, too long prompts are counted."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest

from astra_jax.checkpoints.policy import save_policy
from astra_jax.cli.command import main
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.log import read_episodes
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import EvaluationRollout, PromptTooLong, RolloutEngine
from astra_jax.evaluate import environments as evaluation_module
from astra_jax.evaluate.environments import EvaluationConfig, evaluate_environments, sum_up
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.record_io import write_records
from tests.astra_jax.distractors import with_distractors

KNOWN = tiny_environment()
ROLLOUT = EvaluationRollout(max_prompt_tokens=256, max_response_tokens=160, max_turns=6, temperature=0.0)
CONFIG = EvaluationConfig(
    seed=0, policy=Path("policy"), environments=Path("environments"), out=Path("out"), rollout=ROLLOUT
)


async def evaluate(policy, environments, config=CONFIG):
    engine = RolloutEngine(policy.model_config, policy.tokenizer, InProcessSandbox(), config.rollout)
    return await evaluate_environments(engine, policy.params, environments, config, seed=0)


@pytest.fixture(scope="module")
def evaluation(taught):
    return asyncio.run(evaluate(taught, [KNOWN]))


def test_a_policy_that_says_the_gold_episode_is_right_in_every_figure(evaluation):
    found = evaluation.to_json()
    assert found["f1"] == pytest.approx(1.0, abs=1e-5)
    assert (found["answer_accuracy"], found["answer_accuracy_interval"]) == (1.0, [1.0, 1.0])
    assert found["f1_interval"] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert (found["environments"], found["episodes"], found["left_out"]) == (1, 1, 0)


def test_f1_is_the_papers_under_any_reward_and_an_answer_has_its_own_figure(evaluation, monkeypatch):
    monkeypatch.setattr(evaluation_module, "episode_reward", lambda episode: 0.5 * episode_reward(episode))
    ((episode,),) = evaluation.groups
    wrong = sum_up([[dataclasses.replace(episode, final_text="The rent is 21500.")]], seed=0).figures
    assert (wrong["solved_fraction"], wrong["answer_accuracy"]) == (1.0, 0.0)
    assert wrong["f1"] == pytest.approx(1.0, abs=1e-5)
    assert wrong["reward"] == pytest.approx(0.5 * evaluation.figures["reward"])


async def test_an_environment_whose_prompt_does_not_fit_is_counted_and_left_out(taught):
    long = KNOWN.model_copy(update={"id": "long", "question": KNOWN.question * 40})
    found = await evaluate(taught, [long, KNOWN])
    assert (found.num_left_out, len(found.groups), found.figures["answer_accuracy"]) == (1, 1, 1.0)
    with pytest.raises(PromptTooLong, match=r"none of 1 environments has a .*; raise rollout\.max_prompt_tokens"):
        await evaluate(taught, [long])


async def test_failed_calls_and_errors_of_the_service_are_counted_by_kind(evaluation):
    unknown = ToolOutcome("x", {}, "unknown_tool", None, "", irrelevant=False)
    ((episode,),) = evaluation.groups
    failed = dataclasses.replace(episode, outcomes=[*episode.outcomes, unknown])
    figures = sum_up([[episode], [failed]], seed=0, errors={"service_errors_reply_cut": 3}).to_json()
    errors = {name: count for name, count in figures.items() if "_errors_" in name}
    assert errors == {"model_errors_unknown_tool": 1, "service_errors_reply_cut": 3}
    assert not any("_errors_" in name for name in evaluation.to_json())


class Watched(RolloutEngine):
    """Remembers the starts that it is given, and rolls out nothing."""

    def __init__(self):
        self.starts, self.seeds, self.rooms, self.sandbox = [], [], [], InProcessSandbox()

    def can_run(self, start):
        return True

    async def run(self, params, starts, *, group_size, seed, room_for=0):
        self.starts += starts
        self.seeds.append(seed)
        self.rooms.append(room_for)
        return [[Episode(start.environment, start.tools, TokenLedger(), num_turns=1)] * group_size for start in starts]


async def test_every_environment_is_shown_its_distractors_and_every_lot_draws_numbers_of_its_own():
    environments = [with_distractors(tiny_environment(rent=rent), per_band=2) for rent in range(5)]
    changes = {"irrelevant_per_band": {"high": 2, "low": 1}, "environments_at_once": 2, "episodes_per_environment": 3}
    engine = Watched()
    found = await evaluate_environments(engine, {}, environments, CONFIG.model_copy(update=changes), seed=4)
    assert [start.environment for start in engine.starts] == environments
    for start in engine.starts:
        shown = sorted(tool.document.name for tool in start.tools)
        assert shown[:4] == ["find_flat", "get_rent", "high_0", "high_1"]
        assert shown[4:] in (["low_0"], ["low_1"])
    assert len(set(engine.seeds)) == 3
    assert engine.rooms == [2, 2, 2], "the last lot is one environment, and compiles nothing of its own"
    assert (found.to_json()["environments"], found.to_json()["episodes"]) == (5, 15)


def test_the_command_writes_figures_and_episodes_with_their_token_ids(taught, tmp_path, capsys):
    save_policy(taught, tmp_path / "sft" / "policy")
    write_records(tmp_path / "environments", [KNOWN], kind="environment")
    config = tmp_path / "evaluation.toml"
    config.write_text(
        f'seed = 0\nout = "{tmp_path}/out"\n'
        f'policy = "{tmp_path}/sft/policy"\nenvironments = "{tmp_path}/environments"\n'
        "[rollout]\nmax_prompt_tokens = 256\nmax_response_tokens = 160\nmax_turns = 6\ntemperature = 0\n"
    )
    assert main(["evaluate", "environments", str(config), "--json"]) == 0
    said = capsys.readouterr()
    assert "evaluate: 1 of 1 environments, mean reward " in said.err
    figures = json.loads(said.out.splitlines()[-1])
    assert figures == json.loads((tmp_path / "out" / "figures.json").read_text())
    assert (figures["policy"], figures["temperature"], figures["answer_accuracy"]) == ("sft", 0.0, 1.0)
    (episode,) = read_episodes(tmp_path / "out" / "episodes.jsonl")
    text = taught.tokenizer.decode([token.id for token in episode.tokens])
    assert text == "".join(token.text for token in episode.tokens)
    assert main(["report", str(tmp_path / "out")]) == 0
    html = (tmp_path / "out" / "report.html").read_text()
    assert '"policy":"SFT"' in html


def test_a_policy_is_evaluated_alike_on_several_devices_and_its_type_is_part_of_the_record(taught, tmp_path, capsys):
    save_policy(taught, tmp_path / "sft" / "policy")
    write_records(tmp_path / "environments", [KNOWN, tiny_environment(owner="Teal Finch")], kind="environment")
    config = tmp_path / "evaluation.toml"
    config.write_text(
        f'seed = 0\nout = "{tmp_path}/out"\n'
        f'policy = "{tmp_path}/sft/policy"\nenvironments = "{tmp_path}/environments"\n'
        "[rollout]\nmax_prompt_tokens = 256\nmax_response_tokens = 160\nmax_turns = 6\ntemperature = 0\n"
    )

    def episodes(out: str, *options: str) -> list[list[int]]:
        assert main(["evaluate", "environments", str(config), f"out={tmp_path / out}", *options]) == 0
        return [[token.id for token in each.tokens] for each in read_episodes(tmp_path / out / "episodes.jsonl")]

    on_four = ["--data-parallel-size", "2", "--tensor-parallel-size", "2"]
    assert episodes("out") == episodes("of_four", *on_four)
    assert main(["evaluate", "environments", str(config), "--dtype", "bfloat16"]) == 2
    assert "dtype" in capsys.readouterr().err
    assert main(["evaluate", "environments", str(config), "--tensor-parallel-size", "64"]) == 2
    assert "1 × 64 devices" in capsys.readouterr().err
    episodes("in_bfloat16", "--dtype", "bfloat16")
