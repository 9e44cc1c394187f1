"""`astra records show|stats|verify|attack|audit|export`: print, count, check and export records."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
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
)
from synthesis.records import Environment, JsonValue, KeptRecord, ServerDocument, ToolCall, Trajectory
from synthesis.run.fingerprint import digest_of_files


def show(options: argparse.Namespace) -> None:
    """Print the first records, as a person reads them or as JSON."""
    source = _record_source(options.directory)
    for index in range(min(options.count, len(source))):
        record = source[index]
        print(record.model_dump_json(indent=2) if options.json else "\n".join(_in_words(record)) + "\n")


def _in_words(record: KeptRecord) -> Iterator[str]:
    """Yield the lines of a record that a person reads; a kind without such lines is shown as JSON."""
    if isinstance(record, Environment):
        yield f"{record.id}  {record.domain}, {record.language}, {record.scenario}, hops: {record.hops}"
        yield f"question: {record.question}\nanswer:   {_json(record.answer)}"
        for each in record.sub_questions:
            after = f" after {', '.join(each.depends_on)}" if each.depends_on else ""
            yield f"  {each.id}{after}: {each.question}"
            yield f"      {_call(each.call) if each.call else 'no tool'} -> {_json(each.answer)}"
        yield from (f"tool: {tool.document.name}: {tool.document.description}" for tool in record.tools)
        yield f"distractors: {', '.join(each.tool.document.name for each in record.irrelevant_tools) or 'none'}"
    elif isinstance(record, Trajectory):
        yield f"{record.id}  {record.server}, {record.language}, reward {record.reward.mean:.2f}"
        yield f"tools: {', '.join(tool.name for tool in record.tools)}"
        for message in record.messages:
            if message.reasoning_content:
                yield f"{message.role} thinks: {message.reasoning_content.strip()}"
            if message.content:
                yield f"{message.role}{' (failed)' if message.is_error else ''}: {message.content.strip()}"
            yield from (f"{message.role} calls: {_call(call)}" for call in message.tool_calls)
    elif isinstance(record, ServerDocument):
        yield f"{record.id}  {record.name}, {record.domain}, {record.language}, from {record.origin}"
        for tool in record.tools:
            yield f"  {tool.name}({', '.join(tool.parameters.get('properties', {}))}): {tool.description}"
    else:
        yield record.model_dump_json(indent=2)


def _call(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={_json(value)}' for name, value in call.arguments.items())})"


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


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

    card, fault = read_card(options.directory), None
    if card.kind == "environment":
        verified = with_sandbox(
            options, card.packages, lambda sandbox: verify_environments(options.directory, sandbox.url)
        )
        certificate = None if verified.failures else read_certificate(options.directory)
        if certificate is not None:
            from astra_jax.evaluate.certify import certificate_fault

            again = partial(certificate_fault, certificate, list(RecordSource(options.directory, Environment)))
            fault = with_sandbox(options, card.packages, again)
    elif card.kind == "trajectory":
        verified = asyncio.run(verify_trajectories(options.directory, ProceduralTeacher()))
    else:  # documents have nothing that could be run again

        async def check(record: KeptRecord) -> None:
            check_digest(record)

        check_shards(options.directory)
        verified = asyncio.run(verify_records(_record_source(options.directory), check))
    failures = [*verified.failures, *([] if fault is None else [(CERTIFICATE, fault)])]
    for name, reason in failures:
        print(f"{name}: {reason}", file=sys.stderr)
    print(verified.closing_line())
    return 1 if failures else None


def attack(options: argparse.Namespace) -> int | None:
    """Run the attacks, write the certificate and its card; return 1 if the environments themselves are at fault."""
    from astra_jax.benchmarks.foreign_environments import KINDS, foreign_certificate
    from astra_jax.evaluate.astra_rows import read_astra_rows
    from astra_jax.evaluate.certify import certify, verdict
    from astra_jax.report.certificate import places, write_certificate
    from synthesis.embeddings import installed_encoder

    directory: Path = options.directory
    out = options.out or (directory if directory.is_dir() else Path("certificate"))
    places(out)  # refuses another's files before the attacks run
    if str(directory).startswith(KINDS):
        certificate = asyncio.run(foreign_certificate(str(directory), python=options.python, count=options.count))
    else:
        if directory.is_file():
            environments, digest = read_astra_rows(directory), digest_of_files([directory])
            packages, kind = {}, "rows of ASTRA's data"
        else:
            check_shards(directory)
            environments, digest = list(RecordSource(directory, Environment)), digest_of_records(directory)
            packages, kind = read_card(directory).packages, "environments"
        say, encoder = partial(print, file=sys.stderr), installed_encoder()
        attacked = partial(certify, environments, digest=digest, source=kind, encoder=encoder, say=say)
        certificate = with_sandbox(options, packages, attacked)
    write_certificate(certificate, out, name=directory.resolve().name)
    print(certificate.model_dump_json() if options.json else f"attack: {verdict(certificate)} -> {out}/{CERTIFICATE}")
    return None if certificate.fault is None else 1


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
