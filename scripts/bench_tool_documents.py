"""What becomes of real tool documents, and how fast: one JSON line, one entry per folder and their total.

    python scripts/bench_tool_documents.py FOLDER…

Each folder is ingested as `astra synthesize tools` does it, with the default filters. Nothing is taken on trust: the
documents are counted here by their files (a line of a .jsonl file is a document), and every schema that was kept is
read back from the records and checked against the draft 2020-12 meta-schema. `unaccounted` counts the documents of
which the report says neither that they were kept, nor repaired, nor why they were rejected.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from synthesis.record_io import RecordSource
from synthesis.records import ServerDocument
from synthesis.tools.ingestion import synthesize_tools
from synthesis.tools.statistics import tool_document_statistics

SECONDS_WANTED = 60.0


def documents_in(folder: Path) -> Counter[str]:
    """Count the documents of every file, whatever its name ends with."""
    return Counter(
        {
            path.name: sum(bool(line.strip()) for line in path.read_bytes().splitlines())
            if path.suffix == ".jsonl"
            else 1
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
    )


def num_invalid_schemas(servers: RecordSource[ServerDocument]) -> tuple[int, int]:
    """Return how many schemas the records hold, and how many of them draft 2020-12 does not allow."""
    checked = invalid = 0
    for server in servers:
        for tool in server.tools:
            for schema in filter(None, (tool.parameters, tool.output_schema)):
                checked += 1
                try:
                    Draft202012Validator.check_schema(schema)
                except SchemaError:
                    invalid += 1
    return checked, invalid


def ingested(folder: Path) -> dict[str, Any]:
    """Ingest one folder and say what became of everything in it."""
    with TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        started = time.monotonic()
        report = asyncio.run(synthesize_tools([folder], out))
        seconds = time.monotonic() - started
        outcomes = json.loads((out / "report.json").read_text(encoding="utf-8"))["documents"]
        servers = RecordSource(out, ServerDocument)
        checked, invalid = num_invalid_schemas(servers)
        tools = tool_document_statistics(servers)
    explained = Counter(
        outcome["document"]
        for outcome in outcomes
        if outcome["outcome"] in ("kept", "repaired") or (outcome["outcome"] == "rejected" and outcome["reason"])
    )
    return {
        "read": report.read,
        "kept": report.kept - report.repaired,
        "repaired": report.repaired,
        "rejected": dict(sorted(report.rejected.items())),
        "unaccounted": (documents_in(folder) - explained).total(),
        "tools_kept": tools.tools,
        **tools.model_dump(exclude={"tools"}),
        "schemas_checked": checked,
        "schemas_invalid": invalid,
        "seconds": round(seconds, 2),
    }


def main() -> int:
    """Measure every folder; exit 1 if a document is unaccounted for, a schema invalid, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    folders = {folder.name: ingested(folder) for folder in parser.parse_args().folders}
    counted = [name for name, value in next(iter(folders.values())).items() if not isinstance(value, dict)]
    total: dict[str, Any] = {name: round(sum(each[name] for each in folders.values()), 2) for name in counted}
    total["rejected"] = dict(sorted(sum((Counter(each["rejected"]) for each in folders.values()), Counter()).items()))
    peak_rss_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"work": "tool documents", "folders": folders, "total": total, "peak_rss_bytes": peak_rss_bytes}))
    is_good = not total["unaccounted"] and not total["schemas_invalid"] and total["seconds"] <= SECONDS_WANTED
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
