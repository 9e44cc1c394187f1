"""Keys of tool servers: from the environment, in memory only, and masked in responses."""

from __future__ import annotations

import json
import os
from typing import Any, Final
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
        self._config, self._tokens = config, _Tokens()
        values = {name: _value_of(name, config) for name in _names_of(config)}
        self._secrets = frozenset(values.values())
        self.headers = {header: values[name] for header, name in config.header_env.items()}
        if config.bearer_env is not None:
            self.headers["Authorization"] = f"Bearer {values[config.bearer_env]}"

    @property
    def variables(self) -> str:
        """The names of the environment variables that hold the keys, for an error message."""
        return ", ".join(_names_of(self._config))

    def authorization(self) -> Any:
        """Return the part of an HTTP client that puts OAuth tokens on requests; None without OAuth."""
        if (oauth := self._config.oauth) is None:
            return None
        from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider

        client = (os.environ[oauth.client_id_env], os.environ[oauth.client_secret_env])
        return ClientCredentialsOAuthProvider(
            self._config.url, self._tokens, *client, scope=oauth.scope, issuer=oauth.issuer
        )

    def masked(self, text: str) -> str:
        """Return a text without the keys, as they are or as JSON writes them."""
        found = {secret for secret in self._secrets | self._tokens.given if len(secret) >= LEAST_MASKED}
        for secret in sorted(found, key=len, reverse=True):  # one may be a part of another
            written = [json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False)]
            for spelling in (secret, *written):
                text = text.replace(spelling, MASK)
        return text


class _Tokens:
    """The tokens of one OAuth client, in memory, as the SDK asks for them; `given` are all that there ever were."""

    def __init__(self) -> None:
        self._tokens: Any = None
        self._client: Any = None
        self.given: set[str] = set()

    async def get_tokens(self) -> Any:
        return self._tokens

    async def set_tokens(self, tokens: Any) -> None:
        self._tokens = tokens
        self.given |= {token for token in (tokens.access_token, tokens.refresh_token) if token}

    async def get_client_info(self) -> Any:
        return self._client

    async def set_client_info(self, client_info: Any) -> None:
        self._client = client_info


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
    if config.url and not (value.isascii() and value.isprintable() and value == value.strip()):
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: expected its key in {name} as one line of ASCII without spaces around it, "
            "found others; set it anew"
        )
    return value


def _require_no_key_in(config: McpServerConfig) -> None:
    parts = urlsplit(config.url)
    named = [name for name, _ in parse_qsl(parts.query) if _NAMES_OF_KEYS & {*words_of(name), name.lower()}]
    if named or "@" in parts.netloc:
        found = f"the parameter {named[0]}" if named else "a user"
        raise ToolServerUnavailable(
            f"MCP server {config.name!r}: expected an address without a key, found {found} in it; name the variable "
            "that holds it in bearer_env or header_env"
        )
