"""Finished episodes as JSON, for a checkpoint and for other hosts, and back, equal in every token and figure.

The JSON shares the lists of the episode, which no longer change: a long one is not copied at every step.

Decided: docs/decisions/hosts.md, “The hosts agree on the next program before each call of the decoder”.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from typing import Any

import jax

from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.mesh.hosts import gather_bytes_from_hosts
from synthesis.records import Environment, JsonObject

_ALIKE = ("state", "met_expectation", "num_turns", "stop_reason", "final_text", "rolled_out")
"""Fields that are saved as they are."""


def saved_episode(episode: Episode) -> JsonObject:
    """Return an episode without its environment, of which the id and the names of the tools shown are kept."""
    return {
        "environment_id": episode.environment.id,
        "tools": [tool.document.name for tool in episode.tools],
        "ledger": dict(vars(episode.ledger)),
        "outcomes": [dict(vars(outcome)) for outcome in episode.outcomes],
        **{name: getattr(episode, name) for name in _ALIKE},
    }


def restored_episode(saved: dict[str, Any], environment: Environment) -> Episode:
    """Return the episode that was saved.

    Raises:
        KeyError: the environment has not the tools that the episode was shown: it is another one.
    """
    by_name = {tool.document.name: tool for tool in environment.all_tools}
    return Episode(
        environment=environment,
        tools=tuple(by_name[name] for name in saved["tools"]),
        ledger=TokenLedger(**saved["ledger"]),
        outcomes=[ToolOutcome(**outcome) for outcome in saved["outcomes"]],
        **{name: saved[name] for name in _ALIKE},
    )


def exchanged(groups: Sequence[list[Episode]], is_own: Sequence[bool]) -> list[list[Episode]]:
    """Return the groups of all hosts, each as the one host whose own it is has rolled it out. Every host calls it."""
    if jax.process_count() == 1:
        return list(groups)
    own = {number: [saved_episode(each) for each in group] for number, group in enumerate(groups) if is_own[number]}
    of_all: dict[str, list[dict[str, Any]]] = {}
    for told in gather_bytes_from_hosts(zlib.compress(json.dumps(own).encode(), level=1)):
        of_all |= json.loads(zlib.decompress(told))
    found = []
    for number, group in enumerate(groups):
        if not is_own[number]:
            told_and_begun = zip(of_all[str(number)], group, strict=True)
            group = [restored_episode(saved, begun.environment) for saved, begun in told_and_begun]
        found.append(group)
    return found
