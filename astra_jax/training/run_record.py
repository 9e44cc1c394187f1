"""What a run was begun with and how it ended: `run.json` in its folder, by which a later command knows it.

The same command goes on with a run that is not finished and repeats the closing figures of one that is. With another
seed, config, data, start or source of what decides the result, it is refused with the list of differences.

Decided: docs/decisions/runs.md, “A run is what it was begun with”.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from synthesis.destination import DestinationRefused, Result, is_earlier_result, require_destination, whole_file
from synthesis.fingerprint import Fingerprint, digest, digest_of_files, flattened, require_same, source_of_files
from synthesis.record_io import read_card

_OLDER: Final = (
    "a run of an older version has no run.json: it cannot be told what it was begun with, so begin anew elsewhere, "
    "with `init` at its last checkpoint if need be"
)
SFT_RUN: Final = Result("SFT run", "run.json", "sft", advice=_OLDER)
RL_RUN: Final = Result("RL run", "run.json", "rl", advice=_OLDER)
_LASTING: Final = ("metrics.jsonl", "checkpoints", "policy", "best", "figures.json")
"""What a run leaves that another must not be mixed with; one that left none of it is begun anew."""
EVALUATION: Final = Result("evaluation", "run.json", "evaluation", advice="one of an older version has no run.json")


@dataclass(frozen=True)
class RunRecord:
    """The record of one run."""

    out: Path
    result: Result
    made_with: Fingerprint
    figures: dict[str, Any] | None
    """Those that an earlier command closed with, if all that the run makes is there."""

    def begin(self) -> None:
        """Write down what the run is begun with; to be called before it writes anything that is to last."""
        self._write(None)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the run; where the block refuses it and nothing else lies in its folder, no trace is left."""
        was_there = (self.out / self.result.manifest).exists()
        self.begin()
        try:
            yield
        except BaseException:
            if not was_there and _is_first_host() and {path.name for path in self.out.iterdir()} <= self._alone():
                (self.out / self.result.manifest).unlink(missing_ok=True)
            raise

    def _alone(self) -> set[str]:
        return {self.result.manifest, ".lock"}

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write down the closing figures, and return them; what is not finite becomes null: JSON has no word for it."""
        closing = {name: _finite(value) for name, value in figures.items()}
        self._write(closing)
        return closing

    def _write(self, figures: Mapping[str, Any] | None) -> None:
        if not _is_first_host():
            return
        self.out.mkdir(parents=True, exist_ok=True)
        begun = {"kind": self.result.kind, "made_with": self.made_with, "cpu_cores": _cpu_cores()}
        text = json.dumps({**begun, "figures": figures}, indent=2)
        with whole_file(self.out / self.result.manifest) as file:
            file.write_text(text + "\n", encoding="utf-8")


def open_run(
    result: Result,
    config: BaseModel,
    out: Path,
    *,
    product: str,
    contents: Mapping[str, str],
    may_change: Collection[str],
    sources: Iterable[str],
) -> RunRecord:
    """Return the record of the run in `out`, before anything is written there.

    `product` is the file that is there when the run is finished. Of the config, `contents` (digests) stand for the
    paths of these names, and the keys of `may_change` do not count. `sources` are the files of this project that decide
    the result. Where there are several hosts, each calls this.

    Raises:
        DestinationRefused: `out` is neither new nor an earlier run of this kind; or one that was begun with something
            else (`MadeOtherwise`); or hosts of one run have other configs, data or code.
    """
    made_with: Fingerprint = {
        **flattened(config.model_dump(mode="json"), leave_out={"out", *may_change, *contents}),
        **contents,
        **source_of_files(sources),
    }
    _require_same_on_all_hosts(made_with)
    refusal: DestinationRefused | None = None
    figures = None
    try:
        require_destination(out, result)
        # A run that was stopped before its first step left nothing to go on from: it may be begun with anything.
        if is_earlier_result(out, result) and any(_holds_something(out / name) for name in _LASTING):
            found = json.loads((out / result.manifest).read_text(encoding="utf-8"))
            advice = "Name another `out`, or give back what has changed to go on with this run"
            require_same(out, found.get("made_with", {}), made_with, advice=advice)
            # Where somebody took the product away, the figures are those of nothing, and the run goes on to make it.
            figures = found.get("figures") if (out / product).is_file() else None
            before, now = found.get("cpu_cores"), _cpu_cores()
            if figures is None and before and now and before != now and _is_first_host():
                note = "it goes on, but sums are rounded in another order: the last bits differ from an unbroken run's"
                print(f"astra: {out}: was computed on {before} CPU cores, now on {now}; {note}", file=sys.stderr)
    except DestinationRefused as error:
        refusal = error
    _agree(refusal)
    return RunRecord(out, result, made_with, None if figures is None else {**figures, "already_complete": True})


def digest_of_records(directory: Path) -> str:
    """Name what a record directory holds.

    Raises:
        RecordDirectoryError: it is missing or damaged.
    """
    card = read_card(directory)
    return digest([card.kind, sorted(card.shards.items())])


def digest_of_policy(folder: Path) -> str:
    """Name what a policy folder holds: the manifest of its weights, with their checksums, and its tokenizer."""
    return digest_of_files([folder / "params.whole.json", folder / "tokenizer.json"])


def _cpu_cores() -> int | None:
    """Return how many cores JAX computes on; None where it computes on an accelerator."""
    import jax

    return len(os.sched_getaffinity(0)) if jax.default_backend() == "cpu" else None


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.is_file() and path.stat().st_size > 0


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _is_first_host() -> bool:
    import jax  # here, so that the command can name the kinds of run without it

    return jax.process_index() == 0


def _require_same_on_all_hosts(made_with: Fingerprint) -> None:
    """Refuse hosts that were begun otherwise: what each of them makes goes into the others' updates."""
    import jax
    import numpy as np

    from astra_jax.mesh.hosts import gather_from_hosts

    if jax.process_count() > 1:
        of_hosts = gather_from_hosts(np.frombuffer(bytes.fromhex(digest(made_with)), np.uint8))
        if others := np.flatnonzero((of_hosts != of_hosts[0]).any(axis=1)).tolist():
            raise DestinationRefused(
                f"expected the same config, data and code on all {len(of_hosts)} hosts, found others than the first "
                f"one's at host {', '.join(map(str, others))}; give every host the same command and files"
            )


def _agree(refusal: DestinationRefused | None) -> None:
    """Raise on all hosts what the first one refuses; nobody writes before all have looked."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    refused = refusal is not None
    if jax.process_count() > 1:
        refused = bool(multihost_utils.broadcast_one_to_all(np.int32(refused)))
    if refused:
        raise refusal or DestinationRefused("the first host refuses the run, and says why")
