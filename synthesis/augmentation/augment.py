"""Augmenting a record directory: its environments, each followed by the variants that were made of it.

    DIR  e1 e2 e3 ─► variants of a share of each kind, in the sandbox ─► OUT  e1 e1' e1'' e2 e3 e3'

A variant shares its source's entities and answers, so that a split whose world is apart from the one's is apart from
the other's; tools that a kind adds may be the same in both splits.
A variant that lies among the sources already is neither written again nor made another one of.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, get_args

from sandbox.client import AsyncSandboxClient
from synthesis.augmentation.variants import make_variant
from synthesis.environments.call_batches import CallBatches
from synthesis.environments.irrelevant_tools import ToolPool
from synthesis.environments.needed_packages import packages_of_sandbox
from synthesis.environments.verification import ExecutableTools
from synthesis.record_io import RecordSource, require_records
from synthesis.records import SCHEMA_VERSION, AugmentationKind, Environment, JsonValue
from synthesis.run.code import source_of
from synthesis.run.destination import records_of, require_destination
from synthesis.run.fingerprint import Fingerprint, digest, flattened
from synthesis.stage import Rejected, StageReport
from synthesis.track.journal import run_stage
from synthesis.track.run import TrackRun

AUGMENTATION_KINDS: Final[tuple[AugmentationKind, ...]] = get_args(AugmentationKind)
_AT_ONCE: Final = 16


async def augment_records(
    directory: Path, out: Path, shares: Mapping[AugmentationKind, float], *, seed: int, sandbox_url: str
) -> StageReport:
    """Write the environments of a directory and the variants of a share of them, by kind, into another directory.

    Run again after an interruption it goes on where it was; where all lies there already, nothing is done. The report
    counts the variants: how many were read are those that were tried.

    Raises:
        DestinationRefused: `out` is neither new nor an earlier result; or one that was made with something else
            (`MadeOtherwise`).
        RecordDirectoryError: the directory is missing, damaged or of another kind, or holds no record.
        SandboxUnavailable: the sandbox gives no answer.
        JournalError: a journal is damaged, or the disk is full or not writable.
        NothingKept: no variant came of it.
    """
    started = time.monotonic()
    require_destination(out, records_of("environment"), sources=[directory])
    source = RecordSource(directory, Environment)
    require_records(source)
    beside = out.resolve()
    run = TrackRun(
        "augmentation",
        out,
        "environment",
        _fingerprint(source, shares, seed),
        {"variants": beside.with_name(f"{beside.name}.variants.sqlite")},
    )
    if (finished := run.finished_report()) is not None:
        return finished
    report = StageReport("augmentation", out=str(out))
    environments = list(source)
    there_already = {each.id for each in environments}
    places = _drawn(len(environments), shares, seed)
    drawn_from = environments if shares.get("more_tools") else []  # of no use to the other kinds
    pools = {
        language: ToolPool([each for each in drawn_from if each.language == language])
        for language in sorted({each.language for each in environments})
    }
    async with AsyncSandboxClient(sandbox_url) as client:
        await packages_of_sandbox(client, sorted(source.card.packages))
        sandbox = CallBatches(client)
        executable = ExecutableTools(sandbox)

        async def make(place: tuple[int, AugmentationKind]) -> JsonValue:
            index, kind = place
            environment = environments[index]
            try:
                variant = await make_variant(
                    environment, kind, pools[environment.language], sandbox, executable, seed=seed
                )
            except Rejected as rejected:
                raise Rejected(f"{kind}: {rejected.reason}", rejected.detail) from rejected
            if variant.id in there_already:  # an earlier augmentation with this seed made it
                raise Rejected(f"{kind}: variant is there already", variant.id)
            return {"index": index, "variant": variant.model_dump(mode="json")}

        with run.open_journals() as (journal,):
            results = await run_stage(report, places, make, journal=journal, concurrency=_AT_ONCE)
            variants: dict[int, list[Environment]] = {}
            for result in results:
                variants.setdefault(result["index"], []).append(Environment.model_validate(result["variant"]))
            records = (each for index, own in enumerate(environments) for each in (own, *variants.get(index, ())))
            run.write(report, records)
    run.close(report)
    report.seconds = time.monotonic() - started
    return report


def augmented_beside(out: Path) -> Path:
    """Return where a run's environments lie with their variants.

    >>> augmented_beside(Path("runs/environments")).as_posix()
    'runs/environments.augmented'
    """
    return out.with_name(f"{out.name}.augmented")


def _drawn(count: int, shares: Mapping[AugmentationKind, float], seed: int) -> Sequence[tuple[int, AugmentationKind]]:
    """Draw which environments get a variant of which kind, in order of the environments."""
    drawn = []
    for kind in AUGMENTATION_KINDS:
        # One kind's share has no say in what another one draws.
        chosen = random.Random(f"augmentation/{kind}/{seed}").sample(range(count), round(shares.get(kind, 0.0) * count))
        drawn += [(index, kind) for index in chosen]
    return sorted(drawn)


def _fingerprint(source: RecordSource[Environment], shares: Mapping[AugmentationKind, float], seed: int) -> Fingerprint:
    return {
        "schema_version": SCHEMA_VERSION,
        "seed": seed,
        **flattened({"augmentation": {kind: shares.get(kind, 0.0) for kind in AUGMENTATION_KINDS}}),
        "environments": digest(sorted(source.card.shards.values())),
        **source_of(__name__),
    }
