"""`astra records show|stats|verify|audit|export|import`: print, count, verify, audit, export and import records."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
from pathlib import Path

from astra_jax.cli.arguments import Commands, add_sandbox, whole_number
from astra_jax.cli.surroundings import required_packages, sandbox_for
from synthesis.records import KeptRecord


def add_records(commands: Commands) -> None:
    """Add the six commands."""
    parser = commands.add_parser("records", help="look at, count, verify, audit, export and import records")
    records = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = records.add_parser("show", help="print the first records")
    show.add_argument("--count", type=whole_number(1), default=1, help="number of records")
    show.set_defaults(run=_show)
    stats = records.add_parser("stats", help="the paper's table of these records, beside the paper's figures")
    stats.add_argument("--json", action="store_true", help="everything that is counted, on one line")
    stats.add_argument("--training", type=Path, metavar="DIR", help="also the share of questions that DIR has")
    stats.set_defaults(run=_stats)
    verify = records.add_parser("verify", help="run gold answers again in the sandbox, and compare the digests")
    add_sandbox(verify)
    verify.set_defaults(run=_verify)
    audit = records.add_parser("audit", help="plant faults into trajectories, and print the share that passes")
    audit.add_argument("--count", type=whole_number(1), default=200, help="trajectories that are sampled")
    audit.add_argument("--seed", type=whole_number(0), default=0)
    audit.add_argument("--json", action="store_true", help="counts and AUC, on one line")
    audit.set_defaults(run=_audit)
    export = records.add_parser("export", help="write rows for any other trainer, with a data card")
    formats = ["jsonl", "parquet", "tfds", "openai", "astra", "verl", "trl"]
    export.add_argument("--format", choices=formats, default="jsonl")
    export.add_argument("--split", type=_split, default="train", metavar="NAME", help="split in the data card")
    export.add_argument("--license", default="unknown", metavar="NAME", help="for the data card, e.g. apache-2.0")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    export.set_defaults(run=_export)
    read = records.add_parser("import", help="read environments from rows of the format astra")
    read.add_argument("file", type=Path, metavar="FILE")
    read.add_argument("--out", type=Path, required=True, metavar="DIR")
    read.set_defaults(run=_import)
    for command in (show, stats, verify, audit, export):
        command.add_argument("directory", type=Path, metavar="DIR")


def _show(options: argparse.Namespace) -> None:
    source = _record_source(options.directory)
    for index in range(min(options.count, len(source))):
        print(source[index].model_dump_json(indent=2))


def _stats(options: argparse.Namespace) -> None:
    from astra_jax.recipes.data_sets import count_records, describe, so_by_construction
    from synthesis.record_io import read_card

    if options.json:
        statistics = count_records(options.directory)
        counted = statistics.model_dump(mode="json")
        counted["by_construction"] = so_by_construction(statistics, read_card(options.directory))
        if options.training is not None:
            counted["in_training"] = _seen_in(options.training, options.directory)
        print(json.dumps(counted, ensure_ascii=False))
        return
    print(describe(options.directory).table())
    if options.training is not None:
        for what, share in _seen_in(options.training, options.directory).items():
            print(f"{what} that {options.training} has, too: {share:.1%}")
    print(f"\nplots: astra report {options.directory}")


def _seen_in(training: Path, held_out: Path) -> dict[str, float]:
    from synthesis.diversity import DiversityCounter, seen_in_training
    from synthesis.record_io import RecordDirectoryError, RecordSource
    from synthesis.records import Environment

    counter = DiversityCounter()
    for environment in RecordSource(training, Environment):
        counter.add_environment(environment)
    try:
        return seen_in_training(RecordSource(held_out, Environment), counter)
    except ValueError as error:
        raise RecordDirectoryError(f"{held_out}: {error}") from error


def _verify(options: argparse.Namespace) -> int | None:
    from sandbox.client import AsyncSandboxClient
    from synthesis.environments.verification import verify_environments
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.record_io import check_shards, read_card
    from synthesis.trajectories.verification import verify_trajectories
    from synthesis.verification import VerificationReport, check_digest, verify_records

    card = read_card(options.directory)
    kind = card.kind
    if kind == "environment":

        async def verify_with(url: str) -> VerificationReport:
            async with AsyncSandboxClient(url) as sandbox:
                await required_packages(sandbox, card.packages)
            return await verify_environments(options.directory, url)

        with sandbox_for(options) as url:
            verified = asyncio.run(verify_with(url))
    elif kind == "trajectory":
        verified = asyncio.run(verify_trajectories(options.directory, ProceduralTeacher()))
    else:  # documents have nothing that could be run again

        async def verify(record: KeptRecord) -> None:
            check_digest(record)

        check_shards(options.directory)
        verified = asyncio.run(verify_records(_record_source(options.directory), verify))
    for name, reason in verified.failures:
        print(f"{name}: {reason}", file=sys.stderr)
    print(verified.closing_line())
    return 1 if verified.failures else None


def _audit(options: argparse.Namespace) -> None:
    from synthesis.audit.audit import as_json, audit, table
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.trajectories.reward_axes import RewardThresholds

    judge, thresholds = ProceduralTeacher(), RewardThresholds()
    audited = asyncio.run(audit(options.directory, judge, thresholds, at_most=options.count, seed=options.seed))
    print(json.dumps(as_json(audited), ensure_ascii=False) if options.json else table(audited))


def _split(text: str) -> str:
    if not re.fullmatch(r"\w+", text):  # as the hub has it
        raise argparse.ArgumentTypeError(f"expected letters, digits and underscores, found {text!r}")
    return text


def _export(options: argparse.Namespace) -> None:
    from synthesis.export.export import export_records

    count = export_records(
        options.directory, options.out, format_name=options.format, split=options.split, licence=options.license
    )
    print(f"exported {count} records -> {options.out}")


def _import(options: argparse.Namespace) -> None:
    from synthesis.export.astra_rows import read_astra_rows
    from synthesis.record_io import write_records
    from synthesis.run.destination import records_of, require_destination

    require_destination(options.out, records_of("environment"), sources=[options.file])
    card = write_records(options.out, read_astra_rows(options.file), kind="environment")
    print(f"imported {card.count} records -> {options.out}")


def _record_source(directory: Path):  # type: ignore[no-untyped-def]
    from synthesis.record_io import RECORD_TYPES, RecordSource, read_card

    return RecordSource(directory, RECORD_TYPES[read_card(directory).kind])
