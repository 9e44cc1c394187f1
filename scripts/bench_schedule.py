"""The share of busy rows while tools run, and the cost of the schedule, at the size of a pod without an accelerator.

    python scripts/bench_schedule.py pod      # two hosts with 256 rows each, which make all calls together
    python scripts/bench_schedule.py tools    # 64 episodes of 4 turns in 16 rows, with slow tools and with none
    python scripts/bench_schedule.py real --quickstart runs/quickstart --out runs/time_lines
                                              # the time line of `astra plan` against real runs on this machine

The last one trains six times for a few steps, on a machine without other work (20 minutes on two cores). The first run
gives the lengths of episodes, the tools' times, and one fitted number: the host's seconds after a message. The time of
calls and updates is that of the run's own programs, called alone, the median of nine times that lie apart. The time
lines of the other five runs are then simulated before they are compared; of each, the medians over all steps but the
first two count, and the number of rollouts for an update, which is chance, is the real one.

Decoders sample no model: lengths of messages and times of tools are drawn, a step takes 20 ms of a clock that jumps
(`astra_jax/plan/clock.py`). Tools take 0.5 s in the middle, and up to 2 s. A command always draws the same.

An episode of the pod has as many turns as the paper's trajectories have calls: lognormal, 4.42 on average, at most 5 in
three of four (the paper: 72.2 %), and never more than 32. The pod runs three times: with two episodes for each row, so
that another one takes the place of one that has ended; as `of_the_recipe` with the groups, rows and shards of
configs/paper_rl_14b.toml; and as `of_one_batch` if that recipe started as many groups as a step learns from, with a row
for each of their episodes. One JSON line:

    step_seconds              of all hosts: steps that sample, of 20 ms each; `read_seconds`: the reads in between
    scheduler_share_of_steps  CPU seconds of `Schedule`, reads included ÷ `step_seconds`
    scheduler_share_of_calls  the same ÷ steps and reads together
    process_share_of_steps    of the whole process: made-up tokens, episodes and event loop included
    rows_busy                 tokens sampled ÷ rows x steps, where a call has fewer rows if few episodes want one;
                              `while_rows_can_be_full`: as long as there are more episodes than rows
    row_steps_that_sample     tokens sampled ÷ all rows x steps, at any number of rows in a call
    row_steps_lost            the others, as shares of all rows x steps: to episodes that have `ended`, to `tools`, to
                              tokens that were not `read` yet, and in calls, to messages that ended in them
    bound                     `row_steps_that_sample` if tools, reads and other rows took no time, and the longest
                              episode began first: it has a row to itself at the end
    seconds_per_update        and `groups_per_update`, if half of all groups have reward variance (`BatchFiller`)
    longest_to_median_wait    of an episode, for rows and for steps that it had no part in, over all its messages
    pages                     of a host, and the fewest that were free
    wall_ratio                of the tools' mode: seconds with slow tools ÷ seconds with tools that take no time
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

sys.path.append(str(Path(__file__).parents[1]))  # tests/ is no installed package

from astra_jax.chat.format import Source
from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.config import CONFIGS, load_config
from astra_jax.engine.decoder import PagedDecoder
from astra_jax.engine.device import Said, XLADevice
from astra_jax.engine.interface import Sampling, Session
from astra_jax.engine.schedule import Schedule
from astra_jax.engine.shared_device import Proposal, SharedDevice
from astra_jax.engine.sizes import Limits, decode_limits, row_counts_for
from astra_jax.engine.tracks import Read, Sample, SampleRow, Track
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.mesh.placement import place_batch
from astra_jax.metrics_file import read_metrics
from astra_jax.plan.clock import ClockDevice, Costs, Lognormal, run_on_clock
from astra_jax.plan.time_line import time_line
from astra_jax.plan.workload import Workload, recorded_workload
from astra_jax.rl.batch import make_rl_batch
from astra_jax.rl.batch_filling import BatchFiller, ScoredGroup
from astra_jax.rl.config import RLConfig
from astra_jax.rl.train import objective_of, rl_step
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.run import checked_parts
from synthesis.record_io import RecordSource, write_records
from synthesis.records import Environment

_T = TypeVar("_T")
END_ID = 0
COSTS = Costs(seconds_per_step=0.02, seconds_per_read_token=2e-5)
TOOL_SECONDS, MOST_TOOL_SECONDS = Lognormal(0.5, 0.8), 2.0
GROUP, MOST_TURNS = 8, 32
TURNS = Lognormal(4.42 * math.exp(-(0.9**2) / 2), 0.9)


@dataclass(frozen=True)
class Lengths:
    """From which episodes are drawn: tokens of their parts, and how many messages they have."""

    prompt: Lognormal
    message: Lognormal
    given: Lognormal
    turns: Lognormal
    most_message: int
    most: int
    """Tokens of the longest sequence; a longer draw ends there."""


def lengths_with(turns: Lognormal, most_turns: int) -> Lengths:
    """Return given distributions."""
    return Lengths(
        *(Lognormal(1000, 0.0), Lognormal(120, 0.7), Lognormal(60, 0.7), turns),
        most_message=512,
        most=min(1000 + most_turns * 400, 8192),
    )


@dataclass
class Measured:
    """The figures of a run."""

    waits: list[float] = field(default_factory=list)
    """Seconds of each episode's messages beyond its own sampling steps."""
    scheduler_seconds: float = 0.0
    fewest_free: int = 10**9
    while_full: Counter[str] = field(default_factory=Counter)
    """Sampled tokens and row-steps while there are more episodes than rows."""
    lost: Counter[str] = field(default_factory=Counter)
    """Row-steps without a token, by their cause."""
    longest: int = 0
    """Tokens that the longest episode sampled."""


def limits_for(episodes: int, rows: int, lengths: Lengths) -> Limits:
    """Return pages of a shard for half of all its episodes at full length, for one at least."""
    return Limits(
        max_tokens=lengths.most,
        num_pages=max(2, episodes) * -(-lengths.most // 32) // 2,
        page_tokens=32,
        row_counts=row_counts_for(rows),
        sample_tokens=16,
        read_rows=8,
        first_read_rows=8,
        read_tokens=64,
        first_read_tokens=2048,
    )


def timed(schedule: Schedule, measured: Measured) -> None:
    """Add up the time of all that a schedule is asked."""

    def of(call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            start = time.process_time()
            try:
                return call(*args)
            finally:
                measured.scheduler_seconds += time.process_time() - start

        return run

    for name in ("require_room", "ask", "forget", "next_read", "next_sample", "has_read", "has_sampled"):
        setattr(schedule, name, of(getattr(schedule, name)))


async def episode(decoder: PagedDecoder, slot: int, lengths: Lengths, tools: bool, measured: Measured) -> None:
    """One message after another, each followed by its tools."""
    session, waited, sampled = Session(0, slot), 0.0, 0
    group = slot // GROUP
    ids = [1 + group % 500] * round(lengths.prompt.draw(3, group))
    loop = asyncio.get_running_loop()
    for turn in range(max(1, min(round(lengths.turns.draw(4, slot)), MOST_TURNS))):
        room = lengths.most - len(ids)
        if room < 1:
            break
        start = loop.time()
        message = await decoder.generate(ids, Sampling(min(lengths.most_message, room)), session)
        sampled += len(message.ids)
        waited += loop.time() - start - len(message.ids) * COSTS.seconds_per_step
        measured.fewest_free = min(measured.fewest_free, decoder.load.free_pages)
        seconds = min(TOOL_SECONDS.draw(1, slot, turn), MOST_TOOL_SECONDS) if tools else 0.0
        await asyncio.sleep(seconds)
        ids = [*ids, *message.ids, *[2] * round(lengths.given.draw(2, slot, turn))]
    decoder.forget(session)
    measured.waits.append(waited)
    measured.longest = max(measured.longest, sampled)


class _Meeting:
    """A barrier for all hosts, at which each leaves a value and gets those of all."""

    def __init__(self, num_hosts: int):
        self._barrier, self._brought = asyncio.Barrier(num_hosts), [None] * num_hosts

    async def of_all(self, host: int, own: Any) -> list[Any]:
        self._brought[host] = own
        await self._barrier.wait()
        found = [*self._brought]
        await self._barrier.wait()
        return found


class _ClockDeviceOfHost(ClockDevice):
    """A host's shards of a device that all hosts call together: a call takes as long as the longest of its parts."""

    schedule: Schedule
    measured: Measured

    def __init__(self, meeting: _Meeting, host: int, limits: Limits, **named: Any):
        super().__init__(limits, **named)
        self._meeting, self._host = meeting, host

    async def of_all_hosts(self, own: _T) -> list[_T]:
        return await self._meeting.of_all(self._host, own)

    async def sample(self, sample: Sample) -> Said:
        """Note why row-steps have no token."""
        tracks, before = [*self.schedule.tracks.values()], self.num_steps
        causes = {
            "read": sum(track.sampling is not None and track.num_unread > 0 for track in tracks),
            "tools": sum(track.sampling is None for track in tracks),
        }
        said = await super().sample(sample)
        steps, rows = self.num_steps - before, self.num_shards * self._limits.row_counts[0]
        sampled, empty = sum(len(row.ids) for row in said), rows - len(said)
        if len(tracks) > rows:
            self.measured.while_full.update(sampled=sampled, row_steps=steps * rows)
        self.measured.lost["in_calls"] += steps * len(said) - sampled
        for cause, num_waiting in causes.items():
            self.measured.lost[cause] += steps * min(num_waiting, empty)
            empty -= min(num_waiting, empty)
        self.measured.lost["ended"] += steps * empty
        return said


def clock_devices_of_hosts(num_hosts: int, limits: Limits, **named: Any) -> list[SharedDevice]:
    """Return the devices of hosts in one event loop that make all calls together; `named` as of `ClockDevice`."""
    meeting = _Meeting(num_hosts)

    def of_host(host: int) -> SharedDevice:
        async def gather(proposal: Proposal) -> np.ndarray:
            return np.array(await meeting.of_all(host, proposal), np.int32)

        return SharedDevice(_ClockDeviceOfHost(meeting, host, limits, **named), gather)

    return [of_host(host) for host in range(num_hosts)]


async def run_hosts(
    hosts: int, episodes: int, rows: int, lengths: Lengths, tools: bool, calls_away: int | None, shards: int = 1
) -> dict[str, Any]:
    """Run all episodes of all hosts, each with a decoder of its own, which make all calls together.

    Episodes, rows and shards are those of a host.
    """
    limits, measured = limits_for(episodes // shards, rows // shards, lengths), Measured()
    named: dict[str, Any] = {"message_tokens": lengths.message.draw, "end_ids": (END_ID,), "num_shards": shards}
    devices = clock_devices_of_hosts(hosts, limits, costs=COSTS, **named)
    decoders = [PagedDecoder(device, limits, end_ids=(END_ID,), calls_away=calls_away) for device in devices]
    for device, decoder in zip(devices, decoders, strict=True):
        timed(decoder._schedule, measured)
        device._device.schedule, device._device.measured = decoder._schedule, measured

    async def of_host(host: int) -> None:
        slots = range(host * episodes, (host + 1) * episodes)
        await asyncio.gather(*(episode(decoders[host], slot, lengths, tools, measured) for slot in slots))
        await decoders[host].close()  # where others go on, it takes part in their calls until they are done

    start = time.process_time()
    await asyncio.gather(*map(of_host, range(hosts)))
    process_seconds, wall = time.process_time() - start, asyncio.get_running_loop().time()
    loads = [decoder.load for decoder in decoders]
    row_steps, sampled = sum(load.row_steps for load in loads), sum(load.sampled_tokens for load in loads)
    read_tokens = sum(load.read_tokens for load in loads)
    step_seconds = sum(device._device.num_steps for device in devices) * COSTS.seconds_per_step
    call_seconds = step_seconds + read_tokens * COSTS.seconds_per_read_token
    return {
        "wall_seconds": round(wall, 1),
        "step_seconds": round(step_seconds, 1),
        "read_seconds": round(call_seconds - step_seconds, 1),
        "scheduler_cpu_seconds": round(measured.scheduler_seconds, 1),
        "scheduler_share_of_steps": round(measured.scheduler_seconds / step_seconds, 4),
        "scheduler_share_of_calls": round(measured.scheduler_seconds / call_seconds, 4),
        "process_share_of_steps": round(process_seconds / step_seconds, 4),
        "rows_busy": round(sampled / row_steps, 3),
        "row_steps_that_sample": round(sampled / (step_seconds / COSTS.seconds_per_step) / rows, 3),
        "row_steps_lost": {
            cause: round(number * COSTS.seconds_per_step / step_seconds / rows, 3)
            for cause, number in sorted(measured.lost.items())
        },
        "bound": round(min(1.0, sampled / hosts / rows / measured.longest), 3),
        "rows_busy_while_rows_can_be_full": round(
            measured.while_full["sampled"] / max(1, measured.while_full["row_steps"]), 3
        ),
        "longest_to_median_wait": round(max(measured.waits) / statistics.median(measured.waits), 2),
        "median_wait_seconds": round(statistics.median(measured.waits), 1),
        "pages": limits.num_pages,
        "fewest_free_pages": measured.fewest_free,
        "episodes": hosts * episodes,
        "sampled_tokens": sampled,
        "read_tokens": read_tokens,
    }


def updates(recipe: RLConfig, groups: int, rollout_seconds: float, steps: int = 200) -> dict[str, float]:
    """Return seconds and groups of an update if rollouts have so many groups, half of which have reward variance."""
    filler: BatchFiller[int] = BatchFiller(recipe.groups_per_step, recipe.min_reward_std, recipe.max_staleness)
    draws, num_rollouts = random.Random(0), 0
    for step in range(steps):
        filler.drop_stale(step)
        while not filler.is_full:
            filler.add(ScoredGroup(0, (0.0, float(draws.random() < 0.5)), step) for _ in range(groups))
            num_rollouts += 1
        filler.take_batch()
    return {
        "seconds_per_update": round(num_rollouts * rollout_seconds / steps, 1),
        "groups_per_update": round(num_rollouts * groups / steps, 1),
    }


class MeasuredClock:
    """The `StepClock` of a run on this device: each program is called alone, for every shape, and timed.

    A shape that is asked for is timed at once, and again by each `time_all`; the median counts.
    """

    num_shards = segment_multiple = 1
    reshard_seconds = 0.0

    def __init__(self, config: RLConfig):
        """Load the policy that the run begins with."""
        self._config, self.calls = config, self
        self._parts = checked_parts(config)
        self._params = load_params(config.init, mesh=None, overrides=config.model_overrides)[1]
        of_rollout = (config.groups_per_rollout, config.group_size, config.groups_with_rows)
        self.limits = decode_limits(config.rollout, *of_rollout)
        self._device = XLADevice(self._parts.model_config, self._params, self.limits, end_ids=(-1,))
        self._timed: dict[tuple[Any, ...], tuple[Callable[[], object], list[float]]] = {}

    def read(self, read: Read, num_tokens: int) -> float:
        """Return the seconds of a call that reads."""
        return self._seconds(self._read_call, read.begins, read.most_rows, read.most_tokens)

    def sample(self, sample: Sample, num_steps: int) -> float:
        """Return the seconds of a call that samples: those of beginning it, and of each step."""
        table = next(table for table in self.limits.tables if table >= sample.most_pages)
        most = self.limits.sample_tokens
        one, all_steps = (self._seconds(self._sample_call, sample.most_rows, table, steps) for steps in (1, most))
        return one + (all_steps - one) * (num_steps - 1) / (most - 1)

    def update_seconds(self, tokens_of_row: int, num_parts: int) -> float:
        """Return the seconds of an update whose first parts are full of episodes of one length."""
        return self._seconds(self._update_call, tokens_of_row, num_parts)

    def _seconds(self, call_of: Callable[..., Callable[[], object]], *shape: Any) -> float:
        key = (call_of.__name__, *shape)
        if key not in self._timed:
            self._timed[key] = call_of(*shape), []
            self._timed[key][0]()  # compiles
            self._time(key)
        return statistics.median(self._timed[key][1])

    def _time(self, key: tuple[Any, ...]) -> None:
        call, seconds = self._timed[key]
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)

    def time_all(self) -> None:
        """Time every shape once more, one after the other, so that a slow minute of the machine hits none alone."""
        for key in self._timed:
            self._time(key)

    def _read_call(self, begins: bool, rows: int, tokens: int) -> Callable[[], object]:
        return lambda: self._waits(self._device._read(Read([[]], begins, rows, tokens)))

    def _sample_call(self, rows: int, table: int, steps: int) -> Callable[[], object]:
        def track(number: int) -> Track:
            length = min(table * self.limits.page_tokens, self.limits.max_tokens) - self.limits.sample_tokens
            pages = [(number * table + page) % self.limits.num_pages for page in range(table)]
            sampling = Sampling(steps, self._config.rollout.temperature)
            found = Track(Session(0, number), 0, 0, length, [1] * length, pages, length - 1)
            found.sampling = sampling
            return found

        sample = Sample([[SampleRow(track(number), steps) for number in range(rows)]], rows, table, leave_at=0)
        return lambda: self._waits(self._device._sample(sample))

    def _waits(self, _: Any) -> None:
        jax.block_until_ready(self._device._pages)

    def _update_call(self, tokens_of_row: int, num_parts: int) -> Callable[[], object]:
        config, parts = self._config, self._parts
        per_row = config.episodes_per_row
        prompt = min(config.rollout.max_prompt_tokens, tokens_of_row // (per_row + 1))
        response = (tokens_of_row - prompt) // per_row

        def episode() -> Any:
            ledger = TokenLedger()
            ledger.append_given([1] * prompt, [int(Source.PROMPT)] * prompt, turn=0)
            ledger.append_sampled([1] * response, [-1.0] * response, turn=1, policy_versions=[0] * response)
            return SimpleNamespace(ledger=ledger)

        rows = config.rows_per_update * num_parts // config.accumulation
        rewards = tuple(float(number % 2) for number in range(config.group_size))
        groups: Any = [
            ScoredGroup([episode() for _ in rewards], rewards, 0)
            for _ in range(max(1, rows * per_row // config.group_size))
        ]

        def update() -> None:
            batch, _ = make_rl_batch(
                groups,
                length_bucket_tokens=config.length_bucket_tokens,
                pad_id=parts.tokenizer.pad_id,
                episodes_per_row=per_row,
                num_rows=config.rows_per_update,
                packed_parts=config.accumulation if config.packing else None,
            )
            optimizer = make_optimizer(config.optimizer, config.steps)
            params = jax.tree.map(jnp.copy, self._params)  # a step is given away its weights
            jax.block_until_ready(
                rl_step(
                    params,
                    optimizer.init(params),
                    place_batch(batch, len(batch.tokens_BT), None),
                    model_config=parts.model_config,
                    optimizer_config=config.optimizer,
                    steps=config.steps,
                    objective=objective_of(config),
                    accumulation=config.accumulation,
                    packing=config.packing,
                )
            )

        return update


REAL_RUNS: dict[str, list[str]] = {
    "the shipped recipe": [],
    "twice as many groups in a rollout": ["groups_per_rollout=32"],
    "groups of four": ["group_size=4"],
    "a row for each episode": ["episodes_per_row=1", "packing=false", "accumulation=16"],
    "shorter episodes": ["rollout.max_turns=3", "rollout.max_response_tokens=192"],
    "tools of 0.2 s, no waiting": ["rollout.reproducible=false"],
}
"""The keys of each run; the first is the one that the others are told from."""
SLOW_TOOL_SECONDS = 0.2
PASSES = 2
"""Number of times that all real runs are made."""
TIMES = 8
"""Number of times that every shape is timed once more: minutes apart, since the machine has slow minutes."""


def with_slow_tools(source: Path, out: Path) -> Path:
    """Write environments whose tools sleep first, once."""
    if not (out / "dataset.json").exists():
        sleep = f"import time\ntime.sleep({SLOW_TOOL_SECONDS})\n"

        def slow(tool: Any) -> Any:
            return tool.model_copy(update={"source": sleep + tool.source})

        def all_slow(environment: Environment) -> Environment:
            irrelevant = (each.model_copy(update={"tool": slow(each.tool)}) for each in environment.irrelevant_tools)
            tools = {"tools": tuple(map(slow, environment.tools)), "irrelevant_tools": tuple(irrelevant)}
            return environment.model_copy(update=tools)

        write_records(out, map(all_slow, RecordSource(source, Environment)), kind="environment")
    return out


def real_steps(out: Path) -> list[dict[str, Any]]:
    """Return the steps of a run that count, each with its number of rollouts."""
    lines = read_metrics(out / "metrics.jsonl")
    submitted = [0, *(line["groups_submitted"] for line in lines)]
    for number, line in enumerate(lines):
        line["groups_rolled_out"] = submitted[number + 1] - submitted[number]
    return [line for line in lines[2:] if line["groups_rolled_out"]]


def real_runs(quickstart: Path, out: Path) -> Iterator[dict[str, Any]]:
    """Run each recipe for a few steps, simulate it, and yield both times."""
    steps: list[list[dict[str, Any]]] = [[] for _ in REAL_RUNS]
    for each_pass in range(PASSES):
        configs = []
        for number, (words, keys) in enumerate(REAL_RUNS.items()):
            folder = out / f"pass_{each_pass}" / f"run_{number}"
            environments = quickstart / "environments"
            if words.startswith("tools"):
                environments = with_slow_tools(environments, out / "slow_environments")
            places = [f"out={folder}", f"init={quickstart / 'sft' / 'policy'}", f"environments={environments}"]
            keys = [*keys, *places, "steps=8", "log_episodes_every_steps=1", "optimizer.learning_rate=1e-9"]
            if not (folder / "policy").exists():
                command = [sys.executable, "-m", "astra_jax.cli", "rl", str(CONFIGS / "tiny_rl.toml"), *keys]
                subprocess.run(command, check=True)
            steps[number] += real_steps(folder)
            configs.append(load_config(RLConfig, CONFIGS / "tiny_rl.toml", keys))
    recorded = recorded_workload(configs[0].out)
    later = dataclasses.replace(recorded.tool_seconds, median=recorded.tool_seconds.median + SLOW_TOOL_SECONDS)
    most = recorded.most_tool_seconds + SLOW_TOOL_SECONDS
    slow = {"tool_seconds": later, "most_tool_seconds": most}
    workloads = [dataclasses.replace(recorded, **slow if words.startswith("tools") else {}) for words in REAL_RUNS]
    clocks = [MeasuredClock(config) for config in configs]
    for ask_for_shapes in zip(configs, workloads, clocks, strict=True):
        time_line(*ask_for_shapes)
    for _ in range(TIMES):
        for clock in clocks:
            clock.time_all()
    host_seconds = None
    for words, config, of_run, clock, workload in zip(REAL_RUNS, configs, steps, clocks, workloads, strict=True):
        real_rollout = statistics.median(
            line["rollout_seconds"] * config.groups_per_rollout / line["groups_rolled_out"] for line in of_run
        )
        real_update = statistics.median(line["learn_seconds"] for line in of_run)
        if host_seconds is None:
            host_seconds = fitted_host_seconds(config, workload, clock, real_rollout)
        simulated_line = time_line(config, dataclasses.replace(workload, host_seconds=host_seconds), clock)
        update = simulated_line.phases.learning
        rollout = (simulated_line.seconds - update) / simulated_line.rollouts
        per_update = statistics.mean(line["groups_rolled_out"] for line in of_run) / config.groups_per_rollout
        real, simulated = (
            per_update * each + learn for each, learn in ((real_rollout, real_update), (rollout, update))
        )
        yield {
            "run": words,
            "real": round(real, 2),
            "simulated": round(simulated, 2),
            "ratio": round(simulated / real, 3),
            "rollout": [round(real_rollout, 2), round(rollout, 2)],
            "update": [round(real_update, 2), round(update, 2)],
        }


def fitted_host_seconds(config: RLConfig, workload: Workload, clock: MeasuredClock, rollout_seconds: float) -> float:
    """Return the host's seconds after a message that make a rollout as long as the real one."""
    low, high = 0.0, 0.2
    for _ in range(12):
        middle = (low + high) / 2
        line = time_line(config, dataclasses.replace(workload, host_seconds=middle), clock)
        is_short = (line.seconds - line.phases.learning) / line.rollouts < rollout_seconds
        low, high = (middle, high) if is_short else (low, middle)
    return low


def main() -> None:
    """Print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["pod", "tools", "real"])
    parser.add_argument("--rows", type=int, help="of a host; default: 256 of the pod, 16 of the tools")
    parser.add_argument("--turns", type=int, help="of an episode; default: drawn in the pod, 4 of the tools")
    parser.add_argument("--calls-away", type=int, help="come back exactly so many calls later, as where runs are exact")
    parser.add_argument("--quickstart", type=Path, default=Path("runs/quickstart"), help="a finished one")
    parser.add_argument("--out", type=Path, default=Path("runs/time_lines"), help="of the real runs")
    args = parser.parse_args()
    if args.mode == "real":
        for run in real_runs(args.quickstart, args.out):
            print(json.dumps(run), flush=True)
        return

    def lengths(turns: Lognormal, most_turns: int) -> Lengths:
        return lengths_with(Lognormal(args.turns, 0.0), args.turns) if args.turns else lengths_with(turns, most_turns)

    if args.mode == "pod":
        drawn, hosts = lengths(TURNS, MOST_TURNS), 2
        found = run_on_clock(run_hosts(hosts, 512, args.rows or 256, drawn, True, args.calls_away))
        recipe = load_config(RLConfig, CONFIGS / "paper_rl_14b.toml")
        assert recipe.rollout_mesh is not None
        shards = recipe.rollout_mesh.data * recipe.rollout_mesh.fsdp // hosts
        for name, groups, with_rows in (
            ("of_the_recipe", recipe.groups_per_rollout, recipe.groups_with_rows),
            ("of_one_batch", recipe.groups_per_step, recipe.groups_per_step),
        ):
            episodes, rows = (count * recipe.group_size // hosts for count in (groups, with_rows))
            figures = run_on_clock(run_hosts(hosts, episodes, rows, drawn, True, args.calls_away, shards))
            of_update = updates(recipe, groups, figures["wall_seconds"])
            found[name] = {"groups_per_rollout": groups, "rows": rows, **figures, **of_update}
    else:
        drawn = lengths(Lognormal(4, 0.0), 4)
        with_tools, without = (
            run_on_clock(run_hosts(1, 64, args.rows or 16, drawn, tools, args.calls_away)) for tools in (True, False)
        )
        found = {"wall_ratio": round(with_tools["wall_seconds"] / without["wall_seconds"], 3), **with_tools}
    print(json.dumps({"mode": args.mode, "calls_away": args.calls_away, **found}))


if __name__ == "__main__":
    main()
