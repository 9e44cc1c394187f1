"""SIGTERM: a cluster sends it before it takes a machine away; the run saves after the step in hand and ends well."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any

import jax
from jax.experimental import multihost_utils


class Terminated(SystemExit):
    """SIGTERM was heeded: the state is saved, and the process ends with code 0."""

    def __init__(self, stage: str, steps: int):
        super().__init__(0)
        print(f"{stage}: saved after step {steps} on SIGTERM; the same command goes on from there", file=sys.stderr)


class Termination:
    """Notices SIGTERM while it is entered, in the main thread; several hosts agree on the step to end after."""

    def __init__(self) -> None:
        self._asked = False
        self._steps = 0

    def __enter__(self) -> Termination:
        # With several hosts JAX's own preemption service listens.
        self._previous: Any = signal.signal(signal.SIGTERM, self._note) if jax.process_count() == 1 else None
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)

    def asked(self) -> bool:
        """Whether the run is to end after the step in hand; every host asks once at every step, all hear the same."""
        # JAX ends all hosts one step after the latest at which any has asked (0 if none has). Steps are therefore
        # counted from the start of this process: a run that resumes at 500 heeds a SIGTERM before its first step.
        self._steps += 1
        if jax.process_count() > 1:
            return multihost_utils.reached_preemption_sync_point(self._steps)
        return self._asked

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._asked = True
