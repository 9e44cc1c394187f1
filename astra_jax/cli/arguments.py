"""The reader of a command line, and the options that several commands share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

from astra_jax.errors import UsageError

MOST_SEED = 2**31 - 1
Commands = argparse._SubParsersAction
"""The parent to which subcommands are added."""
Run = str | Callable[[argparse.Namespace], int | None]
"""The function of a command, or `module:function` in this folder, which is imported when the command runs."""


class Parser(argparse.ArgumentParser):
    """The reader of a command line; it reports a fault in one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line; argparse itself would print the usage and end the process.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message}; see {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file)  # argparse itself hides a broken output


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; `key=value` may stand before, between and after options.

    Raises:
        UsageError: the command line does not fit the command.
    """
    # argparse takes positional arguments in one run only: `key=value` after an option comes back as unknown.
    options, rest = parser.parse_known_args(arguments)
    if hasattr(options, "overrides"):
        options.overrides += [argument for argument in rest if not argument.startswith("-")]
        rest = [argument for argument in rest if argument.startswith("-")]
    if rest:
        raise UsageError(f"unknown: {' '.join(rest)}; see {parser.prog} {options.command} --help")
    return options


def group(commands: Commands, name: str, text: str, metavar: str) -> Commands:
    """Add a command that has only subcommands; return their parent."""
    return commands.add_parser(name, help=text).add_subparsers(dest=metavar.lower(), required=True, metavar=metavar)


def config_command(commands: Commands, name: str, text: str, run: Run) -> argparse.ArgumentParser:
    """Add a command that `run` executes and a TOML file with `key=value` configures; return its parser."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    command.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file, e.g. from configs/")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. seed=1 out=runs/mine")
    command.add_argument("--json", action="store_true", help="end with one machine-readable line")
    command.set_defaults(run=run)
    return command


def add_devices(parser: argparse.ArgumentParser) -> None:
    """Add the options of a policy that samples on several devices of this host."""
    add = parser.add_argument
    add("--dtype", choices=["float32", "bfloat16"], help="type of weights and matrix products; default: as stored")
    text = "devices that share out heads, the MLP's width and the vocabulary"
    add("--tensor-parallel-size", type=whole_number(1), default=1, metavar="N", help=text)


def add_sandbox(command: argparse.ArgumentParser) -> None:
    """Add the option that names a running sandbox."""
    text = "a running sandbox, its token in ASTRA_SANDBOX_TOKEN; without it one is started"
    command.add_argument("--sandbox", type=http_url, metavar="URL", help=text)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return the reader of a whole number from `least` to `most`.

    >>> whole_number(0, 65535)("8377")
    8377
    """
    allowed = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number {allowed}, found {text!r}")
        return number

    return read


def http_url(text: str) -> str:
    """Return the address of a service.

    Raises:
        ArgumentTypeError: the text is no address.
    """
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number, an address with half a bracket
        is_one = False
    if not is_one:
        raise argparse.ArgumentTypeError(f"expected an address such as http://127.0.0.1:8377, found {text!r}")
    return text
