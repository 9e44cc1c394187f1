"""Keys of tool servers: from the environment, in memory only, and masked in responses."""

from __future__ import annotations

import json
import os
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from synthesis.tools.mcp_servers import McpServerConfig, ToolServerUnavailable
from synthesis.tools.names import words_of

MASK: Final = "[key]"
LEAST_MASKED: Final = 8
"""Shorter values are not masked: they would be found in words that mean something else."""
_NAMES_OF_KEYS: Final = frozenset({"key", "apikey", "token", "secret", "password", "auth", "sig", "signature"})


class Credentials:
    """The keys of one server, shared by its sessions."""

    def __init__(self, config: McpServerConfig):
        """Read the keys from the environment.

        Raises:
            ToolServerUnavailable: a variable is not set or cannot be sent; or the address itself holds a key.
        """
        _require_no_key_in(config)
        bearer = [] if config.bearer_env is None else [config.bearer_env]
        values = {
            name: _value_of(name, config) for name in (*bearer, *config.header_env.values(), *config.environment_from)
        }
        self.variables = ", ".join(values)
        """The names of the environment variables that hold the keys, for an error message."""
        self.headers = {header: values[name] for header, name in config.header_env.items()}
        if config.bearer_env is not None:
            self.headers["Authorization"] = f"Bearer {values[config.bearer_env]}"
        secrets = {value for value in values.values() if len(value) >= LEAST_MASKED}
        # As they are or as JSON writes them; the longest first, since one may be a part of another.
        written = {json.dumps(each, ensure_ascii=ascii_only)[1:-1] for each in secrets for ascii_only in (True, False)}
        self._secrets = sorted(secrets | written, key=len, reverse=True)

    def masked(self, text: str) -> str:
        """Return a text without the keys."""
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text


def _value_of(name: str, config: McpServerConfig) -> str:
    value = os.environ.get(name)
    if not value:
        raise ToolServerUnavailable(f"MCP server {config.name!r}: the environment variable {name} has no key; set it")
    if config.url and not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: its key in {name} is not one line of ASCII without spaces around it; set it "
            "anew"
        )
    return value


def _require_no_key_in(config: McpServerConfig) -> None:
    parts = urlsplit(config.url)
    named = [name for name, _ in parse_qsl(parts.query) if _NAMES_OF_KEYS & {*words_of(name), name.lower()}]
    if named or "@" in parts.netloc:
        found = f"the parameter {named[0]}" if named else "a user"
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: its address holds {found}, and may hold no key; name the variable that "
            "holds it in bearer_env or header_env"
        )
