"""One training run, from its newest whole checkpoint to its last step: all that SFT and RL share around a step.

with TrainingRun("sft", config, parts, ...) as run:
    state = run.restore(first_state)
    for step in range(state.step, steps):
        ...                                    the step itself, in sft/train.py and rl/train.py; what of it may
                                               be given up for a signal awaits `run.unless_it_ends`
        run.note_update(step, metrics, batch)  keep the batch of an update that was not applied
        run.end_step(state, metrics)           write down, tell, save, heed signals
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import jax

from astra_jax.checkpoints.checkpoint import Checkpoints, TrainState
from astra_jax.checkpoints.policy import Policy, save_policy
from astra_jax.checkpoints.provenance import training_stage
from astra_jax.mesh.hosts import host_folder
from astra_jax.metrics_file import last_metric, metric_totals, read_metrics
from astra_jax.training.config import TrainingConfig
from astra_jax.training.metrics import MetricsLog, Progress
from astra_jax.training.not_finite import NotFiniteSteps
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.parts import Parts
from astra_jax.training.termination import GivenUp, Terminated, Termination
from synthesis.run.manifest import RunManifest

_T = TypeVar("_T")


class TrainingRun:
    """A run while it is at work; where there are several hosts, each makes every call."""

    def __init__(
        self,
        stage: str,
        config: TrainingConfig,
        parts: Parts,
        *,
        num_steps: int,
        shown: Sequence[str],
    ):
        """Take a run of `num_steps` steps in hand; `shown` are the metrics that progress lines name."""
        self._stage, self._config, self._parts, self._num_steps = stage, config, parts, num_steps
        self._folder = host_folder(config.out)
        self._progress = Progress(stage, num_steps, shown)
        self._not_finite = NotFiniteSteps(stage, self._folder, most_in_a_row=config.max_not_finite_steps)

    def __enter__(self) -> TrainingRun:
        self._stack = ExitStack()
        # Entered first, so left last: signals are heeded until the last save has ended.
        self._termination = self._stack.enter_context(Termination())
        self._checkpoints = self._stack.enter_context(
            Checkpoints(
                self._config.out / "checkpoints", self._parts.model_config, keep_weights=self._config.keep_weights
            )
        )
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def restore(self, first_state: Callable[[], TrainState]) -> TrainState:
        """Return the state to go on from: of the newest whole checkpoint, or `first_state()` where there is none.

        Raises:
            CheckpointError: the checkpoint is of another model.
            ConfigError: W&B refuses the key or the project.
        """
        optimizer = make_optimizer(self._config.optimizer, self._num_steps)
        # The first state is made only where it is needed: two states of a large model do not fit.
        state = self._checkpoints.restore_latest(optimizer, mesh=self._parts.mesh) or first_state()
        self._log = self._stack.enter_context(
            MetricsLog(
                self._folder / "metrics.jsonl",
                # The line of a step that was not evaluated to the end is written once it is.
                first_step=state.step - (state.unfinished_line is not None),
                wandb=self._config.wandb if jax.process_index() == 0 else None,
                hyperparameters=self._config.model_dump(mode="json"),
            )
        )
        lines = read_metrics(self._folder / "metrics.jsonl")
        self._not_finite.go_on_after(lines if state.unfinished_line is None else [*lines, state.unfinished_line])
        return state

    async def unless_it_ends(self, state: TrainState, work: Coroutine[Any, Any, _T]) -> _T:
        """Return what comes of `work`, a part of the step that follows `state`; on a signal it is given up.

        `state` must hold no more than the steps that have ended: `work` begins anew when the run resumes.

        Raises:
            Terminated: a signal asked for it; the state is saved.
        """
        try:
            return await self._termination.unless_asked(work)
        except GivenUp:
            if self._checkpoints.newest_step != state.step:
                self._checkpoints.save(state)
            self._checkpoints.wait()
        raise Terminated(self._stage, state.step, self._termination.signum)

    def note_update(self, step: int, metrics: Mapping[str, Any], batch: Any) -> None:
        """Note whether a step's update was applied; if not, tell of it and keep its batch, as this host made it."""
        self._not_finite.note(step, metrics, batch)

    def end_step(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """End the step that led to `state`: write its metrics down, save where it is time, stop where that is asked.

        Raises:
            NotFinite: `max_not_finite_steps` in a row were not applied; the state is saved.
            Terminated: a signal asked for it; the state is saved.
        """
        step = state.step - 1
        # Before the save: lines beyond a state are dropped on resuming, but a state without its lines leaves a gap.
        self._log.write(step, metrics)
        self._progress.report(step, metrics)
        is_last = state.step == self._num_steps
        # `asked` comes first, so that every host asks at every step: they agree by counting.
        must_end = self._termination.asked() or self._not_finite.are_too_many
        is_due = is_last or must_end or state.step % self._config.checkpoint_every_steps == 0
        if is_due and self._checkpoints.newest_step != state.step:
            self._checkpoints.save(state)
        if self._not_finite.are_too_many:
            self._checkpoints.wait()
            raise self._not_finite.error()
        if must_end and not is_last:
            self._checkpoints.wait()
            raise Terminated(self._stage, state.step, self._termination.signum)

    def closing_metric(self, name: str) -> float | None:
        """Return a figure of the last step that has one."""
        return last_metric(self._folder / "metrics.jsonl", name)

    def closing_totals(self, part: str) -> dict[str, float]:
        """Return the sums over all steps of those figures whose name holds `part`."""
        return metric_totals(self._folder / "metrics.jsonl", part)

    def finish(
        self,
        state: TrainState,
        record: RunManifest,
        *,
        data: Sequence[Path],
        figures: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Write the policy that came of the run, with what it learnt from (`data`), and close its record.

        Raises:
            RecordDirectoryError: a directory of `data` has no card.
            ProvenanceError: what `init` says of where it comes from is damaged.
        """
        policy = Policy(self._parts.model_config, state.params, self._parts.tokenizer)
        stage = training_stage(self._stage.upper(), self._config, data)
        save_policy(policy, self._config.out / "policy", trained_from=self._config.init, stage=stage)
        return record.finish(figures)
