"""`astra records show|stats|verify|audit|export`: print, count, verify, audit and export records."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from astra_jax.cli.surroundings import with_sandbox
from synthesis.record_io import (
    RECORD_TYPES,
    RecordSource,
    check_shards,
    read_card,
)
from synthesis.records import KeptRecord


def show(options: argparse.Namespace) -> None:
    """Print the first records."""
    source = _record_source(options.directory)
    for index in range(min(options.count, len(source))):
        print(source[index].model_dump_json(indent=2))


def stats(options: argparse.Namespace) -> None:
    """Print the counts of a record directory, as a table or as JSON."""
    from astra_jax.recipes.data_sets import count_records, describe, so_by_construction
    from synthesis.contamination import overlap_of

    shared = overlap_of(options.directory, options.against) if options.against else None
    if options.json:
        statistics = count_records(options.directory)
        counted = statistics.model_dump(mode="json")
        counted["by_construction"] = so_by_construction(statistics, read_card(options.directory))
        if shared is not None:
            counted["overlap"] = shared.model_dump(mode="json")
        print(json.dumps(counted, ensure_ascii=False))
        return
    print(describe(options.directory).table())
    if shared is not None:
        print("\noverlap:", *shared.in_words(), sep="\n  ")
        for hit in (*shared.ngram_worst, *shared.nearest_worst):
            print(f"    {hit.record} {hit.amount:.2f} {hit.file}: {hit.ours!r} ~ {hit.theirs!r}")
    print(f"\nplots: astra report {options.directory}")


def verify(options: argparse.Namespace) -> int | None:
    """Run gold answers again; return 1 if a record fails."""
    from synthesis.environments.verification import verify_environments
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.trajectories.verification import verify_trajectories
    from synthesis.verification import check_digest, verify_records

    card = read_card(options.directory)
    if card.kind == "environment":
        verified = with_sandbox(
            options, card.packages, lambda sandbox: verify_environments(options.directory, sandbox.url)
        )
    elif card.kind == "trajectory":
        verified = asyncio.run(verify_trajectories(options.directory, ProceduralTeacher()))
    else:  # documents have nothing that could be run again

        async def check(record: KeptRecord) -> None:
            check_digest(record)

        check_shards(options.directory)
        verified = asyncio.run(verify_records(_record_source(options.directory), check))
    for name, reason in verified.failures:
        print(f"{name}: {reason}", file=sys.stderr)
    print(verified.closing_line())
    return 1 if verified.failures else None


def audit(options: argparse.Namespace) -> None:
    """Plant faults into trajectories; print the share that passes."""
    from synthesis.audit.audit import as_json, audit, table
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.trajectories.reward_axes import RewardThresholds

    judge, thresholds = ProceduralTeacher(), RewardThresholds()
    audited = asyncio.run(audit(options.directory, judge, thresholds, at_most=options.count, seed=options.seed))
    print(json.dumps(as_json(audited), ensure_ascii=False) if options.json else table(audited))


def export(options: argparse.Namespace) -> None:
    """Write rows for another trainer."""
    from synthesis.export.export import export_records

    count = export_records(
        options.directory,
        options.out,
        format_name=options.format,
        split=options.split,
        licence=options.license,
        against=options.against,
    )
    print(f"exported {count} records -> {options.out}")


def _record_source(directory: Path):  # type: ignore[no-untyped-def]
    return RecordSource(directory, RECORD_TYPES[read_card(directory).kind])
