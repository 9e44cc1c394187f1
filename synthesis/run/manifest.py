"""The manifest of a run: the JSON file in its folder with its fingerprint and its closing figures.

    begin    refuse a folder of another run, then write the manifest
    resume   the same command finds a manifest that says the same, and goes on
    finish   write the closing figures into the manifest, which the same command then repeats

Decided: docs/decisions/runs.md, “A run resumes only with the config, inputs and code that it began with”.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from synthesis.run.destination import Result, manifest_in, require_destination, write_whole
from synthesis.run.fingerprint import Fingerprint, require_same

ADVICE: Final = "Name another `out`, or undo the changes to go on with this run"


@dataclass(frozen=True)
class RunManifest:
    """The manifest of one run, as this command will write it."""

    out: Path
    result: Result
    made_with: Fingerprint
    figures: dict[str, Any] | None = None
    """Closing figures of an earlier command that finished the run; None while the run is not finished."""
    is_written_here: bool = True
    """Whether this process writes the manifest; of several hosts only the first one does."""
    noted: Mapping[str, Any] = field(default_factory=dict)
    """Facts of this machine that the manifest keeps and that decide nothing, such as its number of cores."""

    def begin(self) -> None:
        """Write down the fingerprint, before the run writes anything that is to last."""
        self._write(None)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Begin the run; if the block raises and the folder holds nothing else, the manifest is removed again."""
        manifest = self.out / self.result.manifest
        was_there = manifest.exists()
        self.begin()
        try:
            yield
        except BaseException:
            alone = {self.result.manifest, ".lock"}
            if self.is_written_here and not was_there and {path.name for path in self.out.iterdir()} <= alone:
                manifest.unlink(missing_ok=True)
            raise

    def finish(self, figures: Mapping[str, Any]) -> dict[str, Any]:
        """Write the closing figures and return them; a figure that is not finite becomes null."""
        closing = {name: _finite(value) for name, value in figures.items()}
        self._write(closing)
        return closing

    def _write(self, figures: Mapping[str, Any] | None) -> None:
        if self.is_written_here:
            self.out.mkdir(parents=True, exist_ok=True)
            write_manifest(self.out, self.result, {"made_with": self.made_with, **self.noted, "figures": figures})


def write_manifest(out: Path, result: Result, contents: Mapping[str, Any]) -> None:
    """Write the manifest of a `result` into its folder; a reader sees the old one or the new one, never a half."""
    text = json.dumps({"kind": result.kind, **contents}, indent=2, ensure_ascii=False)
    write_whole(out / result.manifest, text + "\n")


def earlier_manifest(
    out: Path, result: Result, made_with: Fingerprint, *, advice: str = ADVICE
) -> dict[str, Any] | None:
    """Return the manifest of the earlier `result` in `out`, made with the same fingerprint; None if none is there.

    Raises:
        DestinationRefused: something else is in `out`.
        MadeOtherwise: the earlier result was made with another config, other inputs or other code.
    """
    require_destination(out, result)
    if (manifest := manifest_in(out, result)) is not None:
        require_same(out, manifest.get("made_with", {}), made_with, advice=advice)
    return manifest


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
