"""Environments in which a stand-in has the place of an official harness, and the command that is run in them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from astra_jax.benchmarks import benchmark
from astra_jax.benchmarks.managed_environment import ManagedEnvironment
from astra_jax.benchmarks.results import HarnessDocument
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.scripted_endpoint import ScriptedEndpoint


def stand_in_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, version: str) -> Path:
    """Return the folder of an environment that benchmarks take for the official one."""
    environment = ManagedEnvironment(tmp_path / "environment", HarnessDocument(package=package, version=version))
    monkeypatch.setattr(benchmark, "managed_environment", lambda harness: environment)
    monkeypatch.setenv("ASTRA_USER_KEY", "key-of-user")
    return environment.folder


def executable(path: Path, source: Path) -> None:
    """Write a program that runs a Python file."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!{os.path.realpath(sys.executable)}\n{source.read_text()}")
    path.chmod(0o755)


def config_with_user(tmp_path: Path, *lines: str) -> Path:
    """Write a config without the user's address."""
    config = tmp_path / "benchmark.toml"
    config.write_text("\n".join([f'out = "{tmp_path}/run"', *lines, "[user]", 'model = "player"', ""]))
    return config


def evaluate_with_user(name: str, config: Path, agent: ScriptedEndpoint, user: ScriptedEndpoint, *rest: str) -> int:
    return main(["evaluate", name, str(config), "--url", agent.url, f"user.url={user.url}", *rest])
