"""`astra records show|stats|verify|attack|audit|export`: print, count, verify, attack, audit and export records."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from astra_jax.cli.surroundings import with_sandbox
from synthesis.record_io import (
    CERTIFICATE,
    RECORD_TYPES,
    RecordSource,
    check_shards,
    digest_of_records,
    read_card,
    read_certificate,
    require_records,
)
from synthesis.records import Certificate, Environment, KeptRecord
from synthesis.run.fingerprint import digest_of_files


def show(options: argparse.Namespace) -> None:
    """Print the first records."""
    source = _record_source(options.directory)
    for index in range(min(options.count, len(source))):
        print(source[index].model_dump_json(indent=2))


def stats(options: argparse.Namespace) -> None:
    """Print the counts of a record directory, as a table or as JSON."""
    from astra_jax.recipes.data_sets import count_records, describe, so_by_construction

    if options.json:
        statistics = count_records(options.directory)
        counted = statistics.model_dump(mode="json")
        counted["by_construction"] = so_by_construction(statistics, read_card(options.directory))
        print(json.dumps(counted, ensure_ascii=False))
        return
    print(describe(options.directory).table())
    print(f"\nplots: astra report {options.directory}")


def verify(options: argparse.Namespace) -> int | None:
    """Run gold answers again; return 1 if a record fails."""
    from synthesis.environments.verification import verify_environments
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.trajectories.verification import verify_trajectories
    from synthesis.verification import check_digest, verify_records

    card, fault = read_card(options.directory), None
    if card.kind == "environment":
        verified = with_sandbox(
            options, card.packages, lambda sandbox: verify_environments(options.directory, sandbox.url)
        )
        fault = None if verified.failures else _certificate_fault(options)
    elif card.kind == "trajectory":
        verified = asyncio.run(verify_trajectories(options.directory, ProceduralTeacher()))
    else:  # documents have nothing that could be run again

        async def check(record: KeptRecord) -> None:
            check_digest(record)

        check_shards(options.directory)
        verified = asyncio.run(verify_records(_record_source(options.directory), check))
    faults = [*verified.failures, *([] if fault is None else [(CERTIFICATE, fault)])]
    for name, reason in faults:
        print(f"{name}: {reason}", file=sys.stderr)
    print(verified.closing_line())
    return 1 if faults else None


def attack(options: argparse.Namespace) -> int | None:
    """Run the attacks, write the certificate and its card; return 1 if the environments themselves are at fault."""
    from astra_jax.benchmarks.foreign_environments import KINDS, foreign_certificate
    from astra_jax.evaluate.astra_rows import read_astra_rows
    from astra_jax.evaluate.certify import certify

    if str(options.directory).partition(":")[0] in KINDS:
        name, out = str(options.directory), options.out or Path("certificate")
        certificate = asyncio.run(foreign_certificate(name, python=options.python, count=options.count))
        return _written(options, certificate, out)
    if options.directory.is_file():
        out = options.out or options.directory.with_name(f"{options.directory.stem}_certificate")
        environments, packages = read_astra_rows(options.directory), {}
        kind, digest = "rows of ASTRA's data", digest_of_files([options.directory])
    else:
        out, source = options.out or options.directory, RecordSource(options.directory, Environment)
        require_records(source)
        check_shards(options.directory)
        environments, packages = list(source), source.card.packages
        kind, digest = "environments", digest_of_records(options.directory)
    certificate = with_sandbox(
        options, packages, lambda sandbox: certify(environments, sandbox, digest=digest, source=kind, say=_say)
    )
    return _written(options, certificate, out)


def _written(options: argparse.Namespace, certificate: Certificate, out: Path) -> int | None:
    from astra_jax.evaluate.certify import verdict
    from astra_jax.report.certificate import write_certificate

    write_certificate(certificate, out, name=options.directory.resolve().name)
    print(certificate.model_dump_json() if options.json else f"attack: {verdict(certificate)} -> {out}/{CERTIFICATE}")
    return None if certificate.fault is None else 1


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _certificate_fault(options: argparse.Namespace) -> str | None:
    from astra_jax.evaluate.certify import certificate_fault

    certificate = read_certificate(options.directory)
    if certificate is None:
        return None
    source = RecordSource(options.directory, Environment)
    return with_sandbox(
        options, source.card.packages, lambda sandbox: certificate_fault(certificate, list(source), sandbox)
    )


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
        options.directory, options.out, format_name=options.format, split=options.split, licence=options.license
    )
    print(f"exported {count} records -> {options.out}")


def _record_source(directory: Path):  # type: ignore[no-untyped-def]
    return RecordSource(directory, RECORD_TYPES[read_card(directory).kind])
