"""One training run, from its newest checkpoint to its last step: all that surrounds a step.

with TrainingRun("sft", config, parts, ...) as run:
    state = run.restore(first_params)
    for step in range(state.step, steps):
        ...                                    the step itself, in sft/train.py and rl/train.py; work that may
                                               be given up on a signal runs in `run.unless_it_ends`
        run.end_step(state, metrics)           write down, tell, save, heed signals

Decided: docs/decisions/runs.md, “A step that is not finite is no update”.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh

from astra_jax.chat.template import require_chat_template
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.checkpoint import Checkpoints, TrainState
from astra_jax.checkpoints.policy import Policy, read_policy, save_policy
from astra_jax.checkpoints.provenance import read_provenance, training_stage
from astra_jax.config import ConfigError
from astra_jax.errors import AstraError
from astra_jax.mesh.hosts import host_folder, host_goes_on
from astra_jax.mesh.placement import init_optimizer_state, training_mesh, with_adapters
from astra_jax.metrics_file import goodput, read_metrics, told_goodput
from astra_jax.model.config import ModelConfig, Params
from astra_jax.model.lora import joined, learnt, merged
from astra_jax.training.config import TrainingConfig
from astra_jax.training.lost_time import Lost
from astra_jax.training.metrics import MetricsLog, Progress
from astra_jax.training.optimizer import make_optimizer
from astra_jax.training.termination import GivenUp, Terminated, Termination
from astra_jax.training.wandb_run import require_wandb
from synthesis.run.manifest import RunManifest
from synthesis.run.places import Claim, publish

_T = TypeVar("_T")
_MAX_NOT_FINITE_STEPS = 5
"""Steps in a row without a finite loss or gradient after which a run stops; none of them is applied."""


class NotFinite(AstraError):
    """Too many steps in a row had no finite loss or gradient; none of them was applied."""


class Parts(NamedTuple):
    """The parts of a run that hold no weights."""

    mesh: Mesh | None
    model_config: ModelConfig
    """The learner's model, with its adapters."""
    tokenizer: Tokenizer

    @property
    def policy_config(self) -> ModelConfig:
        """The model of a policy, whose adapters are merged."""
        return self.model_config.with_lora(None)


def checked_parts(config: TrainingConfig, tokenizer_folder: Path | None = None) -> Parts:
    """Return the mesh, model and tokenizer of a run; no weight is read or made, and nothing is written.

    Without `init` the model is the config's own, and the tokenizer that of `tokenizer_folder`.

    Raises:
        ConfigError: the mesh does not fit the devices; the chat template is not Qwen3's; W&B is wanted and cannot be
            used; or there is neither `init` nor both of model and tokenizer.
        CheckpointError, TokenizerError: `init` or the tokenizer is missing or damaged.
    """
    # Only the first host sends anything to W&B; the others may have neither the package nor a key.
    require_wandb(config.wandb if jax.process_index() == 0 else None)
    mesh = training_mesh(config.mesh)
    if config.init is not None:
        model_config, tokenizer = read_policy(config.init, overrides=config.model_overrides)
        if config.model is not None:
            model_config.require_sizes_of(config.model, config.init)
        require_chat_template(config.init, tokenizer)
        if config.lora is not None and read_provenance(config.init).has_untrained_calls:
            # The row of each is a mean of other rows, so one of these is always likelier.
            raise ConfigError(
                f"`lora` learns no embeddings, and <tool_call>, which was added to {config.init}, needs one: adapters "
                "alone never make it the likeliest token; train all weights first (leave `lora` out)"
            )
        return Parts(mesh, model_config.with_lora(config.lora), tokenizer)
    if config.model is None or tokenizer_folder is None:
        raise ConfigError(
            "SFT needs `init` (a checkpoint), or both `model` and `tokenizer` to start from random weights"
        )
    if config.lora is not None:
        raise ConfigError("`lora` adapts the weights of `init`, which is missing; name it, or leave `lora` out")
    tokenizer = Tokenizer.load(tokenizer_folder)
    config.model.require_vocabulary(tokenizer.vocab_size, tokenizer_folder)
    require_chat_template(tokenizer_folder, tokenizer)
    return Parts(mesh, config.model_overrides.of(config.model), tokenizer)


class TrainingRun:
    """A run while it is at work; each of several hosts makes every call."""

    def __init__(self, stage: str, config: TrainingConfig, parts: Parts, *, num_steps: int, shown: Sequence[str]):
        """Prepare a run of `num_steps` steps; `shown` are the metrics of progress lines.

        Raises:
            ConfigError: `profile_steps` are not steps of the run.
        """
        self._stage, self._config, self._parts, self._num_steps = stage, config, parts, num_steps
        if config.profile_steps is not None and config.profile_steps[1] >= num_steps:
            raise ConfigError(
                f"profile_steps ends at step {config.profile_steps[1]}, but the last of {num_steps} steps is "
                f"{num_steps - 1}; name earlier steps"
            )
        self.metrics = host_folder(config.out) / "metrics.jsonl"
        self._progress = Progress(stage, num_steps, shown)
        self._unapplied_in_a_row = 0

    def __enter__(self) -> TrainingRun:
        self._stack = ExitStack()
        self._trace: ExitStack | None = None
        self._lost = self._stack.enter_context(Lost())
        # Entered first, so left last: signals are heeded until the last save has ended.
        self._termination = self._stack.enter_context(Termination())
        folder, keep_weights = self._config.out / "checkpoints", self._config.keep_weights
        checkpoints = Checkpoints(folder, self._parts.model_config, keep_weights=keep_weights)
        self._checkpoints = self._stack.enter_context(checkpoints)
        self._claim = Claim(self._config.out) if jax.process_index() == 0 else None
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def restore(self, first_params: Callable[[], Params]) -> TrainState:
        """Return the state of the newest whole checkpoint; without one the weights of `first_params()` at step 0.

        A checkpoint of adapters is joined with these weights.
        """
        optimizer, mesh = make_optimizer(self._config.optimizer, self._num_steps), self._parts.mesh
        with self._lost.to("restore"):
            state = self._checkpoints.restore_latest(optimizer, mesh=mesh)
            if state is None:  # only then are the first weights made: two states of a large model do not fit
                params = with_adapters(self._parts.model_config, first_params(), self._config.seed, mesh)
                state = TrainState(0, params, init_optimizer_state(optimizer, learnt(params), mesh), {})
            elif self._config.lora is not None:
                state = dataclasses.replace(state, params=joined(first_params(), state.params))
        self._log = self._stack.enter_context(
            MetricsLog(
                self.metrics,
                # The line of a step whose evaluation was interrupted is written when the evaluation has ended.
                first_step=state.step - (state.unfinished_line is not None),
                wandb=self._config.wandb if jax.process_index() == 0 else None,
                hyperparameters=self._config.model_dump(mode="json"),
            )
        )
        self._profile(state.step)
        # After a stop because of too many steps that were not applied the count begins at 0 again.
        self._unapplied_in_a_row = unapplied_at_the_end(read_metrics(self.metrics)) % _MAX_NOT_FINITE_STEPS
        return state

    async def unless_it_ends(self, state: TrainState, work: Coroutine[Any, Any, _T]) -> _T:
        """Return the result of `work`, a part of the step that follows `state`; on a signal it is given up.

        `state` holds only steps that have ended: `work` begins anew when the run resumes.

        Raises:
            Terminated: a signal asked for it; the state is saved.
        """
        try:
            return await self._termination.unless_asked(work)
        except GivenUp:
            self._save(state)
            self._checkpoints.wait()
        raise Terminated(self._stage, state.step, self._termination.signum)

    def end_step(self, state: TrainState, metrics: Mapping[str, Any]) -> None:
        """End the step that led to `state`: write its metrics, save if it is due, stop if a signal asks for it.

        Raises:
            NotFinite: five in a row were not applied; the state is saved.
            Terminated: a signal asked for it; the state is saved.
        """
        step = state.step - 1
        self._profile(state.step)
        # Before the save: a resume drops lines beyond the state, but a state without its lines would leave a gap.
        self._log.write(step, {**metrics, **self._lost.line()})
        self._progress.report(step, metrics)
        self._unapplied_in_a_row = 0 if metrics["applied"] else self._unapplied_in_a_row + 1
        are_too_many = self._unapplied_in_a_row >= _MAX_NOT_FINITE_STEPS
        if not metrics["applied"]:
            found = f"loss {metrics['loss']}, gradient norm {metrics['grad_norm']}"
            print(f"{self._stage}: step {step} is not applied: {found}", file=sys.stderr, flush=True)
        is_last = state.step == self._num_steps
        # `asked` comes first, so that every host asks at every step: the hosts agree by counting these calls.
        must_end = self._termination.asked() or are_too_many
        is_due = is_last or must_end or state.step % self._config.checkpoint_every_steps == 0
        if is_due:
            self._save(state)
        if are_too_many:
            self._checkpoints.wait()
            raise NotFinite(
                f"steps {state.step - self._unapplied_in_a_row} to {step} had no finite loss or gradient and were not "
                "applied; the state is saved. Look at the learning rate and at the data of these steps; the same "
                "command goes on"
            )
        if must_end and not is_last:
            self._checkpoints.wait()
            raise Terminated(self._stage, state.step, self._termination.signum)

    def _profile(self, next_step: int) -> None:
        """Begin or end the trace of `profile_steps`, before `next_step`."""
        if self._config.profile_steps is None:
            return
        first, last = self._config.profile_steps
        if self._trace is None and first <= next_step <= last:
            self._trace = self._stack.enter_context(ExitStack())
            folder = host_folder(self._config.out) / "profile"
            self._trace.enter_context(jax.profiler.trace(folder, create_perfetto_trace=True))
        elif self._trace is not None and next_step > last:
            self._trace.close()

    def _save(self, state: TrainState) -> None:
        """Save a state, unless it is saved, after all that a bucket is to hold beside it.

        Raises:
            TakenOver: a later run has begun in the same place of a bucket.
        """
        if self._checkpoints.newest_step == state.step:
            return
        if self._claim is not None:
            self._claim.require()
        with self._lost.to("save"):
            publish(host_folder(self._config.out))
            host_goes_on()  # to a save of all hosts, which waits for one whose bucket or disk never answers
            self._checkpoints.save(state)

    def finish(
        self, state: TrainState, record: RunManifest, *, data: Sequence[Path], figures: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Write the policy of the last state, with the names of its `data`, and close the run's record."""
        policy = Policy(*merged(self._parts.model_config, state.params), self._parts.tokenizer)
        stage = training_stage(self._stage.upper(), self._config, data)
        save_policy(policy, self._config.out / "policy", trained_from=self._config.init, stage=stage)
        closing = record.finish(figures)
        if shares := goodput(read_metrics(self.metrics)):
            print(f"{self._stage}: time {told_goodput(shares)}", file=sys.stderr, flush=True)
        publish(host_folder(self._config.out))
        return closing


def unapplied_at_the_end(lines: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of steps after the last applied one, by the lines of their metrics.

    >>> unapplied_at_the_end([{"applied": 0}, {"applied": 1}, {"applied": 0}, {"applied": 0}])
    2
    """
    return sum(1 for _ in itertools.takewhile(lambda line: not line["applied"], reversed(lines)))
