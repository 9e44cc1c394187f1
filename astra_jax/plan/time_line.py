"""A whole update of RL on a clock: rollouts by the real schedule, resharding and learning, without model or machine.

Lengths, tools and the share of valid groups are those of a `Workload`, seconds of calls those of a `StepClock`. The
scheduler, the filling of batches and the packing of rows are the run's own.

Decided: docs/decisions/plan.md, “The plan compiles the run's own programs from the run's own config”.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Final, NamedTuple, Protocol

from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.sizes import Limits
from astra_jax.episodes.rollout import CALLS_AWAY
from astra_jax.plan.clock import CallSeconds, ClockDevice, run_on_clock
from astra_jax.plan.workload import Workload
from astra_jax.rl.batch import packed_rows, row_tokens, segment_starts
from astra_jax.rl.batch_filling import BatchFiller, ScoredGroup
from astra_jax.rl.config import RLConfig

_END_ID: Final = 0
_VOCAB_SIZE: Final = 512
_ROLLOUTS: Final = 2
_UPDATES: Final = 400


class StepClock(Protocol):
    """The seconds of everything in an update that is computed."""

    limits: Limits
    num_shards: int
    """Shards of the batch while episodes are sampled."""
    segment_multiple: int
    """Segments of a row of the learner begin at multiples of so many tokens."""
    calls: CallSeconds
    reshard_seconds: float
    """Seconds that weights, and moments that wait on the host, take for a rollout and back."""

    def update_seconds(self, tokens_of_row: int, num_parts: int) -> float:
        """Return the seconds of an update with rows of so many tokens, of which so many parts have loss."""


class Phases(NamedTuple):
    """Mean seconds of an update, by what the devices do."""

    sampling: float
    reading: float
    tools: float
    """No call is under way: every episode waits for its tools or its host."""
    resharding: float
    learning: float


@dataclasses.dataclass(frozen=True)
class TimeLine:
    """The time of an update, and what its tools need."""

    phases: Phases
    rollouts: float
    """Mean number of rollouts for an update."""
    sampled_tokens: float
    """Tokens that are sampled for an update."""
    row_steps_share: float
    """Share of all rows × steps that sampled a token."""
    most_tools: int
    """Most episodes that wait for their tools at once."""
    mean_tools: float
    """Episodes that wait for their tools, on average over a rollout."""

    @property
    def seconds(self) -> float:
        """Seconds of an update."""
        return sum(self.phases)


def time_line(config: RLConfig, workload: Workload, clock: StepClock) -> TimeLine:
    """Return the mean time of an update, by two rollouts on a clock that jumps."""
    found = [run_on_clock(_Rollout(config, workload, clock, number).run()) for number in range(_ROLLOUTS)]
    per_update = rollouts_per_update(config, workload.valid_share)
    groups = [group for each in found for group in each.groups]
    batches = [groups[at : at + config.groups_per_step] for at in range(0, len(groups), config.groups_per_step)]
    learning = [clock.update_seconds(*rows_of(config, batch, clock.segment_multiple)) for batch in batches]
    sampled, all_seconds = sum(each.num_sampled for each in found), sum(each.seconds for each in found)
    row_steps = sum(each.device.num_steps for each in found) * clock.num_shards * clock.limits.row_counts[0]
    sampling = sum(each.device.sample_seconds for each in found)
    reading = sum(each.device.read_seconds for each in found)
    of_rollout = per_update / _ROLLOUTS
    return TimeLine(
        Phases(
            sampling=of_rollout * sampling,
            reading=of_rollout * reading,
            tools=of_rollout * (all_seconds - sampling - reading),
            resharding=per_update * clock.reshard_seconds,
            learning=fmean(learning),
        ),
        rollouts=per_update,
        sampled_tokens=of_rollout * sampled,
        row_steps_share=sampled / row_steps,
        most_tools=max(each.most_tools for each in found),
        mean_tools=sum(each.tool_seconds for each in found) / all_seconds,
    )


def rollouts_per_update(config: RLConfig, valid_share: float) -> float:
    """Return the mean number of rollouts that fill a batch if so many groups are valid."""
    filler: BatchFiller[int] = BatchFiller(config.groups_per_step, 0.0, config.max_staleness)
    draws, num_rollouts = random.Random(0), 0
    for step in range(_UPDATES):
        filler.drop_stale(step)
        of_step = 0
        while not filler.is_full and of_step < config.max_rollouts_per_step:
            rewards = [(0.0, float(draws.random() < valid_share)) for _ in range(config.groups_per_rollout)]
            filler.add(ScoredGroup(0, each, step) for each in rewards)
            of_step += 1
        num_rollouts += of_step
        if filler.buffer:
            filler.take_batch()
    return num_rollouts / _UPDATES


def rows_of(config: RLConfig, groups: Sequence[tuple[int, Sequence[int]]], segment_multiple: int) -> tuple[int, int]:
    """Return the tokens of a row, and the parts with loss, of an update from some groups.

    A group is the tokens of its prompt, and of what follows it in each of its episodes.
    """
    spans = []
    for prompt, responses in groups:
        for first in range(0, config.group_size, config.episodes_per_row):
            of_row = responses[first : first + config.episodes_per_row]
            lengths = [prompt + of_row[0]] if len(of_row) == 1 else [prompt - 1, *of_row]
            spans.append(segment_starts(lengths, multiple=segment_multiple)[-1] + lengths[-1])
    tokens, parts = row_tokens(max(spans), config.length_bucket_tokens), config.accumulation
    if not config.packing:
        return tokens, parts
    rows = packed_rows(spans, config.rows_per_update, tokens, parts, multiple=segment_multiple)
    return tokens, len({row % parts for row in rows})


class _Rollout:
    """The episodes of one rollout, which sample nothing but take their time."""

    def __init__(self, config: RLConfig, workload: Workload, clock: StepClock, number: int):
        self._config, self._workload, self._number = config, workload, number
        self._message_tokens: dict[int, int] = {}
        self.device = ClockDevice(
            clock.limits,
            costs=clock.calls,
            message_tokens=lambda seed, slot, begins_at: self._message_tokens[slot],
            end_ids=(_END_ID,),
            vocab_size=_VOCAB_SIZE,
            num_shards=clock.num_shards,
        )
        calls_away = CALLS_AWAY if config.rollout.reproducible else None
        self._decoder = PagedDecoder(self.device, clock.limits, end_ids=(_END_ID,), calls_away=calls_away)
        self._host = asyncio.Lock()
        self.groups: list[tuple[int, list[int]]] = []
        self.num_sampled = self.num_waiting = self.most_tools = 0
        self.seconds = self.tool_seconds = 0.0

    async def run(self) -> _Rollout:
        """Run all episodes to their end."""
        places = range(self._config.groups_per_rollout)
        longest = self._config.rollout.max_prompt_tokens
        self.groups = [(min(self._workload.prompt(self._number, place), longest), []) for place in places]
        size = self._config.group_size
        await asyncio.gather(*(self._episode(slot // size, slot) for slot in range(len(places) * size)))
        await self._decoder.close()
        self.seconds = asyncio.get_running_loop().time()
        return self

    async def _episode(self, place: int, slot: int) -> None:
        limits, workload, session = self._config.rollout, self._workload, Session(self._number, slot)
        # Prompts differ between groups: each group is dealt to a shard, and shares the pages of its own prompt.
        prompt, responses = self.groups[place]
        ids = [1 + place % 500, 1 + place // 500] * (prompt // 2) + [1] * (prompt % 2)
        for turn, (said, given) in enumerate(workload.turns(self._number, slot)):
            room = limits.max_response_tokens - (len(ids) - prompt)
            self._message_tokens[slot] = said
            message = await self._decoder.generate(ids, Sampling(room), session)
            ids = [*ids, *message.ids]
            self.num_sampled += len(message.ids)
            if message.finish != "end":  # cut off by the limit: no tool runs
                break
            async with self._host:
                await asyncio.sleep(workload.host_seconds)
            if given == 0:
                break
            seconds = workload.tools(self._number, slot, turn)
            self.num_waiting += 1
            self.most_tools = max(self.most_tools, self.num_waiting)
            self.tool_seconds += seconds
            await asyncio.sleep(seconds)
            self.num_waiting -= 1
            # As in `Rollout`: the tools of a last turn have run, but no message reads their responses.
            if turn + 1 == limits.max_turns or len(ids) - prompt + given >= limits.max_response_tokens:
                break
            ids = [*ids, *[_VOCAB_SIZE - 1] * given]
        self._decoder.forget(session)
        responses.append(len(ids) - prompt)
