"""A Weights & Biases run that follows `metrics.jsonl`: lines that W&B lacks are sent when the run starts or resumes.

The file is the truth. While W&B cannot be reached training goes on, and the missing lines are sent when the run
resumes; with WANDB_MODE=offline, `wandb sync RUN_DIR/wandb/latest-run` sends all of them.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from astra_jax.config import ConfigError, Frozen

_START_SECONDS = 30  # the other hosts wait meanwhile
_FINISH_SECONDS = 60


class WandbConfig(Frozen):
    """The W&B project that shows a run live. W&B finds the key itself: WANDB_API_KEY, or `wandb login`."""

    project: str = Field(pattern=r"^[^/\\#?%:]+$", max_length=128)
    """Name of the W&B project."""
    entity: str | None = None
    """User or team that the project belongs to; without it the account's default."""
    name: str | None = None
    """Name of the run in W&B; without it W&B makes one up."""


def require_wandb(config: WandbConfig | None) -> None:
    """Require that a run with a W&B config can be sent to W&B.

    Raises:
        ConfigError: the package is not installed, or there is no usable key.
    """
    if config is None:
        return
    try:
        import wandb
    except ImportError as error:
        raise ConfigError("[wandb] needs the package wandb, found none: pip install 'astra-jax[wandb]'") from error
    if wandb.setup().settings.mode != "online":
        return
    try:
        has_key = wandb.login(prompt=False, verify=False)
    except wandb.Error as error:
        raise ConfigError(f"[wandb]: {error}") from error
    if not has_key:
        raise ConfigError("[wandb] needs a key in WANDB_API_KEY, found none; with WANDB_MODE=offline it needs none")


class WandbRun:
    """One run of a W&B project; a resumed run finds its id in the file `wandb_run_id` of the run's folder.

    Args:
        folder: the run's folder.
        hyperparameters: shown beside the curves.
        lines: the lines of `metrics.jsonl` so far.

    Raises:
        ConfigError: W&B refuses the key or the project.
    """

    def __init__(
        self,
        config: WandbConfig,
        folder: Path,
        *,
        hyperparameters: Mapping[str, Any],
        lines: Iterable[Mapping[str, Any]],
    ):
        import wandb

        id_file = folder / "wandb_run_id"
        known_id = (id_file.exists() and id_file.read_text()) or None  # empty: killed while it was written

        def start(mode: Any) -> Any:
            return wandb.init(
                **config.model_dump(),
                id=known_id,
                # An offline run holds every step; `wandb sync` would shift the steps of a run that resumes.
                resume="allow" if mode == "online" else None,
                mode=mode,
                dir=folder,
                config=dict(hyperparameters),
                settings=wandb.Settings(console="off", init_timeout=_START_SECONDS, finish_timeout=_FINISH_SECONDS),
            )

        try:
            self._run = start(wandb.setup().settings.mode)
        except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
            raise ConfigError(f"[wandb]: {error}") from error
        except wandb.errors.CommError as error:
            print(f"W&B did not take the run, which stays in {folder / 'wandb'}: {error}", file=sys.stderr)
            self._run = start("offline")
        if known_id is None:
            id_file.write_text(self._run.id)
        # Steps that W&B has are not sent again: a resumed run repeats the same figures.
        self._first_missing_step = self._run.starting_step
        for line in lines:
            self.log(line["step"], {name: value for name, value in line.items() if name != "step"})

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the metrics of one step, in the background."""
        if self._run is not None and step >= self._first_missing_step:
            with self._outliving_wandb():
                self._run.log(dict(metrics), step=step, commit=True)

    def finish(self, *, failed: bool) -> None:
        """Wait until every line is sent, for at most a minute."""
        if self._run is not None:
            with self._outliving_wandb():
                self._run.finish(exit_code=int(failed))

    @contextlib.contextmanager
    def _outliving_wandb(self) -> Iterator[None]:
        """Go on without W&B if its local process, which sends the lines, has died."""
        try:
            yield
        except ConnectionError as error:
            print(f"W&B's process is gone, the run goes on without it: {error}", file=sys.stderr)
            self._run = None
