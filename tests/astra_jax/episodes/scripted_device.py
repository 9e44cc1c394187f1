"""A device that says scripted tokens, on a clock that jumps; the decoder and the engine above it are the real ones."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Said
from astra_jax.engine.interface import Session
from astra_jax.engine.sizes import decode_limits
from astra_jax.engine.tracks import Read, SaidRow, Sample
from astra_jax.episodes.rollout import RolloutEngine


class ScriptedDevice:
    """Says the k-th of some messages in the k-th turn of every session, a token a second."""

    num_shards, vocab_size = 1, 512
    row_steps = 0
    waited_seconds = left_seconds = 0.0

    def __init__(self, messages: Sequence[Sequence[int]]):
        self._messages = messages
        self._begun: dict[Session, list[int]] = {}

    async def idle(self, until: asyncio.Event, *, holds_up: bool) -> None:
        await until.wait()

    async def leave(self, *, failed: bool) -> None:
        pass

    def close(self) -> None:
        pass

    async def read(self, read: Read) -> None:
        await asyncio.sleep(1.0)

    async def sample(self, sample: Sample) -> Said:
        said = []
        for row in sample.all_rows():
            track = row.track
            begun, begins_at = self._begun.setdefault(track.session, []), len(track.ids) - len(track.said)
            if begins_at not in begun:
                begun.append(begins_at)
            ids = list(self._messages[len(begun) - 1][len(track.said) :][: row.max_tokens])
            said.append(SaidRow(ids, [-0.25] * len(ids)))
        await asyncio.sleep(max(len(row.ids) for row in said))
        return said


class OnTheClock(RolloutEngine):
    """The real engine over a scripted device."""

    messages: Sequence[Sequence[int]]

    def _decoder(self, params: Any, num_groups: int, group_size: int, policy_version: int, with_rows: int) -> Any:
        limits = decode_limits(self.config, num_groups, group_size, with_rows)
        calls_away = 2 if self.config.reproducible else None
        self.num_pages = limits.num_pages
        return PagedDecoder(ScriptedDevice(self.messages), limits, end_ids=self._end_ids, calls_away=calls_away)
