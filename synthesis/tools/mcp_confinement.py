"""The confinement of MCP servers started by a command, and of their `prepare` commands.

A server reads the interpreter with its packages, the files that its command and its variables name, and the folders of
`readable`. It writes into its workspace, has an empty home, and the network of this machine. Where a machine cannot
confine programs it runs as the user, and one line says so.

Decided: docs/decisions/benchmarks.md, “Programs of others are confined; where that cannot be, no harness runs”.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final

from sandbox.program import ProgramNotConfined, confined_command, give, why_not_confined
from synthesis.tools.mcp_servers import WORKSPACE, McpServerConfig

_INHERITED: Final = ("PATH", "HOME", "TMPDIR", "SYSTEMROOT")
"""Variables of this process that a server has as well: few, so that no key reaches it."""
_HOME: Final = "/tmp"
"""The private /tmp of a confined program."""
_MEMORY_BYTES: Final = 1 << 40
"""Address space of a process, of which Node reserves far more than it uses."""
_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("astra_jax", "synthesis", "sandbox")


def is_confined(config: McpServerConfig) -> bool:
    """Return whether the processes of a server are confined on this machine; the first one that is not says so."""
    if config.url:
        return False
    if (why := why_not_confined()) is not None:
        _say_once(why)
    return why is None


@cache
def _say_once(why: str) -> None:
    print(f"astra: MCP servers that are started by a command run unconfined, as you: {why}", file=sys.stderr)


def started(command: Sequence[str], config: McpServerConfig, workspace: Path) -> tuple[list[str], dict[str, str]]:
    """Return the command line and the variables that start a command of a server in its workspace.

    If this process is root's, the workspace is given to the user that confined programs run as.

    Raises:
        ToolServerUnavailable: the program is not found, or a path of `readable` is not there or holds the user's home.
    """
    placed = [text.replace(WORKSPACE, str(workspace)) for text in command]
    command = [sys.executable if placed[0] == "python" else placed[0], *placed[1:]]
    given = {name: value.replace(WORKSPACE, str(workspace)) for name, value in config.environment.items()}
    given |= {name: os.environ[name] for name in config.environment_from}
    ours = os.environ.get("PYTHONPATH", "")
    environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    # Installed or not, a `python -m` of ours is found from a workspace.
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), ours)))
    if not is_confined(config):
        return command, environment | given
    environment |= {"HOME": _HOME, "TMPDIR": _HOME} | given
    for path in config.readable:
        if not path.expanduser().exists():
            raise config.unavailable(f"{path} of `readable` does not exist")
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None and os.sep not in command[0]:  # a path may be one in the workspace
        raise config.unavailable(f"it does not start: no {command[0]!r} is there; install it, or name its path")
    named = [program or command[0], *command[1:], *given.values()]
    files = [text for each in named for text in (each, each.partition("=")[2])]
    readable = [
        Path(sys.prefix),
        *(_ROOT / name for name in _PACKAGES),
        *(Path(entry) for entry in ours.split(os.pathsep) if os.path.isdir(entry)),
        *(Path(text) for text in files if os.path.isabs(text) and os.path.isfile(text)),
        *(path.expanduser() for path in config.readable),
    ]
    give(workspace)
    try:
        command = confined_command(
            command, folder=workspace, readable=readable, has_network=True, memory_bytes=_MEMORY_BYTES
        )
    except ProgramNotConfined as error:
        raise config.unavailable(str(error)) from None
    return command, environment
