"""The seconds of an update's calls on a topology, at best: by the rooflines of the run's own programs.

A call that samples reads the keys and values that its episodes have by then, and all weights. Launches of programs, and
transfers that wait for one another, are not counted.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from statistics import fmean
from typing import Final

from astra_jax.engine.tracks import Read, Sample
from astra_jax.mesh.layouts import rollout_mesh
from astra_jax.mesh.placement import segment_multiple, shards_of, training_mesh
from astra_jax.plan.abstract_step import AbstractStep, bytes_per_chip
from astra_jax.plan.chips import Chip, chip_of
from astra_jax.plan.clock import CallSeconds
from astra_jax.plan.costs import KernelCosts
from astra_jax.plan.learner_steps import learner_state, rl_learner_step
from astra_jax.plan.plan import devices_of, model_of, traced
from astra_jax.plan.rollout_steps import decode_calls
from astra_jax.rl import stage as rl_stage
from astra_jax.rl.config import RLConfig

_HOST_BYTES_PER_SECOND: Final = 16e9
"""Between a chip and its host. jax-ml.github.io/scaling-book, “How to think about TPUs”: 16 to 32 GB/s."""


class PlannedClock:
    """The `StepClock` of a run on a topology; `calls` is itself."""

    def __init__(
        self, config: RLConfig, topology: str, *, chip: Chip | None = None, groups_with_rows: int | None = None
    ):
        """Lay the run out on a topology, or on as many of another `chip`, with rows for so many groups.

        Raises:
            ConfigError, CheckpointError, CompilerMissing: as `plan.plan`.
        """
        of_topology, compiled_for = chip_of(topology)
        devices, self.chip = devices_of(compiled_for), chip or of_topology
        self.num_chips = len(devices)
        model, mesh = model_of(config), training_mesh(config.mesh, devices)
        decode_mesh = rollout_mesh(config.rollout_mesh, mesh)
        assert mesh is not None
        assert decode_mesh is not None
        rl_stage.require_layout(config, model, mesh)
        self._config, self._model, self._mesh = config, model, mesh
        self._programs = decode_calls(config, model, decode_mesh, mesh, groups_with_rows=groups_with_rows)
        self.limits, self.num_shards = self._programs.limits, shards_of(decode_mesh)
        self.segment_multiple = segment_multiple(mesh)
        self.calls: CallSeconds = self
        moments = bytes_per_chip(learner_state(config, model, mesh)[1]) if config.optimizer_waits_on_host else 0
        weights = bytes_per_chip(self._programs.params) / self.chip.interconnect_bytes_per_second
        self.reshard_seconds = weights + 2 * moments / _HOST_BYTES_PER_SECOND
        self._call = functools.cache(self._roofline)
        self.update_seconds = functools.cache(self._update_seconds)

    def read(self, read: Read, num_tokens: int) -> float:
        """Return the seconds of a call that reads."""
        behind = 0 if read.begins else self.limits.max_tokens
        of_call = self._call((read.most_rows, read.most_tokens, behind))
        share = fmean(row.track.num_cached for row in read.all_rows()) / behind if behind else 0.0
        return of_call.seconds(share)

    def sample(self, sample: Sample, num_steps: int) -> float:
        """Return the seconds of a call that samples."""
        busiest = max(sum(len(row.track.ids) for row in rows) for rows in sample.rows)
        return num_steps * self._call(sample.most_rows).seconds(busiest / sample.most_rows / self.limits.max_tokens)

    def _roofline(self, call: int | tuple[int, int, int]) -> _Roofline:
        programs = self._programs
        if isinstance(call, int):
            return _Roofline.of(programs.sample(call), self.chip)
        rows, tokens, behind = call
        return _Roofline.of(programs.read(rows, tokens, behind_tokens=behind), self.chip, grows=behind > 0)

    def _update_seconds(self, tokens_of_row: int, num_parts: int) -> float:
        """Return the seconds of an update with such rows: those of whole episodes that fill them, part by part."""
        config = self._config
        prompt = min(config.rollout.max_prompt_tokens, tokens_of_row // (config.episodes_per_row + 1))
        response = (tokens_of_row - prompt) // config.episodes_per_row - self.segment_multiple
        lengths = {"max_prompt_tokens": prompt, "max_response_tokens": max(1, response)}
        shorter = config.model_copy(update={"rollout": config.rollout.model_copy(update=lengths)})
        step, _ = traced(rl_learner_step(shorter, self._model, self._mesh), self.chip)
        return step.seconds * num_parts / config.accumulation


@dataclasses.dataclass(frozen=True)
class _Roofline:
    """Seconds of a call by what may bound it: without keys and values, and those of whole episodes in all rows."""

    without: Mapping[str, float]
    of_episodes: Mapping[str, float]

    @staticmethod
    def of(step: AbstractStep, chip: Chip, *, grows: bool = True) -> _Roofline:
        whole = traced(step, chip)[0].roofline_seconds
        if not grows:
            return _Roofline(whole, dict.fromkeys(whole, 0.0))
        bare = dataclasses.replace(step, kernels=lambda name: KernelCosts(0.0))
        without = traced(bare, chip)[0].roofline_seconds
        return _Roofline(without, {name: seconds - without[name] for name, seconds in whole.items()})

    def seconds(self, share: float) -> float:
        """Return the seconds if rows have this share of a whole episode, on average over all rows."""
        return max(seconds + share * self.of_episodes[name] for name, seconds in self.without.items())
