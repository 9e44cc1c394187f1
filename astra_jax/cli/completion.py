"""`astra completion`: a script by which a shell completes commands, options and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import shtab


def print_script(options: argparse.Namespace) -> None:
    """Print the script of `options.shell`."""
    from astra_jax.cli.commands import astra_parser  # which names this function

    parser = astra_parser()
    for command in _with_subcommands(parser):
        for action in command._actions:
            if action.type is Path:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parser, shell=options.shell))


def _with_subcommands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser and those of all its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _with_subcommands(command)
