"""Finished episodes go from the host that rolled them out to all others: then every host has the same groups.

A host tells of its own in one `.npz` in memory: the columns of all ledgers, end to end, and JSON of the rest.

Decided: docs/decisions/hosts.md, “The hosts agree on the next program before each call of the decoder”.
"""

from __future__ import annotations

import io
import json
from array import array
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Final

import jax
import numpy as np

from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.mesh.hosts import gather_bytes_from_hosts

_COLUMNS: Final = tuple(column.name for column in fields(TokenLedger))


def exchanged(groups: Sequence[list[Episode]], is_own: Sequence[bool]) -> list[list[Episode]]:
    """Return the groups of all hosts, each as the one host whose own it is has rolled it out. Every host calls it."""
    if jax.process_count() == 1:
        return list(groups)
    found = {number: group for number, group in enumerate(groups) if is_own[number]}
    for host, told in enumerate(gather_bytes_from_hosts(_packed(found))):
        if host != jax.process_index():
            found |= _unpacked(told, groups)
    return [found[number] for number in range(len(groups))]


def _packed(groups: dict[int, list[Episode]]) -> bytes:
    ledgers = [episode.ledger for group in groups.values() for episode in group]
    arrays = {}
    for name in _COLUMNS:
        kind = np.float64 if name == "sampled_logprobs" else np.int32
        columns = [np.asarray(getattr(ledger, name), kind) for ledger in ledgers]
        arrays[name] = _narrowed(np.concatenate([np.zeros(0, kind), *columns]))
        arrays[f"{name} ends"] = np.cumsum([len(column) for column in columns], dtype=np.int64)
    no_tokens = TokenLedger()
    rest = {
        number: [saved_episode(replace(each, ledger=no_tokens)) for each in group] for number, group in groups.items()
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, rest=np.frombuffer(json.dumps(rest).encode(), np.uint8), **arrays)
    return file.getvalue()


def _narrowed(column: np.ndarray) -> np.ndarray:
    """Return a column in the smallest type that holds each value of it exactly."""
    kinds = (np.float32,) if column.dtype.kind == "f" else (np.uint8, np.int16)
    return next((small for kind in kinds if np.array_equal(small := column.astype(kind), column)), column)


def _unpacked(told: bytes, groups: Sequence[list[Episode]]) -> dict[int, list[Episode]]:
    """Return the groups that were packed, by their numbers; `groups` has the environments of all."""
    with np.load(io.BytesIO(told)) as arrays:
        rest = json.loads(arrays["rest"].tobytes())
        columns = {name: iter(np.split(arrays[name], arrays[f"{name} ends"][:-1])) for name in _COLUMNS}
    found = {}
    for number, saved in rest.items():
        found[int(number)] = [
            restored_episode(each, like.environment) for each, like in zip(saved, groups[int(number)], strict=True)
        ]
        for episode in found[int(number)]:
            ledger = {name: next(columns[name]).tolist() for name in _COLUMNS}
            episode.ledger = TokenLedger(**ledger | {"kept_ids": array("i", ledger["kept_ids"])})
    return found
