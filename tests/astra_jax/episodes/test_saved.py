"""Episodes in a checkpoint, and from another host, come back equal in every token, log-prob, outcome and count."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import zlib

import jax
import pytest

from astra_jax.chat.format import assistant_body
from astra_jax.episodes import saved as saved_module
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rollout import Start
from astra_jax.episodes.saved import exchanged, restored_episode, saved_episode
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.records import Message, ToolCall
from tests.astra_jax.episodes.scripted_policy import run_scripted

ENVIRONMENT = tiny_environment()
SAID = (
    Message(
        role="assistant",
        reasoning_content="I look up.",
        tool_calls=(
            ToolCall(id="1", name="find_flat", arguments={"owner": "Quartz Heron"}),
            ToolCall(id="2", name="find_flat", arguments={"owner": "nobody"}),
        ),
    ),
    Message(role="assistant", reasoning_content="I have it.", content="房价 is 2150."),
)


@pytest.fixture
def episode(tokenizer):
    messages = [[*tokenizer.encode(assistant_body(each, is_last=True)), tokenizer.end_id] for each in SAID]
    start = Start(ENVIRONMENT, ENVIRONMENT.tools[::-1])
    return asyncio.run(run_scripted(start, messages, tokenizer=tokenizer, sandbox=InProcessSandbox()))


def test_an_episode_comes_back_as_it_was(episode):
    restored = restored_episode(json.loads(json.dumps(saved_episode(episode))), ENVIRONMENT)
    assert restored == episode
    assert restored.counts == episode.counts
    assert [outcome.ok for outcome in restored.outcomes] == [True, False]
    assert restored.ledger.loss_mask.tolist() == episode.ledger.loss_mask.tolist()
    assert set(restored.ledger.policy_versions) == {-1, 0}


def test_a_state_comes_back_as_the_episode_left_it(episode):
    changed = dataclasses.replace(episode, state={"count": 2}, met_expectation=True)
    assert restored_episode(json.loads(json.dumps(saved_episode(changed))), ENVIRONMENT) == changed


def test_an_episode_of_another_environment_is_not_restored(episode):
    other = ENVIRONMENT.model_copy(update={"tools": ENVIRONMENT.tools[:1], "sub_questions": ()})
    with pytest.raises(KeyError):
        restored_episode(saved_episode(episode), other)


@pytest.mark.parametrize("host", [0, 1])
def test_each_host_has_the_episodes_of_all_to_the_last_bit(episode, host, monkeypatch):
    """Its own are the objects that it has; a host may have none, and an episode no token."""
    bare = dataclasses.replace(episode, ledger=TokenLedger(), outcomes=[])
    signed = dataclasses.replace(episode, ledger=TokenLedger([1, 2], [0, 2], [0.0, -0.0], [0, 1], [-1, 2**20]))
    groups, is_own = [[episode, bare], [signed, episode]], [True, True] if host == 0 else [False, False]
    begun = [[dataclasses.replace(each, ledger=TokenLedger()) for each in group] for group in groups]
    told: list[bytes] = []

    def gather(own: bytes) -> list[bytes]:
        told.append(own)
        of_first = zlib.compress(json.dumps(dict(enumerate(map(saved, groups)))).encode())
        return [of_first, zlib.compress(b"{}")]

    def saved(group: list) -> list:
        return [saved_episode(each) for each in group]

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(saved_module, "gather_bytes_from_hosts", gather)
    found = exchanged(groups if host == 0 else begun, is_own)
    assert found == groups
    assert repr(found[1][0].ledger) == repr(signed.ledger)
    assert (json.loads(zlib.decompress(told[0])) == {}) == (host == 1)
    assert (found[0] is groups[0]) == (host == 0)
