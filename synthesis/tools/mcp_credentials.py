"""Keys of tool servers: from the environment, in memory only, and masked in responses."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from synthesis.tools.mcp_servers import McpServerConfig, ToolServerUnavailable
from synthesis.tools.names import words_of

MASK: Final = "[key]"
LEAST_MASKED: Final = 8
"""Shorter values are not masked: they would be found in words that mean something else."""
_NAMES_OF_KEYS: Final = frozenset({"key", "apikey", "token", "secret", "password", "auth", "sig", "signature"})


class TokensInMemory:
    """The tokens of one OAuth client, shared by the sessions of a server; they end with the process."""

    def __init__(self) -> None:
        self._tokens: Any = None
        self._client: Any = None
        self.given: set[str] = set()
        """Every token that was ever given."""

    async def get_tokens(self) -> Any:
        """Return the tokens that were given last."""
        return self._tokens

    async def set_tokens(self, tokens: Any) -> None:
        """Keep the tokens that were given."""
        self._tokens = tokens
        self.given |= {token for token in (tokens.access_token, tokens.refresh_token) if token}

    async def get_client_info(self) -> Any:
        """Return the client's registration."""
        return self._client

    async def set_client_info(self, client_info: Any) -> None:
        """Keep the client's registration."""
        self._client = client_info


@dataclass(frozen=True)
class Credentials:
    """The keys of one server."""

    headers: dict[str, str] = field(default_factory=dict, repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    tokens: TokensInMemory = field(default_factory=TokensInMemory, repr=False)

    def masked(self, text: str) -> str:
        """Return a text without the keys.

        >>> Credentials(secrets=frozenset({"sk-0123456789"})).masked("you sent Bearer sk-0123456789")
        'you sent Bearer [key]'
        """
        found = {secret for secret in self.secrets | self.tokens.given if len(secret) >= LEAST_MASKED}
        for secret in sorted(found, key=len, reverse=True):  # one may be a part of another
            written = [json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
            for spelling in (secret, *written):
                text = text.replace(spelling, MASK)
        return text


def credentials_of(config: McpServerConfig) -> Credentials:
    """Read a server's keys from the environment.

    Raises:
        ToolServerUnavailable: a variable is not set or cannot be sent; or the address itself holds a key.
    """
    _require_no_key_in(config)
    values = {name: _value_of(name, config) for name in _names_of(config)}
    headers = {header: values[name] for header, name in config.header_env.items()}
    if config.bearer_env is not None:
        headers["Authorization"] = f"Bearer {values[config.bearer_env]}"
    return Credentials(headers, frozenset(values.values()))


def authorization_of(config: McpServerConfig, credentials: Credentials) -> Any:
    """Return the part of an HTTP client that puts OAuth tokens on the requests to a server; None without OAuth."""
    if config.oauth is None:
        return None
    from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

    return ClientCredentialsOAuthProvider(
        config.address,
        credentials.tokens,
        os.environ[config.oauth.client_id_env],
        os.environ[config.oauth.client_secret_env],
        scope=config.oauth.scope,
        issuer=config.oauth.issuer,
    )


def variables_of(config: McpServerConfig) -> str:
    """Return the names of the environment variables that hold the keys of a server, for an error message."""
    return ", ".join(_names_of(config))


def _names_of(config: McpServerConfig) -> list[str]:
    oauth = [] if config.oauth is None else [config.oauth.client_id_env, config.oauth.client_secret_env]
    bearer = [] if config.bearer_env is None else [config.bearer_env]
    return list(dict.fromkeys([*bearer, *config.header_env.values(), *oauth, *config.environment_from]))


def _value_of(name: str, config: McpServerConfig) -> str:
    value = os.environ.get(name)
    if not value:
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: expected its key in the environment variable {name}, found none; set it"
        )
    if config.address and not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: expected its key in {name} as one line of ASCII without spaces around it, "
            "found others; set it anew"
        )
    return value


def _require_no_key_in(config: McpServerConfig) -> None:
    parts = urlsplit(config.address)
    named = [name for name, _ in parse_qsl(parts.query) if _NAMES_OF_KEYS & {*words_of(name), name.lower()}]
    if named or "@" in parts.netloc:
        found = f"the parameter {named[0]}" if named else "a user"
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: expected an address without a key, found {found} in it; name the variable "
            "that holds it in bearer_env or header_env"
        )
