"""The difference of sampler and learner is split by cause: each planted cause is named, and the parts add up."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from array import array

import jax
import numpy as np
import pytest

from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.cli.command import main
from astra_jax.episodes.log import EpisodeLogError, LoggedEpisode, episode_to_json, write_episodes
from astra_jax.episodes.rollout import RolloutConfig, RolloutEngine, Start
from astra_jax.evaluate.mismatch import CAUSES, advice, figures_of, split
from astra_jax.evaluate.scoring import Spoken, learner_logprobs, logged_as_spoken, spoken
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.record_io import write_records

TEMPERATURE = 0.9
LIMITS = RolloutConfig(
    max_prompt_tokens=256, max_response_tokens=160, max_turns=6, temperature=TEMPERATURE, read_tokens=64
)
TRUNCATED = LIMITS.model_copy(update={"top_k": 3, "top_p": 0.95})
ENVIRONMENT = tiny_environment()
GROUP_SIZE = 4


def rolled_out(policy, limits=LIMITS, dtype="float32"):
    config = policy.model_config.model_copy(update={"dtype": dtype})

    async def run():
        engine = RolloutEngine(config, policy.tokenizer, InProcessSandbox(), limits)
        starts = [Start(ENVIRONMENT, ENVIRONMENT.tools)]
        return await engine.run(policy.params, starts, group_size=GROUP_SIZE, seed=5, policy_version=4)

    (group,) = asyncio.run(run())
    return group


@pytest.fixture(scope="module")
def group(taught):
    return rolled_out(taught)


@pytest.fixture(scope="module")
def episodes(group) -> list[Spoken]:
    return [spoken(episode) for episode in group]


@pytest.fixture(scope="module")
def truncated(taught) -> list[Spoken]:
    return [spoken(episode) for episode in rolled_out(taught, TRUNCATED)]


def with_column(each: Spoken, **columns) -> Spoken:
    return each._replace(ledger=dataclasses.replace(each.ledger, **columns))


def rescored(each: Spoken, policy, temperature, *, among_kept=False) -> Spoken:
    """The same tokens; their log-probs are those at another temperature, or among other ids."""
    logprobs = np.zeros(len(each.ledger))
    top_k = each.rollout.top_k if among_kept else None
    logprobs[each.ledger.loss_mask > 0] = learner_logprobs(policy, [each], temperature, top_k)
    return with_column(each, sampled_logprobs=logprobs.tolist())


def require_adds_up(found):
    np.testing.assert_allclose(sum(found.parts.values()), found.total_N, rtol=0, atol=1e-6)
    assert all(part.dtype == np.float64 for part in (*found.parts.values(), found.total_N))
    assert set(found.parts) == set(CAUSES)


def test_with_nothing_planted_sampler_and_learner_agree(taught, episodes):
    found = split(taught, episodes)
    require_adds_up(found)
    assert len(found.total_N) == sum(int(each.ledger.loss_mask.sum()) for each in episodes) > 150
    assert np.abs(found.total_N).max() < 2e-5
    assert found.is_judged_N.all()
    assert found.policy_version == 4
    assert (found.sampler, found.sampler_dtype) == ((TEMPERATURE, False), "float32")
    assert advice(found).endswith("nothing to do")


@pytest.mark.slow
def test_episodes_sampled_in_bfloat16_are_found_to_be(taught):
    spoken_in_bfloat16 = [spoken(episode) for episode in rolled_out(taught, dtype="bfloat16")]
    found = split(taught, spoken_in_bfloat16, sampler_dtype="bfloat16")
    require_adds_up(found)
    assert found.largest == "dtype"
    assert found.sampler_dtype == "bfloat16"
    differences_N = np.abs(found.total_N)
    assert differences_N.mean() <= 3e-3
    assert np.quantile(differences_N, 0.95) <= 2e-2


def test_log_probs_of_the_raw_policy_are_known_by_their_temperature(taught, episodes):
    """A server may tell log-probs at temperature 1, whatever it samples at."""
    found = split(taught, [rescored(each, taught, 1.0) for each in episodes])
    require_adds_up(found)
    assert found.largest == "temperature"
    assert found.sampler.temperature == 1.0
    assert found.figures()["program"].mean < found.figures()["temperature"].mean / 50
    assert f"are those at temperature {found.sampler.temperature:.4g}, and the learner divides by 0.9" in advice(found)


def test_a_learner_at_another_temperature_is_told_from_the_sampler(taught, episodes):
    found = split(taught, episodes, LIMITS.model_copy(update={"temperature": 1.1}))
    require_adds_up(found)
    assert found.largest == "temperature"
    assert found.sampler.temperature == TEMPERATURE
    assert found.figures()["program"].max < 2e-5


def test_truncated_episodes_agree_among_the_kept_ids(taught, truncated):
    found = split(taught, truncated, TRUNCATED)
    require_adds_up(found)
    assert np.abs(found.total_N).max() < 2e-5


@pytest.mark.parametrize("lost_by", ["learner", "log", "sampler"])
def test_kept_ids_that_are_lost_are_named(taught, truncated, lost_by):
    """The learner does without them, the log has none, or the sampler tells log-probs among all ids."""
    learner, told = LIMITS if lost_by == "learner" else TRUNCATED, truncated
    if lost_by == "log":
        told = [with_column(e, kept_counts=[0] * len(e.ledger), kept_ids=array("i")) for e in truncated]
    if lost_by == "sampler":
        told = [rescored(each, taught, TEMPERATURE) for each in truncated]
    found = split(taught, told, learner)
    require_adds_up(found)
    assert found.largest == "kept_ids"
    assert found.figures()["kept_ids"].max > 1e-3
    assert found.figures()["program"].max < 2e-5
    assert found.sampler.among_kept == (lost_by != "sampler")


def test_tokens_of_another_version_are_counted_apart(taught, episodes):
    """Two episodes of older weights, whose difference says nothing of the programs."""
    older = Policy(taught.model_config, jax.tree.map(lambda w: 0.8 * w, taught.params), taught.tokenizer)
    told = [rescored(each, older, TEMPERATURE) for each in episodes[:2]]
    told = [
        with_column(each, policy_versions=[3 if version == 4 else version for version in each.ledger.policy_versions])
        for each in told
    ]
    found = split(taught, [*told, *episodes[2:]])
    require_adds_up(found)
    figures = found.figures()
    num_older = sum(int(each.ledger.loss_mask.sum()) for each in told)
    assert found.largest == "weight_version"
    assert (figures["weight_version"].tokens, found.other_versions) == (num_older, (3,))
    assert figures["weight_version"].mean > 0.01
    assert all(figures[cause].max < 2e-5 for cause in CAUSES[1:])
    assert advice(found).startswith(
        f"{num_older} of {len(found.total_N)} tokens were sampled with weights of version 3"
    )
    none_judged = split(taught, told, policy_version=4)
    require_adds_up(none_judged)
    assert none_judged.largest == "weight_version"


def test_other_weights_under_the_same_version_are_not_taken_for_rounding(taught, episodes):
    other = Policy(taught.model_config, jax.tree.map(lambda w: 0.8 * w, taught.params), taught.tokenizer)
    found = split(taught, [rescored(each, other, TEMPERATURE) for each in episodes])
    require_adds_up(found)
    assert found.largest == "program"
    assert advice(found).startswith("nothing here reproduces the sampled log-probs: other weights under this version")


def test_the_figures_of_a_part():
    found = figures_of(np.array([0.0, 0.0, 0.1, -0.2]))
    assert found == (4, pytest.approx(0.075), pytest.approx(0.185), 0.2)


def test_what_cannot_be_split_says_why(episodes, taught):
    other = episodes[0]._replace(rollout=TRUNCATED)
    with pytest.raises(EpisodeLogError, match="under the same limits, found 2 of them in 5 episodes"):
        split(taught, [*episodes, other])
    with pytest.raises(EpisodeLogError, match="found 0 of them in 0 episodes"):
        split(taught, [])


def test_the_command_reads_logs_and_ends_with_what_to_do(taught, group, episodes, tmp_path, capsys):
    save_policy(taught, tmp_path / "policy")
    lines = [episode_to_json(episode, taught.tokenizer, policy="step 4", reward=0.0) for episode in group]
    logged = logged_as_spoken(LoggedEpisode.model_validate(lines[0]))
    np.testing.assert_allclose(logged.ledger.sampled_logprobs, episodes[0].ledger.sampled_logprobs, atol=1e-6)
    same = dataclasses.replace(logged.ledger, sampled_logprobs=episodes[0].ledger.sampled_logprobs)
    assert (same, logged.rollout) == (episodes[0].ledger, episodes[0].rollout)
    write_episodes(tmp_path / "log.jsonl", lines)
    command = ["doctor", "mismatch", str(tmp_path / "policy"), "--episodes", str(tmp_path / "log.jsonl")]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said[2:-1]] == [*CAUSES, "total"]
    assert said[-1].startswith("doctor: ")
    assert said[-1].endswith("nothing to do")
    assert main([*command, "--count", "1", "--policy-version", "7", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["largest"], found["other_versions"], found["policy_version"]) == ("weight_version", [4], 7)
    assert found["causes"]["weight_version"]["tokens"] == found["causes"]["total"]["tokens"]
    assert main([*command, "--count", "1", "rollout.top_k=8"]) == 2
    assert "expected --config beside rollout.top_k=8" in capsys.readouterr().err
    lines[0]["rolled_out"] = None
    write_episodes(tmp_path / "log.jsonl", lines)
    assert main(command) == 1
    assert "and their limits, in the episode in " in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_rolls_out(taught, tmp_path, capsys):
    save_policy(taught, tmp_path / "policy")
    write_records(tmp_path / "environments", [ENVIRONMENT], kind="environment")
    command = ["doctor", "mismatch", str(tmp_path / "policy"), "--environments", str(tmp_path / "environments")]
    assert main([*command, "--count", "1", "--sampler-dtype", "bfloat16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["largest"] == "dtype"
    assert found["sampler"]["dtype"] == "bfloat16"
