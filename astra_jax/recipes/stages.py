"""The stages of a quickstart and the folder that they work in: made room for, measured, and finished one by one.

A stage is whole when it has written `stages/NAME.json`, which it does last, and what it makes is there. A quickstart
that is resumed does the others, from the first one on that is not whole.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from astra_jax.recipes.process_memory import PeakMemory
from synthesis.run.destination import Result, is_earlier_result, require_destination, whole_file
from synthesis.run.fingerprint import Fingerprint
from synthesis.run.manifest import earlier_manifest, write_manifest

QUICKSTART: Final = Result("quickstart", ".quickstart", "quickstart")
"""An earlier one is moved aside whole, or gone on with."""


class Stages:
    """Runs stages one after the other and keeps what each gave and took, also from one process to the next."""

    def __init__(self, folder: Path) -> None:
        """Begin with no stage done; finished ones are written down in `folder`."""
        self.seconds: dict[str, float] = {}
        self.peak_rss_bytes: dict[str, int] = {}
        self._folder = folder
        self._is_resuming = True

    def run(self, name: str, work: Callable[[], Any], *, makes: Iterable[Path] = ()) -> Any:
        """Do the work of a stage, unless it is whole already, and return what that gave, as JSON.

        `makes` are files that are there when the stage is whole. After the first stage that is done, all are.
        """
        path = self._folder / f"{name}.json"
        self._is_resuming &= all(file.is_file() for file in (path, *makes))
        if self._is_resuming:
            print(f"[{name}] already complete", file=sys.stderr, flush=True)
            done = json.loads(path.read_text(encoding="utf-8"))
        else:
            path.unlink(missing_ok=True)  # what it says is about to be no longer true
            done = _measured(name, work)
            self._folder.mkdir(exist_ok=True)
            with whole_file(path) as file:
                file.write_text(json.dumps(done, ensure_ascii=False) + "\n", encoding="utf-8")
        self.seconds[name], self.peak_rss_bytes[name] = done["seconds"], done["peak_rss_bytes"]
        return done["result"]


def _measured(name: str, work: Callable[[], Any]) -> dict[str, Any]:
    print(f"[{name}]", file=sys.stderr, flush=True)
    started = time.monotonic()
    with PeakMemory() as memory:
        result = work()
    return {
        "seconds": round(time.monotonic() - started, 2),
        "peak_rss_bytes": memory.peak_bytes,
        "result": result,
    }


def make_room(out: Path, inputs: Fingerprint, *, sources: Iterable[Path] = (), resume: bool = False) -> None:
    """Make `out` the folder of this quickstart: new, or with `resume` that of an earlier one with equal inputs.

    An earlier quickstart is otherwise moved to the first of `OUT.1`, `OUT.2`, … that is free.

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
