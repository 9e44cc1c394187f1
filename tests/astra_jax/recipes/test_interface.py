"""Python's way in: a policy, environments and episodes in ten lines, also where an event loop runs already."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest

import astra_jax
from astra_jax.checkpoints.policy import save_policy
from astra_jax.config import ConfigError
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records


def test_the_same_arguments_give_the_same_episodes_with_tokens_and_reward(untrained, tmp_path, sandbox_url):
    save_policy(untrained, tmp_path / "policy")
    write_records(
        tmp_path / "environments", [tiny_environment(), tiny_environment(flat="Blue Door")], kind="environment"
    )
    policy = astra_jax.load_policy(tmp_path / "policy")
    environments = astra_jax.load_environments(tmp_path / "environments")
    arguments = {"episodes": 2, "max_prompt_tokens": 1000, "max_response_tokens": 24, "max_turns": 2}

    async def in_a_notebook() -> list[list[astra_jax.RolledOut]]:
        return astra_jax.roll_out(policy, environments, **arguments, sandbox_url=sandbox_url)

    groups, again = asyncio.run(in_a_notebook()), asyncio.run(in_a_notebook())
    assert [len(group) for group in groups] == [2, 2]
    for episode, same in zip(chain(*groups), chain(*again), strict=True):
        assert episode.ids == same.ids
        assert len(episode.ids) == len(episode.is_sampled) == len(episode.logprobs)
        assert episode.is_sampled.dtype == np.bool_
        assert all(
            (logprob < 0) == sampled for logprob, sampled in zip(episode.logprobs, episode.is_sampled, strict=True)
        )
        assert 0 <= episode.reward <= 1
        assert episode.episode.question in policy.tokenizer.decode(episode.ids)
    assert groups[0][0].ids != groups[0][1].ids


def test_what_could_not_be_scored_is_refused_before_anything_is_rolled_out(untrained):
    empty = tiny_environment().model_copy(update={"sub_questions": (), "id": "nothing"})
    with pytest.raises(ConfigError, match="reward: "):
        astra_jax.roll_out(untrained, [tiny_environment()], reward="f2", sandbox_url="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="nothing is to be solved in nothing; leave them out"):
        astra_jax.roll_out(untrained, [empty], sandbox_url="http://127.0.0.1:9")


def test_an_import_brings_no_jax_until_the_interface_is_used():
    code = "import sys, astra_jax; assert 'jax' not in sys.modules; astra_jax.roll_out; assert 'jax' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'rollout'"):
        astra_jax.rollout  # noqa: B018
