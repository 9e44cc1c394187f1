"""A Weights & Biases run that follows `metrics.jsonl`; a resume sends the missing lines.

The file is the truth. If W&B cannot be reached the run goes on offline, and the missing lines are sent when it resumes
online, or by `wandb sync RUN_DIR/wandb/latest-run`, as with WANDB_MODE=offline.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from astra_jax.config import ConfigError, Frozen


class WandbConfig(Frozen):
    """The W&B project that shows a run live. W&B finds the key itself: WANDB_API_KEY, or `wandb login`."""

    project: str = Field(pattern=r"^[^/\\#?%:]+$", max_length=128)
    """Name of the W&B project."""
    entity: str | None = None
    """User or team that the project belongs to; without it the account's default."""


def require_wandb(config: WandbConfig | None) -> None:
    """Raise ConfigError if the package is not installed, or there is no usable key."""
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
        raise ConfigError(f"[wandb]: {error}; set another key in WANDB_API_KEY, or WANDB_MODE=offline") from error
    if not has_key:
        raise ConfigError("[wandb] needs a key in WANDB_API_KEY, found none; with WANDB_MODE=offline it needs none")


class WandbRun:
    """One run of a W&B project; a resumed run finds its id in the file `wandb_run_id` of the run's folder."""

    def __init__(
        self, config: WandbConfig, folder: Path, hyperparameters: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]
    ):
        """Start the run, and send the `lines` of `metrics.jsonl` that W&B lacks; ConfigError if W&B refuses it."""
        import wandb

        id_file = folder / "wandb_run_id"

        def start(mode: Any) -> Any:
            return wandb.init(
                **config.model_dump(),
                id=(id_file.exists() and id_file.read_text()) or None,  # empty: killed while it was written
                # An offline run holds every step; `wandb sync` would shift the steps of a run that resumes.
                resume="allow" if mode == "online" else None,
                mode=mode,
                dir=folder,
                config=dict(hyperparameters),
                # The other hosts wait for the start.
                settings=wandb.Settings(console="off", init_timeout=30, finish_timeout=60),
            )

        try:
            self._run = start(wandb.setup().settings.mode)
        except wandb.Error as error:
            if isinstance(error, wandb.errors.AuthenticationError) or not isinstance(error, wandb.errors.CommError):
                raise ConfigError(f"[wandb]: {error}; to keep the run on this disk, set WANDB_MODE=offline") from error
            print(f"W&B cannot be reached, the run goes on offline in {folder / 'wandb'}: {error}", file=sys.stderr)
            self._run = start("offline")
        id_file.write_text(self._run.id)
        # Steps that W&B has are not sent again: a resumed run repeats the same figures.
        self._first_missing_step = self._run.starting_step
        for line in lines:
            self.log(line["step"], {name: value for name, value in line.items() if name != "step"})

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Send the metrics of one step in the background."""
        if step >= self._first_missing_step:
            self._call("log", dict(metrics), step=step, commit=True)

    def finish(self, *, failed: bool) -> None:
        """Wait until every line is sent, for at most a minute."""
        self._call("finish", exit_code=int(failed))

    def _call(self, method: str, *arguments: Any, **options: Any) -> None:
        """Go on without W&B if its local process, which sends the lines, has died."""
        try:
            if self._run is not None:
                getattr(self._run, method)(*arguments, **options)
        except ConnectionError as error:
            print(f"W&B's process is gone, the run goes on without it: {error}", file=sys.stderr)
            self._run = None
