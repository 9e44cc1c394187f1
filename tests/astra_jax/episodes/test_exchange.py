"""Episodes that another host rolled out: equal to the last bit, and told in few bytes."""

from __future__ import annotations

import dataclasses
import random
import struct
from array import array

import jax
import pytest

from astra_jax.chat.format import Source
from astra_jax.episodes import exchange
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.testing import tiny_environment

ENVIRONMENT = tiny_environment()


def episode_of(num_tokens: int, seed: int, *, top_k: int = 0, exact_float32: bool = True) -> Episode:
    draw = random.Random(seed)
    ledger = TokenLedger()
    if num_tokens:
        ledger.append_given([draw.randrange(151_936) for _ in range(7)], [int(Source.PROMPT)] * 7, turn=0)
        ids = [draw.randrange(151_936) for _ in range(num_tokens - 7)]
        logprobs = [-draw.expovariate(1.0) for _ in ids]
        if exact_float32:
            logprobs = [struct.unpack("f", struct.pack("f", each))[0] for each in logprobs]
        kept = [[id_, *range(id_ % top_k)] for id_ in ids] if top_k else ()
        versions = [310 + number // 100 for number in range(len(ids))]
        ledger.append_sampled(ids, logprobs, turn=1, policy_versions=versions, kept=kept)
        ledger.append_given([5, 6], [int(Source.TOOL)] * 2, turn=1)
    outcome = ToolOutcome("find_flat", {"owner": "栗"}, None, {"rent": 1e300}, "said", irrelevant=False, turn=1)
    return Episode(ENVIRONMENT, ENVIRONMENT.tools[::-1], ledger, outcomes=[outcome], stop_reason="no_tool_call")


def empty() -> Episode:
    return Episode(ENVIRONMENT, ENVIRONMENT.tools, TokenLedger())


def on_host(monkeypatch, host: int, of_hosts: list[bytes]):
    told = []

    def gather(own: bytes) -> list[bytes]:
        told.append(own)
        return [own if number == host else of_host for number, of_host in enumerate(of_hosts)]

    monkeypatch.setattr(jax, "process_count", lambda: len(of_hosts))
    monkeypatch.setattr(jax, "process_index", lambda: host)
    monkeypatch.setattr(exchange, "gather_bytes_from_hosts", gather)
    return told


@pytest.mark.parametrize(
    "changes", [{}, {"top_k": 3}, {"exact_float32": False}], ids=["plain", "truncated", "of 64 bits"]
)
def test_each_host_has_the_episodes_of_all_to_the_last_bit(monkeypatch, changes):
    groups = [[episode_of(60 + 9 * number, 2 * number + each, **changes) for each in range(2)] for number in range(4)]
    groups[2][1] = episode_of(0, 0)  # it ended before it had a token
    texts = [exchange._packed({0: groups[0], 2: groups[2]}), exchange._packed({1: groups[1], 3: groups[3]})]
    for host in range(2):
        is_own = [number % 2 == host for number in range(4)]
        of_host = [group if own else [empty() for _ in group] for group, own in zip(groups, is_own, strict=True)]
        told = on_host(monkeypatch, host, texts)
        found = exchange.exchanged(of_host, is_own)
        assert (told, found) == ([texts[host]], groups)
        for group, expected in zip(found, groups, strict=True):
            for episode, as_it_was in zip(group, expected, strict=True):
                assert repr(episode.ledger) == repr(as_it_was.ledger)


def test_a_host_without_an_episode_of_its_own_hears_all_others(monkeypatch):
    groups = [[episode_of(40, seed) for seed in range(2)]]
    text = exchange._packed({0: groups[0]})
    on_host(monkeypatch, 1, [text, b""])
    assert exchange.exchanged([[empty(), empty()]], [False]) == groups


def test_a_token_takes_thirteen_bytes(monkeypatch):
    """Its id and log-prob four each, five more for the rest; as JSON they took more than forty."""
    group, told = [episode_of(20_000, 0), episode_of(20_000, 1)], []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(exchange, "gather_bytes_from_hosts", lambda own: told.append(own) or [own, own])
    assert exchange.exchanged([group], [True]) == [group]
    assert len(told[0]) < 14 * sum(len(episode.ledger) for episode in group)


def test_a_minus_zero_and_no_kept_ids_come_back(monkeypatch):
    ledger = TokenLedger([1, 2], [int(Source.PROMPT), int(Source.MODEL)], [0.0, -0.0], [0, 1], [-1, 2**20], [0, 0])
    ledger.kept_ids = array("i")
    group = [dataclasses.replace(empty(), ledger=ledger)]
    on_host(monkeypatch, 1, [exchange._packed({0: group}), b""])
    ((found,),) = exchange.exchanged([[empty()]], [False])
    assert repr(found.ledger) == repr(ledger)
