"""The peak memory of a stage: that of this process and every process that it started, sampled while the stage runs."""

from __future__ import annotations

import threading
from types import TracebackType

import psutil

_SAMPLE_SECONDS = 0.25


class PeakMemory:
    """Samples the resident memory of the process tree while a `with` block runs.

    `peak_bytes` is a sum of resident set sizes; it counts shared pages once per process, so it is an upper bound.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        root = psutil.Process()
        while True:
            self.peak_bytes = max(self.peak_bytes, _tree_bytes(root))
            if self._stop.wait(_SAMPLE_SECONDS):
                return


def _tree_bytes(root: psutil.Process) -> int:
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it ended between the listing and the reading
    return total
