"""Lost time: the seconds of a run that went into compiling, saving and restoring, and the time of day of each step.

They stand in each line of `metrics.jsonl`, so the goodput of a run that was stopped and resumed, on other machines too,
follows from its lines alone (`metrics_file.goodput`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import jax

_COMPILES: Final = "/jax/core/compile/backend_compile_duration"


class Lost:
    """The seconds that this process has lost since its last line, by cause; it listens to JAX's compiler."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(("compile", "save", "restore"), 0.0)

    def __enter__(self) -> Lost:
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        if event == _COMPILES:
            self._seconds["compile"] += duration_secs

    @contextmanager
    def to(self, cause: str) -> Iterator[None]:
        """Count the time of a block as lost to `save` or `restore`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._seconds[cause] += time.monotonic() - started

    def line(self) -> dict[str, float]:
        """Return the figures of a step that ends now, and begin to count anew."""
        figures = {f"{cause}_seconds": round(seconds, 3) for cause, seconds in self._seconds.items()}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return {**figures, "ended_unix_seconds": round(time.time(), 3)}
