"""The cache of compiled programs lies apart for each processor, stays small, and every command that compiles has it."""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import pytest

from astra_jax.cli import compile_cache
from astra_jax.cli.command import _function, main
from astra_jax.cli.commands import astra_parser
from astra_jax.cli.compile_cache import cache_folder
from astra_jax.user_cache import trim


def test_the_cache_lies_where_caches_lie_apart_for_each_kind_of_processor(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder().parent == tmp_path / "astra-jax" / "xla"
    here = cache_folder()
    monkeypatch.setattr(platform, "machine", lambda: "another")
    assert cache_folder() != here
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder().parent == Path.home() / ".cache" / "astra-jax" / "xla"


def test_a_cache_that_has_grown_too_large_loses_its_oldest_half(tmp_path):
    for age in range(6):
        (tmp_path / str(age)).write_bytes(bytes(100))
        os.utime(tmp_path / str(age), (age, age))
    trim(tmp_path, most_bytes=600)
    assert len(list(tmp_path.iterdir())) == 6
    trim(tmp_path, most_bytes=599)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "5"]


@pytest.mark.parametrize(
    ("command", "compiles"),
    [
        ("quickstart", True),
        ("sft CONFIG", True),
        ("rl CONFIG", True),
        ("evaluate environments CONFIG", True),
        ("replay LOG --policy DIR", True),
        ("convert hf-to-orbax SRC OUT", True),
        ("convert orbax-to-hf SRC OUT", True),
        ("records show DIR", False),
        ("plan CONFIG --topology v5p:4x4x4", False),
    ],
)
def test_a_command_that_compiles_keeps_its_programs(monkeypatch, command, compiles):
    done = []
    monkeypatch.setattr(compile_cache, "keep_compiled_programs", lambda: done.append("cache"))
    monkeypatch.setattr("astra_jax.cli.command._function", lambda _: lambda _: done.append("command"))
    assert main(command.split()) == 0
    assert done == ["cache"] * compiles + ["command"]


def test_every_command_has_a_function():
    def runs(parser):
        groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        below = [found for group in groups for each in group.choices.values() for found in runs(each)]
        return below or [parser.get_default("run")]

    assert len(found := runs(astra_parser())) > 20
    assert all(map(callable, map(_function, found)))
