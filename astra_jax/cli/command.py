"""Runs one subcommand of `astra`, and makes an exit code and one line of each failure.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 141 the reader of the output is gone (as for other
tools in a pipe), 143 ended by SIGTERM (0 if training has saved).
Errors that a package defines (in its `errors.py`), and errors of disk or network, are one line; all others are bugs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
import signal
import sqlite3
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name

from astra_jax.cli.arguments import Run, parsed
from astra_jax.cli.commands import astra_parser
from astra_jax.errors import AstraError, UsageError
from astra_jax.training.termination import Interruption, Terminated, name_of
from sandbox.errors import SandboxError
from synthesis.errors import SynthesisError
from synthesis.run.places import TakenOver, fetch, published, stage_of

EXIT_FAILED, EXIT_USAGE = 1, 2
_WRITTEN = ("out", "destination", "directory", "folder")
"""Options with paths that a command may write to; all others it only reads."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    try:
        try:
            return _run(arguments)
        finally:  # also after --help, which ends the process
            print(end="", flush=True)
    except OSError as error:
        is_unread = isinstance(error, BrokenPipeError) and _has_no_reader()
        _let_go_of_output()
        return 128 + signal.SIGPIPE if is_unread else _fail(error, EXIT_FAILED)


def _run(arguments: Sequence[str] | None) -> int:
    parser = astra_parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        parser.print_help()
        return 0
    try:
        options = parsed(parser, arguments)
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    with Interruption(patience_seconds=options.patience_seconds) as interruption:
        try:
            written = _to_stages(options)
            if options.compiles:
                from astra_jax.cli.compile_cache import keep_compiled_programs

                keep_compiled_programs()
            with published(*written):
                code = _function(options.run)(options)
        except Terminated as ended:
            return int(ended.code or 0)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return _interrupted(interruption.signum, options.after_signal)
        except BrokenPipeError:
            raise
        except Exception as error:
            # The signal is the cause, unless it was sent because a later command has begun in the same place.
            if interruption.signum is not None and not isinstance(error, TakenOver):
                return _interrupted(interruption.signum, options.after_signal)
            failure = _exit_code(error)
            if failure is None:
                raise  # a bug keeps its traceback
            _let_go_of_output()
            return _fail(error, failure)
    return code or 0


def _to_stages(options: argparse.Namespace) -> list[Path]:
    """Make stages of the URLs among a command's paths, and fetch them; return those that it may write to."""
    written = []
    for name, value in vars(options).items():
        paths = value if isinstance(value, list) else [value]
        urls = [path for path in paths if isinstance(path, Path) and stage_of(path) != path]
        for path in urls:
            fetch(stage_of(path))
        if urls:
            setattr(options, name, [stage_of(path) for path in value] if isinstance(value, list) else stage_of(value))
            written += [stage_of(path) for path in urls if name in _WRITTEN]
    return written


def _function(run: Run) -> Callable[[argparse.Namespace], int | None]:
    return run if callable(run) else resolve_name(f"astra_jax.cli.{run}")


def _exit_code(error: Exception) -> int | None:
    """Return 2 if the command line or a config alone is at fault, 1 for another failure, None for a bug."""
    if isinstance(error, AstraError | SynthesisError):
        return EXIT_USAGE if error.is_usage else EXIT_FAILED
    # OSError, sqlite3.Error: the disk is full, a permission or the network is missing.
    if isinstance(error, SandboxError | OSError | sqlite3.Error):
        return EXIT_FAILED
    return None


def _fail(error: Exception, code: int) -> int:
    line = " ".join(str(error).split())
    print(f"astra: {type(error).__name__}: {line}", file=sys.stderr)
    return code


def _interrupted(signum: int | None, after_signal: str) -> int:
    signum = signum or signal.SIGINT
    print(f"astra: ended on {name_of(signum)}{after_signal}", file=sys.stderr)
    return 128 + signum


def _has_no_reader() -> bool:
    """Return whether standard output or error has lost its reader; a BrokenPipeError may come from another pipe."""
    poll = select.poll()
    for descriptor in (1, 2):
        poll.register(descriptor, 0)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))


def _let_go_of_output() -> None:
    """Discard output that cannot be written; otherwise Python tries to write the rest at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where a shell has closed it
        try:
            print(end="", file=stream, flush=True)
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
