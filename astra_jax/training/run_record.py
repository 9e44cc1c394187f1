"""The folder of a training run or an evaluation, on which all hosts agree before any of them writes.

The same command resumes an unfinished run and repeats the closing figures of a finished one, which more `steps` make
longer, where the learning rate does not depend on their number. A resume is refused, with
the list of differences, if one of these has changed (`open_run`):

    keys of the config    all except `out` and the caller's `may_change`            `rl/config.py`, `sft/config.py`
    data, init            the digests of their contents, not their paths            `contents` there
    code                  the syntax trees that the stage's module imports, and those of the user's own functions

All hosts of a job must agree on these as well.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pydantic import BaseModel

from synthesis.run.code import source_of
from synthesis.run.destination import DestinationRefused, Result, require_destination
from synthesis.run.fingerprint import Fingerprint, digest, digest_of_files, flattened
from synthesis.run.manifest import RunManifest, earlier_manifest, manifest_in

_OLDER: Final = (
    "a run of an older version has no run.json: its config, data and code are unknown, so begin anew elsewhere, "
    "with `init` at its last checkpoint if need be"
)
_OF_HOSTS: Final = ("hosts",)  # the folders of other hosts than the first, which may be there before its manifest is
SFT_RUN: Final = Result("SFT run", "run.json", "sft", _OF_HOSTS, advice=_OLDER)
RL_RUN: Final = Result("RL run", "run.json", "rl", _OF_HOSTS, advice=_OLDER)
EVALUATION: Final = Result(
    "evaluation", "run.json", "evaluation", _OF_HOSTS, advice="one of an older version has no run.json"
)
_LASTING: Final = ("metrics.jsonl", "checkpoints", "policy", "best", "figures.json")
"""Files and folders that must not be mixed with those of another run; a run without any of them is begun anew."""


def open_run(
    result: Result,
    config: BaseModel,
    out: Path,
    *,
    contents: Mapping[str, str],
    may_change: Collection[str],
    may_grow: Collection[str] = (),
    stage: str,
    product: str = "policy/params.whole.json",
    own_modules: Mapping[str, Path] = MappingProxyType({}),
) -> RunManifest:
    """Return the manifest of the run in `out`, before anything is written there; every host calls this.

    `product` is the file that exists if the run is finished. `contents` are digests in place of the paths of the
    config's keys of these names. Keys in `may_change` do not count, and numbers in `may_grow` may be larger than
    before, which makes a finished run longer. `stage` is the module whose code, imports included, decides the result;
    so does the code of the user's `own_modules`, each with the folder of its imports.

    Raises:
        DestinationRefused: `out` is neither new nor an earlier run of this kind; or a run with other config, data or
            code (`MadeOtherwise`); or these differ between hosts.
    """
    import jax  # here, so that a command can name the kinds of run without JAX

    made_with: Fingerprint = {
        **flattened(config.model_dump(mode="json"), leave_out={"out", *may_change, *contents}),
        **contents,
        **source_of(stage, own=own_modules),
    }
    _require_same_on_all_hosts(made_with)
    refusal: DestinationRefused | None = None
    # Sums are rounded in another order on another number of cores.
    figures, cores = None, len(os.sched_getaffinity(0)) if jax.default_backend() == "cpu" else None
    try:
        require_destination(out, result)
        # A run that was stopped before its first step left nothing to resume: it is begun anew with any config.
        lasting = [out / name for name in _LASTING]
        if any(any(path.iterdir()) if path.is_dir() else path.is_file() and path.stat().st_size for path in lasting):
            was = _before_it_grew(out, result, made_with, may_grow)
            earlier = earlier_manifest(out, result, was) or {}
            # If the product was removed, its figures do not count, and the run goes on to make it again.
            figures = earlier.get("figures") if was == made_with and (out / product).is_file() else None
            before = earlier.get("cpu_cores")
            if figures is None and before and cores and before != cores and jax.process_index() == 0:
                note = "it goes on, but sums are rounded in another order: the last bits differ from an unbroken run's"
                print(f"astra: {out}: was computed on {before} CPU cores, now on {cores}; {note}", file=sys.stderr)
    except DestinationRefused as error:
        refusal = error
    _agree(refusal)
    closing = None if figures is None else {**figures, "already_complete": True}
    return RunManifest(
        out, result, made_with, closing, is_written_here=jax.process_index() == 0, noted={"cpu_cores": cores}
    )


def _before_it_grew(out: Path, result: Result, made_with: Fingerprint, may_grow: Collection[str]) -> Fingerprint:
    """Return the fingerprint that the run in `out` has if only numbers in `may_grow` are larger now."""
    before = (manifest_in(out, result) or {}).get("made_with", {})
    smaller = {
        key: before[key]
        for key in may_grow
        if isinstance(before.get(key), int) and isinstance(made_with[key], int) and before[key] < made_with[key]
    }
    return {**made_with, **smaller}


def digest_of_policy(folder: Path) -> str:
    """Return a digest of a policy folder: the manifest of its weights, with their checksums, and its tokenizer."""
    return digest_of_files([folder / "params.whole.json", folder / "tokenizer.json"])


def _require_same_on_all_hosts(made_with: Fingerprint) -> None:
    """Refuse hosts with another config, data or code: the results of each host go into the updates of all."""
    import jax
    import numpy as np

    from astra_jax.mesh.hosts import gather_from_hosts

    if jax.process_count() > 1:
        of_hosts = gather_from_hosts(np.frombuffer(bytes.fromhex(digest(made_with)), np.uint8))
        if others := np.flatnonzero((of_hosts != of_hosts[0]).any(axis=1)).tolist():
            raise DestinationRefused(
                f"the config, data or code of host {', '.join(map(str, others))} differs from the first host's; "
                f"give all {len(of_hosts)} hosts the same command and files"
            )


def _agree(refusal: DestinationRefused | None) -> None:
    """Raise the refusal of the first host on all hosts; no host writes before all have checked."""
    import jax
    import numpy as np
    from jax.experimental import multihost_utils

    refused = refusal is not None
    if jax.process_count() > 1:
        refused = bool(multihost_utils.broadcast_one_to_all(np.int32(refused)))
    if refused:
        raise refusal or DestinationRefused("the first host refuses the run, and says why")
