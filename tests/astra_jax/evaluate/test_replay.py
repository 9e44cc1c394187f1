"""A logged episode says the same again, token by token; another policy, tool or log is told apart, and where."""

from __future__ import annotations

import asyncio
import json
import re

import jax
import pytest
from pydantic import ValidationError

from astra_jax.checkpoints.checkpoint import save_params
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.cli.command import main
from astra_jax.episodes.log import LoggedEpisode, episode_to_json, write_episodes
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import EvaluationRollout, RolloutEngine, Start
from astra_jax.errors import RunUnreadable
from astra_jax.evaluate.replay import replay
from astra_jax.testing import InProcessSandbox, tiny_environment

KNOWN, STRANGE = tiny_environment(), tiny_environment(owner="Teal Finch", flat="Opal Gate", rent=777)
LIMITS = EvaluationRollout(max_prompt_tokens=256, max_response_tokens=160, max_turns=6, temperature=0.9, read_tokens=64)


def rolled_out_and_logged(taught, limits) -> list[LoggedEpisode]:
    """Six episodes that were decoded together."""

    async def run():
        engine = RolloutEngine(taught.model_config, taught.tokenizer, InProcessSandbox(), limits)
        starts = [Start(each, each.tools) for each in (KNOWN, STRANGE)]
        return await engine.run(taught.params, starts, group_size=3, seed=11)

    return [
        LoggedEpisode.model_validate(
            episode_to_json(episode, taught.tokenizer, policy="sft", reward=episode_reward(episode))
        )
        for group in asyncio.run(run())
        for episode in group
    ]


@pytest.fixture(scope="module")
def logged(taught) -> list[LoggedEpisode]:
    return rolled_out_and_logged(taught, LIMITS)


def replayed(logged, policy):
    return asyncio.run(replay(logged, policy))


def test_each_episode_says_the_same_again_from_its_log_alone(taught, logged):
    assert len({tuple(each.tokens) for each in logged}) > 2
    several = 0
    for each in [*logged, *rolled_out_and_logged(taught, LIMITS.model_copy(update={"top_k": 5, "top_p": 0.95}))]:
        found = replayed(each, taught)
        assert (found.difference, found.num_calls) == ("", len(each.calls))
        assert found.largest_logprob_difference < 2e-5
        several += each.num_turns > 1
    assert several > 3


def test_an_earlier_log_is_replayed_unless_ids_that_truncation_kept_stand_in_it(taught, logged):
    line = logged[0].model_dump(mode="json")
    line["rolled_out"]["limits"]["max_tool_seconds"] = None
    earlier = line | {"tokens": [[*token, []] for token in line["tokens"]]}
    read = LoggedEpisode.model_validate_json(json.dumps(earlier))
    assert read.tokens == logged[0].tokens
    assert replayed(read, taught).difference == ""
    for others in ([[*token, [3]] for token in line["tokens"]], [7], 7):
        with pytest.raises(ValidationError, match="tokens"):
            LoggedEpisode.model_validate_json(json.dumps(line | {"tokens": others}))


def with_token(logged, place, **changes):
    tokens = list(logged.tokens)
    tokens[place] = tokens[place]._replace(**changes)
    return logged.model_copy(update={"tokens": tuple(tokens)})


def test_a_token_a_log_prob_a_call_or_a_reply_that_differs_is_named(taught, logged):
    def difference(logged) -> str:
        return replayed(logged, taught).difference

    each = next(each for each in logged if each.num_turns > 1)
    tool = next(place for place, token in enumerate(each.tokens) if token.source == "tool")
    said = next(place for place, token in enumerate(each.tokens) if place > tool and token.source == "model")
    other = with_token(each, said, id=(each.tokens[said].id + 1) % taught.model_config.vocab_size)
    assert difference(other).startswith(f"token {said} was {other.tokens[said].id} ")
    surer = with_token(each, said, sampled_logprob=each.tokens[said].sampled_logprob + 1e-3)
    assert difference(surer).startswith(f"the log-prob of token {said} was ")
    told = with_token(each, tool, id=(each.tokens[tool].id + 1) % taught.model_config.vocab_size)
    before = max(place for place, token in enumerate(each.tokens[:tool]) if token.source == "model")
    assert difference(told).startswith(f"other tokens follow token {before}; the replies to its calls now make [")
    call = each.calls[0].model_copy(update={"arguments": {"name": "another"}})
    assert difference(each.model_copy(update={"calls": (call, *each.calls[1:])})).startswith("call 1 was (")
    assert difference(each.model_copy(update={"calls": ()})).startswith("call 1 was None, now (")
    assert each.tokens[-1].source == "model"
    shorter = each.model_copy(update={"tokens": each.tokens[:-1]})
    last = each.num_turns
    count = sum(token.turn == last and token.source == "model" for token in each.tokens)
    assert difference(shorter) == f"message {last} had {count - 1} tokens, now {count}"


def test_another_slot_or_seed_says_something_else_and_a_policy_that_moved_has_other_log_probs(taught, logged):
    changed = {"seed": 12}, {"slot": 5}
    others = [
        each.model_copy(update={"rolled_out": each.rolled_out.model_copy(update=change)})
        for each in logged
        for change in changed
    ]
    assert sum(replayed(other, taught).difference.startswith("token ") for other in others) > 3
    moved = Policy(taught.model_config, jax.tree.map(lambda weight: 1.002 * weight, taught.params), taught.tokenizer)
    assert replayed(logged[0], moved).difference.startswith("the log-prob of token ")


def test_an_episode_that_cannot_be_replayed_says_why(taught, logged):
    last = logged[0].tokens[-1]._replace(policy_version=3)
    other = logged[0].model_copy(update={"tokens": (*logged[0].tokens[:-1], last)})
    with pytest.raises(RunUnreadable, match=r"has tokens of policy versions \[0, 3\]: its weights changed"):
        replayed(other, taught)
    unlimited = logged[0].rolled_out.model_copy(update={"limits": {}})
    with pytest.raises(
        RunUnreadable, match=r"limits of the episode in .* cannot be read: max_prompt_tokens: Field required"
    ):
        replayed(logged[0].model_copy(update={"rolled_out": unlimited}), taught)
    with pytest.raises(RunUnreadable, match=r"has no seed, slot and limits, since no policy spoke"):
        replayed(logged[0].model_copy(update={"rolled_out": None}), taught)


def test_the_command_replays_a_log_and_fails_where_one_differs(taught, logged, tmp_path, capsys):
    save_policy(taught, tmp_path / "policy")
    chosen = [each for each in logged if each.calls][:2]
    write_episodes(tmp_path / "log.jsonl", [each.model_dump(mode="json") for each in chosen])
    command = ["replay", str(tmp_path / "log.jsonl"), "--policy", str(tmp_path / "policy"), "--count", "2"]
    assert main(command) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"{chosen[0].environment_id} (sft): the same"
    num_tokens, num_calls = (sum(len(getattr(each, name)) for each in chosen) for name in ("tokens", "calls"))
    assert said[-1].startswith(f"replay: 2 of 2 episodes the same, of {num_tokens} tokens and {num_calls} calls;")

    # Not another seed: so sure a policy may draw the same again.
    last = chosen[0].tokens[-1]
    assert last.source == "model"
    other = last._replace(id=(last.id + 1) % taught.model_config.vocab_size)
    wrong = [chosen[0].model_copy(update={"tokens": (*chosen[0].tokens[:-1], other)}), chosen[1]]
    write_episodes(tmp_path / "log.jsonl", [each.model_dump(mode="json") for each in wrong])
    assert main(command) == 1
    assert f": token {len(chosen[0].tokens) - 1} was {other.id} " in capsys.readouterr().out
    assert main([*command, "--named", "rl"]) == 1
    assert " has no episode of rl; name another log" in capsys.readouterr().err
    (tmp_path / "log.jsonl").write_bytes(b'{"question": "\xff"}\n')
    assert main(command) == 1
    assert re.search(r"line 1 of \S+ is not an episode: ", capsys.readouterr().err)


def test_weights_of_a_checkpoint_speak_in_the_place_of_the_policys(taught, logged, tmp_path, capsys):
    moved = jax.tree.map(lambda weight: 1.002 * weight, taught.params)
    save_policy(Policy(taught.model_config, moved, taught.tokenizer), tmp_path / "policy")
    save_params(tmp_path / "00000016", taught.model_config, taught.params)
    spoken = logged[0].model_copy(update={"policy_version": 16})
    write_episodes(tmp_path / "log.jsonl", [spoken.model_dump(mode="json")])
    command = ["replay", str(tmp_path / "log.jsonl"), "--policy", str(tmp_path / "policy")]
    assert main(command) == 1
    assert main([*command, "--checkpoint", str(tmp_path / "00000016")]) == 0
    assert "replay: 1 of 1 episodes the same" in capsys.readouterr().out
    write_episodes(tmp_path / "log.jsonl", [logged[0].model_dump(mode="json")])
    assert main([*command, "--checkpoint", str(tmp_path / "00000016")]) == 1
    assert (
        "of policy version 16, but the episodes are of versions [0]; groups that had waited" in capsys.readouterr().err
    )
