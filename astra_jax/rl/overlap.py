"""Rollouts that go on while the learner learns: off unless `overlap_rollouts` asks for it, since the paper is online.

                 ┌────────── step k ──────────┐┌───────── step k + 1 ─────────┐
    learner       (waits)   update k            (waits)   update k + 1
    rollouts    … batch k │ batch k + 1 ─────────────── │ batch k + 2 ─────── …
    weights               │ those of k    │ of k + 1    │ of k + 1     │ of k + 2

The batch of the next step is begun when the update of this one is, with the weights that the update begins with. The
update is made in a thread, so that tools are waited for and tokens sampled meanwhile. When it is done, whoever samples
is given a copy of the new weights: episodes under way go on with these, and each token has the version that it was
sampled with. There is never more than one batch on its way, so its oldest tokens are one update old.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import jax
import optax

from astra_jax.engine.device import off_the_loop
from astra_jax.episodes.rollout import Group
from astra_jax.model.qwen3 import Params
from astra_jax.rl.batch_filling import ScoredGroup
from astra_jax.rl.rollouts import Filling, Rollouts

Update = tuple[Params, optax.OptState, dict[str, jax.Array]]
"""What an update makes: weights, the optimiser's state, and its metrics."""


class Overlap:
    """The batch that is on its way while a run learns; entered for the whole run, and on leaving it is given up."""

    def __init__(self, rollouts: Rollouts, *, num_steps: int):
        """Take the rollouts of a run of `num_steps` steps in hand; nothing is rolled out yet."""
        self._rollouts, self._num_steps = rollouts, num_steps
        self._filling: Filling | None = None
        self._task: asyncio.Task[None] | None = None
        self._overlapped_seconds = 0.0
        self.overlapped_seconds = 0.0
        """For how long the last batch was rolled out while the update before it was made."""

    async def __aenter__(self) -> Overlap:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def batch(self, params: Params, *, step: int) -> tuple[list[ScoredGroup[Group]], list[ScoredGroup[Group]]]:
        """Return the batch of a step and all groups with rewards that came for it, as `Rollouts.batch` does.

        `params` are what a run begins with, or goes on with, where nothing is on its way yet. Who is cancelled here
        cancels what is on its way.

        Raises:
            BatchFillingStalled, PromptTooLong, SandboxUnavailable: as `Rollouts.batch`, also for what has happened
                while the update was made.
        """
        if self._task is None:
            await self._rollouts.update_weights(params, step)
            self._begin(step)
        filling, task = self._filling, self._task
        assert filling is not None
        assert task is not None
        await task
        self._task, self.overlapped_seconds, self._overlapped_seconds = None, self._overlapped_seconds, 0.0
        return self._rollouts.take(filling)

    async def while_rolling_out(self, update: Callable[[], Update], *, step: int) -> Update:
        """Return what the update of a step makes, in a thread, while the next batch is on its way."""
        is_last = step + 1 == self._num_steps
        if not is_last:
            self._begin(step + 1)

        def made() -> Update:  # dispatched is not done: this waits, in the thread
            return jax.block_until_ready(update())

        params, optimizer_state, of_step = await off_the_loop(made)
        if not is_last:
            self._note_overlap()
            await self._rollouts.update_weights(params, step + 1)
        return params, optimizer_state, of_step

    def _begin(self, step: int) -> None:
        self._filling = self._rollouts.begin(step)
        self._task = asyncio.create_task(self._rollouts.fill(self._filling), name=f"rollouts of step {step}")

    def _note_overlap(self) -> None:
        assert self._filling is not None
        now, ended = time.monotonic(), self._filling.ended_seconds
        self._overlapped_seconds = (now if ended is None else min(ended, now)) - self._filling.started_seconds
