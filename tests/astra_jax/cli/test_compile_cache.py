"""A program that was compiled once is not compiled again, gives the same bits, and a bad cache is no error."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from astra_jax.cli import compile_cache
from astra_jax.cli.command import _function, main
from astra_jax.cli.commands import astra_parser
from astra_jax.cli.compile_cache import cache_folder
from astra_jax.user_cache import trim
from tests.astra_jax.killed_process import ROOT

PROGRAM = """
import json
import jax
import jax.numpy as jnp
from astra_jax.cli.compile_cache import keep_compiled_programs
keep_compiled_programs()
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event.rpartition("/")[2]))
step = jax.jit(jax.grad(lambda x: jnp.sum(jax.nn.softmax(jnp.sin(x) @ x.T))))
bits = jax.device_get(step(jnp.arange(64.0).reshape(8, 8) / 64)).tobytes().hex()
print(json.dumps({"bits": bits, "hits": found.count("cache_hits"), "misses": found.count("cache_misses")}))
"""


def start(caches: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if "CACHE" not in name}
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        cwd=ROOT,
        env={**environment, "XDG_CACHE_HOME": str(caches)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(*processes: subprocess.Popen[str]) -> list[dict]:
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [(process.returncode, error) for process, (_, error) in zip(processes, outputs, strict=True)] == [
        (0, "") for _ in processes
    ]
    return [json.loads(output) for output, _ in outputs]


@pytest.mark.slow
def test_a_program_is_compiled_once_whatever_becomes_of_its_cache(tmp_path):
    """By two commands at once, by a third, by one whose cache was torn, and by one that cannot have a cache at all."""
    *first, without = answers(start(tmp_path), start(tmp_path), start(Path("/dev/null")))
    (folder,) = (tmp_path / "astra-jax" / "xla").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    (again,) = answers(start(tmp_path))
    entries = list(folder.iterdir())
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-20])
    (torn,) = answers(start(tmp_path))
    assert {answer["bits"] for answer in (*first, without, again, torn)} == {without["bits"]}
    assert (without["hits"], torn["hits"], again["misses"]) == (0, 0, 0)
    assert again["hits"] == len(entries) > 0


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
def test_a_command_that_compiles_keeps_what_it_compiled(monkeypatch, command, compiles):
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
