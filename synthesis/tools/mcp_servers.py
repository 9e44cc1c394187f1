"""Settings by which real tool servers are started or reached, their keys, and their errors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue, Language
from synthesis.tools.names import words_of

ORIGIN: Final = "mcp"
WORKSPACE: Final = "{workspace}"
"""The name that stands in a command or a variable for the session's folder, an absolute path."""
LEAST_MASKED: Final = 8
"""Shorter values of keys are not masked: they would be found in words that mean something else."""
_NAMES_OF_KEYS: Final = frozenset({"key", "apikey", "token", "secret", "password", "auth", "sig", "signature"})


class McpServerConfig(BaseModel):
    """The command or address of a tool server, and facts that its documents leave open.

    Keys stand in no configuration: these name the environment variables that hold them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """Name of the server in records."""
    command: tuple[str, ...] = ()
    """Program and arguments; `python` is the interpreter that runs this. Started in the session's workspace."""
    url: str = ""
    """The address of a server that speaks streamable HTTP, instead of a command."""
    bearer_env: str | None = Field(default=None, min_length=1, exclude=True)
    """The environment variable that holds the token of `Authorization: Bearer`, for a server at an address."""
    header_env: dict[str, str] = Field(default={}, exclude=True)
    """Further headers for a server at an address: name to the environment variable that holds the value."""
    prepare: tuple[str, ...] = ()
    """A command that is run once in an empty folder; every session starts from a copy of that folder."""
    environment: dict[str, str] = {}
    """Variables of the server's process; never written into a record."""
    environment_from: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """Variables of our environment, keys among them, that the server's process has as well."""
    readable: tuple[Path, ...] = Field(default=(), exclude_if=lambda paths: not paths)
    """Files and folders that the server's process may read, beside the interpreter and the files that its command and
    its variables name. It writes into its workspace alone."""
    one_task_per_process: bool = Field(default=False, exclude_if=lambda alone: not alone)
    """Whether every trajectory gets a process of its own, for a server whose process remembers earlier calls."""
    domain: str = "General"
    """Domain of the server in records."""
    language: Language | None = None
    """Language of the server's tasks; without it both languages."""
    argument_values: dict[str, tuple[JsonValue, ...]] = {}
    """Values that exist on this server, by `argument` or `tool.argument`."""
    max_sessions: int = Field(default=2, ge=1)
    """Maximum number of sessions with the server at once."""
    start_seconds: float = Field(default=60.0, gt=0)
    """Maximum number of seconds for a server to start."""
    call_seconds: float = Field(default=30.0, gt=0)
    """Maximum number of seconds for a call."""

    @model_validator(mode="after")
    def _is_reachable_one_way(self) -> McpServerConfig:
        fault = ""
        if bool(self.command) == bool(self.url):
            fault = "either `command` or `url`"
        elif self.command and (self.bearer_env or self.header_env):
            fault = "bearer_env and header_env beside `url`; a server that is started gets its keys by environment_from"
        elif self.url and (self.environment or self.environment_from or self.readable):
            fault = "environment, environment_from and readable beside `command`"
        elif self.bearer_env and any(header.lower() == "authorization" for header in self.header_env):
            fault = "one of bearer_env and a header Authorization"
        if fault:
            raise ValueError(f"MCP server {self.name!r}: expected {fault}")
        return self

    def unavailable(self, fault: str) -> ToolServerUnavailable:
        """Return the error of this server with a fault."""
        return ToolServerUnavailable(f"MCP server {self.name!r}: {fault}")


class ToolServerUnavailable(SynthesisError):
    """A tool server cannot be started, reached or listed; the message names it and the attempt."""


class ToolServerDied(SynthesisError):
    """A tool server ended or stopped answering inside a trajectory; the trajectory can be tried again."""


class Credentials:
    """The keys of one server, shared by its sessions: in memory only, and masked in responses."""

    def __init__(self, config: McpServerConfig):
        """Read the keys from the environment.

        Raises:
            ToolServerUnavailable: a variable is not set or cannot be sent; or the address itself holds a key.
        """
        parts = urlsplit(config.url)
        named = [name for name, _ in parse_qsl(parts.query) if _NAMES_OF_KEYS & {*words_of(name), name.lower()}]
        if named or "@" in parts.netloc:
            found = f"the parameter {named[0]}" if named else "a user"
            raise config.unavailable(
                f"its address holds {found}, and may hold no key; name the variable that holds it in bearer_env or "
                "header_env"
            )
        names = [*filter(None, [config.bearer_env]), *config.header_env.values(), *config.environment_from]
        values = {name: os.environ.get(name, "") for name in names}
        for name, value in values.items():
            if not value:
                raise config.unavailable(f"the environment variable {name} has no key; set it")
            if config.url and not (value.isascii() and value.isprintable() and value == value.strip()):
                raise config.unavailable(
                    f"its key in {name} is not one line of ASCII without spaces around it; set it anew"
                )
        self.variables = ", ".join(values)
        """The names of the environment variables that hold the keys, for an error message."""
        self.headers = {header: values[name] for header, name in config.header_env.items()}
        if config.bearer_env:
            self.headers["Authorization"] = f"Bearer {values[config.bearer_env]}"
        secrets = {value for value in values.values() if len(value) >= LEAST_MASKED}
        # As they are or as JSON writes them; the longest first, since one may be a part of another.
        written = {json.dumps(each, ensure_ascii=ascii_only)[1:-1] for each in secrets for ascii_only in (True, False)}
        self._secrets = sorted(secrets | written, key=len, reverse=True)

    def masked(self, text: str) -> str:
        """Return a text without the keys."""
        for secret in self._secrets:
            text = text.replace(secret, "[key]")
        return text
