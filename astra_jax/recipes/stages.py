"""The stages of a quickstart, measured and finished one by one, and the folder that they work in.

A stage is whole when `stages/NAME.json`, which is written last, and the stage's products exist. A resumed quickstart
runs the first stage that is not whole and all after it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import psutil

from synthesis.run.destination import Result, is_earlier_result, require_destination, whole_file
from synthesis.run.fingerprint import Fingerprint
from synthesis.run.manifest import earlier_manifest, write_manifest

QUICKSTART: Final = Result("quickstart", ".quickstart", "quickstart")
"""The folder of a quickstart; an earlier one is moved aside whole, or resumed."""
_SAMPLE_SECONDS: Final = 0.25


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
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue  # it ended between the listing and the reading
    return total


class Stages:
    """Runs stages one after the other; keeps the result, time and memory of each also for a later process."""

    def __init__(self, folder: Path) -> None:
        """Begin with no finished stage; the files of finished ones are in `folder`."""
        self.seconds: dict[str, float] = {}
        self.peak_rss_bytes: dict[str, int] = {}
        self._folder = folder
        self._is_resuming = True

    def run(self, name: str, work: Callable[[], Any], *, makes: Iterable[Path] = ()) -> Any:
        """Run a stage, unless it is whole already, and return its result as JSON.

        `makes` are the stage's products. After the first stage that is run, all later ones are run as well.
        """
        path = self._folder / f"{name}.json"
        self._is_resuming &= all(file.is_file() for file in (path, *makes))
        if self._is_resuming:
            print(f"[{name}] already complete", file=sys.stderr, flush=True)
            done = json.loads(path.read_text(encoding="utf-8"))
        else:
            path.unlink(missing_ok=True)  # it would describe an earlier result
            print(f"[{name}]", file=sys.stderr, flush=True)
            started = time.monotonic()
            with PeakMemory() as memory:
                result = work()
            seconds = round(time.monotonic() - started, 2)
            done = {"seconds": seconds, "peak_rss_bytes": memory.peak_bytes, "result": result}
            self._folder.mkdir(exist_ok=True)
            with whole_file(path) as file:
                file.write_text(json.dumps(done, ensure_ascii=False) + "\n", encoding="utf-8")
        self.seconds[name], self.peak_rss_bytes[name] = done["seconds"], done["peak_rss_bytes"]
        return done["result"]


def make_room(out: Path, inputs: Fingerprint, *, sources: Iterable[Path] = (), resume: bool = False) -> None:
    """Make `out` the folder of this quickstart: a new one, or with `resume` that of an earlier one with equal inputs.

    Without `resume` an earlier quickstart is moved to the first free one of `OUT.1`, `OUT.2`, ….

    Raises:
        DestinationRefused: `out` holds something else, or with `resume` a quickstart of other inputs.
    """
    require_destination(out, QUICKSTART, sources=sources)
    place = out.resolve()
    if is_earlier_result(place, QUICKSTART):
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
