"""How real tool servers are started or reached, and what may become of them; `mcp_session` and `mcp_pool` do it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from synthesis.errors import SynthesisError
from synthesis.records import JsonValue, Language

ORIGIN: Final = "mcp"
WORKSPACE: Final = "{workspace}"
"""In a server's command and environment: the folder of the session, as an absolute path."""
_INHERITED_ENVIRONMENT: Final = ("PATH", "HOME", "TMPDIR", "SYSTEMROOT", "PYTHONPATH")


class McpServerConfig(BaseModel):
    """How a tool server is started or reached, and what its documents leave open."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    command: tuple[str, ...] = ()
    """Program and arguments; `python` is the interpreter that runs this. Started in the session's workspace."""
    url: str = ""
    """Instead of a command: the address of a server that speaks streamable HTTP."""
    prepare: tuple[str, ...] = ()
    """A command run once in an empty folder; every session starts from a copy of what it left there."""
    environment: dict[str, str] = {}
    """Variables of the server's process; never written into a record."""
    one_task_per_process: bool = Field(default=False, exclude_if=lambda alone: not alone)
    """For a server whose process remembers what it was asked: every trajectory gets a process of its own."""
    domain: str = "General"
    language: Language | None = None
    argument_values: dict[str, tuple[JsonValue, ...]] = {}
    """Values that exist on this server, by `argument` or `tool.argument`."""
    max_sessions: int = Field(default=2, ge=1)
    start_seconds: float = Field(default=60.0, gt=0)
    call_seconds: float = Field(default=30.0, gt=0)

    @model_validator(mode="after")
    def _is_reachable_one_way(self) -> McpServerConfig:
        if bool(self.command) == bool(self.url):
            raise ValueError(f"MCP server {self.name!r}: expected either `command` or `url`")
        return self


class ToolServerUnavailable(SynthesisError):
    """A tool server cannot be started, reached or listed; the message says which and what was tried."""


class ToolServerDied(SynthesisError):
    """A tool server ended or stopped answering inside a trajectory; the trajectory can be tried again."""


def command_of(command: tuple[str, ...]) -> list[str]:
    return [sys.executable if command[0] == "python" else command[0], *command[1:]]


def python_path() -> dict[str, str]:
    """Let a `python -m` of ours be found from a workspace, installed or not."""
    ours = str(Path(__file__).parents[2])
    return {"PYTHONPATH": os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))}


def environment_of(config: McpServerConfig) -> dict[str, str]:
    """Return what a server's process sees: little of ours, so that no key of this process reaches it."""
    inherited = {name: os.environ[name] for name in _INHERITED_ENVIRONMENT if name in os.environ}
    return {**inherited, **python_path(), **config.environment}
