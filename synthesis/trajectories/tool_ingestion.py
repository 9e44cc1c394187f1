"""Ingestion: every source of tool documents is read and normalised, and what became of each is written down."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree

from synthesis.record_io import write_records
from synthesis.records import JsonObject, ServerDocument
from synthesis.stage import NothingKept, Rejected, StageReport
from synthesis.trajectories.mcp_servers import McpPool, McpServerConfig
from synthesis.trajectories.near_duplicates import NearDuplicates
from synthesis.trajectories.tool_documents import SourceServer, ToolDocumentFilters, normalise_server
from synthesis.trajectories.tool_sources import read_servers, source_files


class NoToolDocuments(NothingKept):
    """No server was left to work on; the message says what was read and why nothing was kept."""


@dataclass
class Servers:
    """The servers of a run: their documents, and the pools of those that are real."""

    documents: list[ServerDocument]
    pools: dict[str, McpPool]
    """Server id to its pool."""
    report: StageReport
    outcomes: list[JsonObject]
    """What became of each document that was read: kept, repaired or rejected, and why."""
    near_duplicates: NearDuplicates


async def gather_servers(
    sources: Sequence[Path],
    mcp_servers: Sequence[McpServerConfig],
    filters: ToolDocumentFilters,
    stack: AsyncExitStack,
    work_directory: Path,
) -> Servers:
    """Read and normalise every source; start the MCP servers, which stay up until `stack` is closed.

    The servers' workspaces lie in `work_directory`.

    Raises:
        SourceMissing: a source is not there.
        ToolServerUnavailable: an MCP server does not start.
    """
    started = time.monotonic()
    servers = Servers([], {}, StageReport("tool documents"), [], NearDuplicates())
    for source in sources:
        for path in source_files(source):
            for found in read_servers(path):
                _normalise_into(servers, found, filters, path.name)
    for ordinal, config in enumerate(mcp_servers):
        pool = McpPool(config, work_directory / f"mcp-{ordinal}")
        stack.push_async_callback(pool.close)
        document = _normalise_into(servers, await pool.source_server(), filters, config.name)
        if document is not None:
            servers.pools[document.id] = pool
    servers.report.seconds = time.monotonic() - started
    return servers


def _normalise_into(
    servers: Servers, found: SourceServer | Rejected, filters: ToolDocumentFilters, where: str
) -> ServerDocument | None:
    """Normalise one server and write down what became of it; None if it is not kept."""
    servers.report.read += 1
    outcome: JsonObject = {"document": where, "server": "" if isinstance(found, Rejected) else found.name}
    servers.outcomes.append(outcome)
    try:
        if isinstance(found, Rejected):
            raise found
        document = normalise_server(found, filters)
        if earlier := servers.near_duplicates.duplicate_of(document):
            raise Rejected("near-duplicate server", f"{document.name!r} repeats {earlier!r}")
    except Rejected as rejected:
        servers.report.reject(
            Rejected(rejected.reason, rejected.detail if where in rejected.detail else f"{where}: {rejected.detail}")
        )
        outcome.update(outcome="rejected", reason=rejected.reason, detail=rejected.detail)
        return None
    outcome.update(outcome="repaired" if document.repairs else "kept", tools=len(document.tools))
    outcome.update(repairs=document.repairs, flags=document.flags)
    servers.documents.append(document)
    servers.report.kept += 1
    servers.report.repaired += bool(document.repairs)
    return document


def require_servers(servers: Servers) -> None:
    """Raise NoToolDocuments when no server was left to work on."""
    if not servers.documents:
        raise NoToolDocuments(servers.report.nothing_kept("at least one usable server"))


def work_directory_of(out: Path) -> Path:
    """Return where a run keeps its journals and workspaces until its records are written."""
    return out.with_name(out.name + ".work")


async def synthesize_tools(
    sources: Sequence[Path],
    out: Path,
    *,
    mcp_servers: Sequence[McpServerConfig] = (),
    filters: ToolDocumentFilters | None = None,
) -> StageReport:
    """Ingest and normalise tool documents only; write them as records of kind `server_document`.

    Beside the records lies `report.json`: what became of each document that was read, and why.

    Raises:
        SourceMissing, ToolServerUnavailable, NoToolDocuments: there is nothing to write; an earlier `out` stays.
    """
    filters = filters or ToolDocumentFilters()
    work_directory = work_directory_of(out)
    async with AsyncExitStack() as stack:
        servers = await gather_servers(sources, mcp_servers, filters, stack, work_directory)
    require_servers(servers)
    config_hash = sha256(filters.model_dump_json().encode()).hexdigest()[:16]
    write_records(
        out, servers.documents, kind="server_document", config_hash=config_hash, rejected=servers.report.rejected
    )
    counts = {"read": servers.report.read, "kept": servers.report.kept, "repaired": servers.report.repaired}
    report = {**counts, "rejected": dict(sorted(servers.report.rejected.items())), "documents": servers.outcomes}
    (out / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    rmtree(work_directory, ignore_errors=True)
    servers.report.out = str(out)
    return servers.report
