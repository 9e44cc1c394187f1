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
from collections.abc import Sequence
from typing import Final

from synthesis.records import JsonObject, JsonValue
from synthesis.stage import Rejected
from synthesis.tools.documents import SourceServer, clean_text, object_in, objects_in, tools_in
from synthesis.tools.tools_list import listed_tool

NO_TOOLS: Final = "listed without tools"
LISTING_HEAD: Final = (
    "# Servers that a registry lists without their tools, for the config of `astra synthesize trajectories`."
)
_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
_HTTP: Final = ("http", "streamable-http", "streamable")
_COMMANDS: Final = {"npm": (("npx", "-y"), "@"), "pypi": (("uvx",), "@"), "oci": (("docker", "run", "-i", "--rm"), ":")}
"""Kind of a package to the command that runs it, and the mark between its name and its version."""


def read_registry(document: JsonValue) -> list[SourceServer | Rejected] | None:
    """Return the servers of a listing, each with its tools or the reason why not; None if it is something else."""
    entries = object_in(document).get("servers", document)
    entries = entries if isinstance(entries, list) else [entries]
    found = [object_in(object_in(entry).get("server")) or object_in(entry) for entry in entries]
    return [*map(_server, entries, found)] if found and all(map(_is_server, found)) else None


def _is_server(described: JsonObject) -> bool:
    has_places = any(isinstance(described.get(key), list) for key in ("packages", "remotes"))
    return isinstance(described.get("qualifiedName"), str) or (has_places and isinstance(described.get("name"), str))


def _server(entry: JsonObject, described: JsonObject) -> SourceServer | Rejected:
    name = str(described.get("qualifiedName") or described.get("name"))
    meta = object_in(entry.get("_meta")) | object_in(described.get("_meta"))
    official = object_in(meta.get(_OFFICIAL))
    if official.get("isLatest") is False:
        return Rejected("not the latest version", name)
    if official.get("status", described.get("status", "active")) != "active":
        return Rejected("withdrawn from the registry", name)
    # A publisher may state the tools in a part of its own.
    places = [described, *map(object_in, meta.values())]
    stated = [place["tools"] for place in places if objects_in(place.get("tools"))]  # names alone are no tools
    if tools := tools_in(stated[0], listed_tool) if stated else []:
        shown = str(described.get("displayName") or described.get("title") or name)
        return SourceServer(shown, "mcp_registry", tools, description=str(described.get("description") or ""))
    address = {key: value for key, value in _address(name, described).items() if value}
    what = "ask the server itself" if address else "no address that can be reached"
    return Rejected(NO_TOOLS, f"{name}: {what}", {"mcp_server": address} if address else {})


def _address(name: str, described: JsonObject) -> JsonObject:
    """Return the table of a server under `[[mcp_servers]]`; empty if it has no address that can be reached."""
    remotes = [*objects_in(described.get("remotes")), *objects_in(described.get("connections"))]
    for remote in [*remotes, {"type": "http", "url": described.get("deploymentUrl")}]:
        kind = remote.get("type") or remote.get("transport_type")
        url = remote.get("url") or remote.get("deploymentUrl")
        if kind in _HTTP and isinstance(url, str) and re.fullmatch(r"https?://[^{}\s]+", url):
            headers = _required(remote.get("headers"))
            keys = {header: _variable(name, header) for header in headers if header.lower() != "authorization"}
            bearer = _variable(name, "token") if len(keys) < len(headers) else ""
            return {"name": name, "url": url, "bearer_env": bearer, "header_env": keys}
    for package in objects_in(described.get("packages")):
        kind = package.get("registryType") or package.get("registry_type") or package.get("registry_name")
        identifier = package.get("identifier") or package.get("name")
        if kind in _COMMANDS and isinstance(identifier, str):
            command, mark = _COMMANDS[kind]
            if (version := package.get("version")) and mark not in identifier[1:]:
                identifier += f"{mark}{version}"
            needed = _required(package.get("environmentVariables") or package.get("environment_variables"))
            return {"name": name, "command": [*command, identifier], "environment_from": needed}
    return {}


def _required(found: JsonValue) -> list[str]:
    required = (each.get("name") for each in objects_in(found) if each.get("isRequired") or each.get("is_required"))
    return [name for name in required if isinstance(name, str)]


def _variable(server: str, key: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "_", f"{server.rpartition('/')[2]}_{key}".upper()).strip("_")


def listing(servers: Sequence[JsonObject]) -> str:
    """Return tables of servers as TOML."""
    tables = ["".join(f"{key} = {_toml(value)}\n" for key, value in server.items()) for server in servers]
    return "\n[[mcp_servers]]\n".join([f"{LISTING_HEAD}\n", *tables])


def _toml(value: JsonValue) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(inner)}' for key, inner in value.items())} }}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(clean_text(value).replace("\n", " "), ensure_ascii=False)
