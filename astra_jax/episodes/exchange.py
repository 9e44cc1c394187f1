"""Finished episodes go from the host that rolled them out to all others: then every host has the same groups.

Decided: docs/decisions/hosts.md, “The hosts agree on the next program before each call of the decoder”.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import jax

from astra_jax.episodes.episode import Episode
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.mesh.hosts import gather_bytes_from_hosts


def exchanged(groups: Sequence[list[Episode]], is_own: Sequence[bool]) -> list[list[Episode]]:
    """Return the groups of all hosts, each as the one host whose own it is has rolled it out. Every host calls it."""
    if jax.process_count() == 1:
        return list(groups)
    own = [[saved_episode(episode) for episode in group] if is_own[i] else None for i, group in enumerate(groups)]
    told = [json.loads(of_host) for of_host in gather_bytes_from_hosts(json.dumps(own).encode())]
    return [
        group
        if is_own[i]
        else [
            restored_episode(saved, episode.environment)
            for saved, episode in zip(next(of_host[i] for of_host in told if of_host[i]), group, strict=True)
        ]
        for i, group in enumerate(groups)
    ]
