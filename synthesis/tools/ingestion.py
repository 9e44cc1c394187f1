"""Ingestion: each source is read and normalised, and its outcome is written down."""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import rmtree
from typing import Final

from synthesis.record_io import write_records
from synthesis.records import JsonObject, ServerDocument
from synthesis.run.destination import DestinationRefused, records_of, require_destination
from synthesis.stage import NothingKept, Rejected, StageReport
from synthesis.tools.documents import SourceServer, ToolDocumentFilters, normalise_server
from synthesis.tools.mcp_pool import McpPool
from synthesis.tools.mcp_registry import LISTING_HEAD, listing
from synthesis.tools.mcp_servers import McpServerConfig
from synthesis.tools.names import words_of
from synthesis.tools.sources import read_servers, source_files

TOOL_DOCUMENTS: Final = records_of("server_document")
"""The record directory that ingestion makes."""
JOURNALS: Final = ("completions", "outputs", "chains", "tasks", "trajectories")
"""The stages of the track that keep a journal in the work directory."""
OVERLAP_OF_DUPLICATES: Final = 0.8
OVERLAP_OF_NAMESAKES: Final = 0.5
"""Overlap of tools from which two servers of the same name are the same server; others need a larger one."""
_OURS: Final = re.compile(rf"({'|'.join(JOURNALS)})\.sqlite(-wal|-shm|-journal)?|mcp-\d+")


class NoToolDocuments(NothingKept):
    """No server was left to work on; the message has the number of documents and the reasons."""


class NearDuplicates:
    """The servers that were kept so far, found again by any tool that they share with a new one."""

    def __init__(self) -> None:
        self._kept: list[tuple[str, tuple[str, ...], frozenset[str]]] = []
        self._by_signature: dict[str, list[int]] = {}

    def duplicate_of(self, server: ServerDocument) -> str | None:
        """Return the name of the kept server that this one repeats; keep this one if there is none.

        Two servers are the same if the Jaccard overlap of their tools reaches a threshold. Of each tool, its words and
        the names of its arguments count.
        """
        words = words_of(server.name)
        signatures = frozenset(
            f"{' '.join(words_of(tool.name))}({','.join(sorted(tool.parameters.get('properties', {})))})"
            for tool in server.tools
        )
        shared = Counter(index for signature in signatures for index in self._by_signature.get(signature, ()))
        for index in sorted(shared):  # of several, the server that came first
            kept_name, kept_words, kept = self._kept[index]
            overlap = shared[index] / (len(signatures) + len(kept) - shared[index])
            if overlap >= (OVERLAP_OF_NAMESAKES if words == kept_words else OVERLAP_OF_DUPLICATES):
                return kept_name
        for signature in signatures:
            self._by_signature.setdefault(signature, []).append(len(self._kept))
        self._kept.append((server.name, words, signatures))
        return None


@dataclass
class Servers:
    """The servers of a run: their documents, and the pools of the real ones."""

    documents: list[ServerDocument]
    pools: dict[str, McpPool]
    """Server id to the real server behind it."""
    report: StageReport
    outcomes: list[JsonObject]
    """The outcome of each document: kept, repaired or rejected, with the reason."""
    near_duplicates: NearDuplicates


async def gather_servers(
    sources: Sequence[Path],
    mcp_servers: Sequence[McpServerConfig],
    filters: ToolDocumentFilters,
    stack: AsyncExitStack,
    work_directory: Path,
) -> Servers:
    """Read and normalise each source; start the MCP servers, which stay up until `stack` is closed.

    Raises:
        SourceMissing, ToolServerUnavailable: a source is not there, or an MCP server does not start.
    """
    started = time.monotonic()
    servers = Servers([], {}, StageReport("tool documents"), [], NearDuplicates())
    for path in (path for source in sources for path in source_files(source)):
        for found in read_servers(path):
            _normalise_into(servers, found, filters, path.name)
    for ordinal, config in enumerate(mcp_servers):
        pool = McpPool(config, work_directory / f"mcp-{ordinal}")
        stack.push_async_callback(pool.close)  # before its tools are listed: if that fails, the server is closed
        if document := _normalise_into(servers, await pool.source_server(), filters, config.name):
            servers.pools[document.id] = pool
    servers.report.seconds = time.monotonic() - started
    return servers


def _normalise_into(
    servers: Servers, found: SourceServer | Rejected, filters: ToolDocumentFilters, where: str
) -> ServerDocument | None:
    """Normalise one server and write down the outcome; return None if it is not kept."""
    report = servers.report
    report.read += 1
    outcome: JsonObject = {"document": where, "server": "" if isinstance(found, Rejected) else found.name}
    servers.outcomes.append(outcome)
    try:
        if isinstance(found, Rejected):  # a file that could not be read is written down as a server that is not kept
            raise found
        document = normalise_server(found, filters)
        if earlier := servers.near_duplicates.duplicate_of(document):
            raise Rejected("near-duplicate server", f"{document.name!r} repeats {earlier!r}")
    except Rejected as rejected:
        detail = rejected.detail if where in rejected.detail else f"{where}: {rejected.detail}"
        report.reject(Rejected(rejected.reason, detail))
        outcome |= {"outcome": "rejected", "reason": rejected.reason, "detail": rejected.detail, **rejected.made}
        return None
    outcome |= {"outcome": "repaired" if document.repairs else "kept", "tools": len(document.tools)}
    outcome |= {"repairs": document.repairs, "flags": document.flags}
    servers.documents.append(document)
    report.kept += 1
    report.repaired += bool(document.repairs)
    return document


def require_servers(servers: Servers) -> None:
    """Raise `NoToolDocuments`, with the reasons, if no server is left to work on."""
    if not servers.documents:
        raise NoToolDocuments(servers.report.nothing_kept("usable server"))


def work_directory_of(out: Path) -> Path:
    """Return the folder of the journals and workspaces of a run, which it needs until its records are written."""
    out = out.resolve()
    return out.with_name(out.name + ".work")


def listing_beside(out: Path) -> Path:
    """Return the file of the servers that a registry lists without their tools.

    >>> listing_beside(Path("/runs/tools")).as_posix()
    '/runs/tools.mcp_servers.toml'
    """
    out = out.resolve()
    return out.with_name(f"{out.name}.mcp_servers.toml")


def require_work_directory(work_directory: Path) -> None:
    """Refuse a work directory that holds anything but journals and workspaces of ours.

    Raises:
        DestinationRefused: it holds other files; the message names the first.
    """
    if not os.path.lexists(work_directory):
        return
    entries = sorted(work_directory.iterdir()) if work_directory.is_dir() else [work_directory]
    if other := next((entry.name for entry in entries if not _OURS.fullmatch(entry.name)), ""):
        raise DestinationRefused(
            f"{work_directory}: {other} lies where the journals of this run belong; name another `out`, or move it away"
        )


def clear_workspaces(work_directory: Path) -> None:
    """Remove the workspaces of tool servers, and the work directory if nothing is left in it."""
    for workspace in work_directory.glob("mcp-*"):
        rmtree(workspace)
    with suppress(OSError):  # it was never made, or holds journals
        work_directory.rmdir()


async def synthesize_tools(
    sources: Sequence[Path],
    out: Path,
    *,
    mcp_servers: Sequence[McpServerConfig] = (),
    filters: ToolDocumentFilters | None = None,
) -> StageReport:
    """Ingest and normalise tool documents only; write them as records of kind `server_document`.

    Beside the records lies `report.json`: the outcome of each document with its reason. Servers that a registry lists
    without their tools stand in `<out>.mcp_servers.toml`, as a config takes them, even if nothing else was found.

    Raises:
        DestinationRefused: `out` is neither new nor an earlier ingestion, or holds a source; or another file lies at
            `<out>.mcp_servers.toml`.
        SourceMissing, ToolServerUnavailable, NoToolDocuments: there is nothing to write; an earlier `out` stays.
        OSError: the disk is full or not writable.
    """
    filters = filters or ToolDocumentFilters()
    require_destination(out, TOOL_DOCUMENTS, sources=sources)
    beside = listing_beside(out)
    if beside.exists() and not beside.read_text(encoding="utf-8").startswith(LISTING_HEAD):
        raise DestinationRefused(f"{beside} is not a listing of this command; name another `out`, or move it away")
    work_directory = work_directory_of(out)
    require_work_directory(work_directory)
    async with AsyncExitStack() as stack:
        stack.callback(clear_workspaces, work_directory)  # first in, so it runs last: when the servers are closed
        servers = await gather_servers(sources, mcp_servers, filters, stack, work_directory)
    beside.unlink(missing_ok=True)
    if tables := [outcome["mcp_server"] for outcome in servers.outcomes if "mcp_server" in outcome]:
        beside.write_text(listing(tables), encoding="utf-8")
    require_servers(servers)
    report = servers.report
    counts = {"read": report.read, "kept": report.kept, "repaired": report.repaired}
    told = {**counts, "rejected": dict(sorted(report.rejected.items())), "documents": servers.outcomes}
    write_records(
        out,
        servers.documents,
        kind=TOOL_DOCUMENTS.kind,
        config_hash=sha256(filters.model_dump_json().encode()).hexdigest()[:16],
        rejected=report.rejected,
        read=report.read,
        repaired=report.repaired,
        report=json.dumps(told, ensure_ascii=False, indent=1) + "\n",
    )
    report.out = str(out)
    return report
