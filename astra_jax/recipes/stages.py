"""The stages of a quickstart, each measured, and the folder that they work in.

A stage is whole when `stages/NAME.json`, which is written last, and the stage's products exist. A resumed quickstart
runs the first stage that is not whole and all after it. A stage that no other needs may run beside the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import psutil
from anyio import Lock
from anyio.from_thread import BlockingPortal

from synthesis.run.destination import Result, manifest_in, require_destination, write_whole
from synthesis.run.fingerprint import Fingerprint
from synthesis.run.manifest import earlier_manifest, write_manifest

QUICKSTART: Final = Result("quickstart", ".quickstart", "quickstart")
"""The folder of a quickstart; an earlier one is moved aside whole, or resumed."""
_SAMPLE_SECONDS: Final = 0.25
_PRIOR_SECONDS: Final = 30.0
"""Seconds for which this machine is taken to be as quick as the one where stages were measured."""


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

    def __exit__(self, *_: object) -> None:
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
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended between the listing and the reading
            total += process.memory_info().rss
    return total


class Stages:
    """Runs stages; keeps the result, time and memory of each also for a later process.

    Stages that run beside one another are measured in one process: the memory of each counts the other as well.
    """

    def __init__(self, folder: Path, expected: Mapping[str, float] = {}) -> None:
        """Begin with no finished stage; the files of finished ones are in `folder`.

        `expected` names all stages with the seconds that each adds to the whole, by which the time left is estimated.
        """
        self._expected, self._running = expected, dict[str, float]()
        self.seconds: dict[str, float] = {}
        self.peak_rss_bytes: dict[str, int] = {}
        self._began: dict[str, float] = {}
        self._done_here, self._first = set[str](), 0.0
        self._folder = folder
        self._is_resuming = True
        self._one_beside = Lock()
        self._beside: list[Future[Any]] = []

    @property
    def total_seconds(self) -> float:
        """Seconds in which at least one stage ran."""
        return covered((began, began + self.seconds[name]) for name, began in self._began.items())

    @contextlib.contextmanager
    def told(self, *, every_seconds: float = 15.0) -> Iterator[None]:
        """Print the running stages and the estimated end of the whole every few seconds, while the block runs."""
        stop = threading.Event()

        def tell() -> None:
            while not stop.wait(every_seconds):
                print(self.progress(time.time()), file=sys.stderr, flush=True)

        thread = threading.Thread(target=tell, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def progress(self, now: float) -> str:
        """Return one line: the newest stage's number, those that run, and the time left, if enough is known."""
        running = dict(self._running)
        went = sum(self._expected.get(name, 0) for name in self._done_here)
        went += sum(min(now - began, self._expected.get(name, 0)) for name, began in running.items())
        pace = (now - self._first + _PRIOR_SECONDS) / (went + _PRIOR_SECONDS) if self._first else 1.0
        ahead = sum(seconds for name, seconds in self._expected.items() if name not in self.seconds)
        ahead -= sum(min(now - began, self._expected.get(name, 0)) for name, began in running.items())
        number = min(len(self.seconds) + len(running), len(self._expected))
        names = ", ".join(running) or "between stages"
        left = f"{timedelta(seconds=round(ahead * pace))}"
        return f"stage {number} of {len(self._expected)} ({names}); ETA of the whole {left}"

    def run(self, name: str, work: Callable[[], Any], *, makes: Iterable[Path] = ()) -> Any:
        """Run a stage, unless it is whole already, and return its result as JSON.

        `makes` are the stage's products. After the first stage that is run, all later ones are run as well. Raises
        the error of a stage beside that has failed.
        """
        for future in self._beside:
            if future.done():
                future.result()
        self._is_resuming &= all(file.is_file() for file in (self._file(name), *makes))
        if self._is_resuming:
            return self._earlier(name)
        began = self._begin(name)
        with PeakMemory() as memory:
            result = work()
        return self._finish(name, began, memory, result)

    def run_beside(self, portal: BlockingPortal, name: str, work: Callable[[], Awaitable[Any]]) -> Future[Any]:
        """Run a stage in the portal's thread, after the earlier ones there; the future gives its result as JSON.

        No other stage needs its result: if it is not whole, a resumed quickstart runs it alone.
        """
        if self._is_resuming and self._file(name).is_file():
            done: Future[Any] = Future()
            done.set_result(self._earlier(name))
            return done
        self._file(name).unlink(missing_ok=True)

        async def run() -> Any:
            async with self._one_beside:
                began = self._begin(name)
                with PeakMemory() as memory:
                    result = await work()
                return self._finish(name, began, memory, result)

        self._beside.append(portal.start_task_soon(run))
        return self._beside[-1]

    def _file(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _earlier(self, name: str) -> Any:
        print(f"[{name}] already complete", file=sys.stderr, flush=True)
        return self._kept(name, json.loads(self._file(name).read_text(encoding="utf-8")))

    def _begin(self, name: str) -> float:
        self._file(name).unlink(missing_ok=True)  # it would describe an earlier result
        now = self._running[name] = time.time()
        self._first = self._first or now
        print(f"[{name}]{f' {self.progress(now)}' if self._expected else ''}", file=sys.stderr, flush=True)
        return now

    def _finish(self, name: str, began: float, memory: PeakMemory, result: Any) -> Any:
        seconds = round(time.time() - began, 2)
        self._done_here.add(name)
        del self._running[name]
        done = {"began": began, "seconds": seconds, "peak_rss_bytes": memory.peak_bytes, "result": result}
        self._folder.mkdir(exist_ok=True)
        write_whole(self._file(name), json.dumps(done, ensure_ascii=False) + "\n")
        return self._kept(name, done)

    def _kept(self, name: str, done: dict[str, Any]) -> Any:
        self.seconds[name], self.peak_rss_bytes[name] = done["seconds"], done["peak_rss_bytes"]
        self._began[name] = done["began"]
        return done["result"]


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Return the length of the union of spans, each given by its two ends.

    >>> covered([(0, 10), (5, 12), (20, 21)])
    13.0
    """
    total, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        total += max(0.0, last - max(first, end))
        end = max(end, last)
    return total


def make_room(out: Path, inputs: Fingerprint, *, sources: Iterable[Path] = (), resume: bool = False) -> None:
    """Make `out` the folder of this quickstart: a new one, or with `resume` that of an earlier one with equal inputs.

    Without `resume` an earlier quickstart is moved to the first free one of `OUT.1`, `OUT.2`, ….

    Raises:
        DestinationRefused: `out` holds something else, or with `resume` a quickstart of other inputs.
    """
    require_destination(out, QUICKSTART, sources=sources)
    place = out.resolve()
    if manifest_in(place, QUICKSTART):
        if resume:
            advice = "Without --resume, this quickstart is moved aside and another one begun"
            earlier_manifest(out, QUICKSTART, inputs, advice=advice)
            return
        number = 1
        while os.path.lexists(aside := place.with_name(f"{place.name}.{number}")):
            number += 1
        place.rename(aside)
        print(f"quickstart: the earlier one is now {aside}", file=sys.stderr)
    place.mkdir(parents=True, exist_ok=True)
    write_manifest(place, QUICKSTART, {"made_with": inputs})
