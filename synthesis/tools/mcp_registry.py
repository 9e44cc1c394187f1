"""Listings of MCP registries: the official registry's `/v0/servers`, and Smithery's `/servers`, bare or page by page.

    official   {"servers": [{"server": {"name", "packages", "remotes"}, "_meta": {…}}]}; older ones without "server"
    Smithery   {"servers": [{"qualifiedName", …}]}; the page of one server has its `tools`

Most entries state no tools. Such a server is left out, with the table under `[[mcp_servers]]` by which its tools can be
asked for, if the entry has an address that this project can reach: streamable HTTP, or a package of npm, PyPI or OCI.
Seen in the registries' API documents of autumn 2026; a field that is not there is taken as not stated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.stage import Rejected
from synthesis.tools.documents import SourceServer, clean_text, object_in, objects_in
from synthesis.tools.tools_list import mcp_tool

NO_TOOLS: Final = "listed without tools"
LISTING_HEAD: Final = (
    "# Servers that a registry lists without their tools, for the config of `astra synthesize trajectories`."
)
_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
_COMMANDS: Final = {"npm": ("npx", "-y"), "pypi": ("uvx",), "oci": ("docker", "run", "-i", "--rm")}
_VERSION_MARK: Final = {"npm": "@", "pypi": "@", "oci": ":"}


def read_registry(document: JsonValue) -> list[SourceServer | Rejected] | None:
    """Return the servers of a listing, each with its tools or the reason why not; None if it is something else."""
    entries = object_in(document).get("servers", document)
    entries = entries if isinstance(entries, list) else [entries]
    if not entries or not all(isinstance(entry, dict) and _is_entry(entry) for entry in entries):
        return None
    return [_server(entry) for entry in entries]


def _is_entry(entry: JsonObject) -> bool:
    described = object_in(entry.get("server")) or entry
    if isinstance(described.get("qualifiedName"), str):
        return True
    return isinstance(described.get("name"), str) and any(
        isinstance(described.get(key), list) for key in ("packages", "remotes")
    )


def _server(entry: JsonObject) -> SourceServer | Rejected:
    described = object_in(entry.get("server")) or entry
    name = str(described.get("qualifiedName") or described.get("name"))
    meta = object_in(entry.get("_meta")) | object_in(described.get("_meta"))
    official = object_in(meta.get(_OFFICIAL))
    if official.get("isLatest") is False:
        return Rejected("not the latest version", name)
    if official.get("status", described.get("status", "active")) != "active":
        return Rejected("withdrawn from the registry", name)
    # A publisher may state the tools in a part of its own.
    places = [described, *(object_in(part) for part in meta.values())]
    tools = next((tools for place in places if (tools := objects_in(place.get("tools")))), [])
    if not tools:
        address = _address(name, described)
        detail = f"{name}: ask the server itself" if address else f"{name}: no address that can be reached"
        return Rejected(NO_TOOLS, detail, {"mcp_server": address} if address else None)
    return SourceServer(
        name=str(described.get("displayName") or described.get("title") or name),
        origin="mcp_registry",
        tools=[mcp_tool(tool) for tool in tools],
        description=str(described.get("description") or ""),
    )


def _address(name: str, described: JsonObject) -> JsonObject:
    """Return the table of a server under `[[mcp_servers]]`; empty if it has no address that can be reached."""
    remotes = [*objects_in(described.get("remotes")), *objects_in(described.get("connections"))]
    for remote in [*remotes, {"type": "http", "url": described.get("deploymentUrl")}]:
        kind = remote.get("type") or remote.get("transport_type")
        url = remote.get("url") or remote.get("deploymentUrl")
        if (
            kind in ("http", "streamable-http", "streamable")
            and isinstance(url, str)
            and re.fullmatch(r"https?://[^{}\s]+", url)
        ):
            headers = [each["name"] for each in _required(remote.get("headers"))]
            keys = {header: _variable(name, header) for header in headers if header.lower() != "authorization"}
            bearer = {"bearer_env": _variable(name, "token")} if len(keys) < len(headers) else {}
            return {"name": name, "url": url, **bearer, **({"header_env": keys} if keys else {})}
    for package in objects_in(described.get("packages")):
        kind = package.get("registryType") or package.get("registry_type") or package.get("registry_name")
        identifier = package.get("identifier") or package.get("name")
        if kind in _COMMANDS and isinstance(identifier, str):
            version = package.get("version")
            pinned = f"{_VERSION_MARK[kind]}{version}" if version and _VERSION_MARK[kind] not in identifier[1:] else ""
            variables = _required(package.get("environmentVariables") or package.get("environment_variables"))
            needed = [each["name"] for each in variables]
            needs = {"environment_from": needed} if needed else {}
            return {"name": name, "command": [*_COMMANDS[kind], f"{identifier}{pinned}"], **needs}
    return {}


def _required(found: JsonValue) -> list[JsonObject]:
    required = (each for each in objects_in(found) if each.get("isRequired") or each.get("is_required"))
    return [each for each in required if isinstance(each.get("name"), str)]


def _variable(server: str, key: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", f"{server.rpartition('/')[2]}_{key}".upper()).strip("_")


def listing(servers: Sequence[JsonObject]) -> str:
    """Return tables of servers as TOML.

    >>> print(listing([{"name": "a/b", "url": "https://b.example/mcp", "header_env": {"X-Key": "B_X_KEY"}}]), end="")
    # Servers that a registry lists without their tools, for the config of `astra synthesize trajectories`.
    <BLANKLINE>
    [[mcp_servers]]
    name = "a/b"
    url = "https://b.example/mcp"
    header_env = { "X-Key" = "B_X_KEY" }
    """

    def lines() -> Iterator[str]:
        yield LISTING_HEAD
        for server in servers:
            yield "\n[[mcp_servers]]"
            for key, value in server.items():
                yield f"{key} = {_toml(value)}"

    return "\n".join(lines()) + "\n"


def _toml(value: JsonValue) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(clean_text(value).replace("\n", " "), ensure_ascii=False)
