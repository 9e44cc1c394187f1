"""The environment of a harness: made once, whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from astra_jax.benchmarks import harnesses, managed_environment
from astra_jax.benchmarks.harnesses import Harness
from astra_jax.benchmarks.managed_environment import HarnessMissing, environment_folder, set_up
from astra_jax.cli.command import main

HARNESS = Harness("toy", "toy-harness", "1.2", ("toy-needs==3",), "toy_harness")
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "astra-jax" / "harnesses" / "toy"


@pytest.fixture
def steps(monkeypatch, cache):
    """What a set-up runs, without running it; the step of the number in it fails."""
    ran: list[list[str]] = []

    def run(command, wanted, advice):
        ran.append(command)
        cache.mkdir(parents=True, exist_ok=True)
        (cache / f"step{len(ran)}").touch()
        if len(ran) == fails[0]:
            raise HarnessMissing(f"expected {wanted}, found: none; {advice}")
        return "[]"

    fails = [0]
    monkeypatch.setattr(managed_environment, "_run", run)
    run.ran, run.fails = ran, fails
    return run


def test_it_is_made_once(steps, cache):
    environment, is_new = set_up(HARNESS)
    assert is_new
    assert environment.folder == cache
    assert steps.ran[1][-2:] == ["--no-deps", "toy-harness==1.2"]
    assert steps.ran[2][-1] == "toy-needs==3"
    made = len(steps.ran)
    again, is_new = set_up(HARNESS)
    assert not is_new
    assert again == environment
    assert len(steps.ran) == made
    assert not cache.with_name("toy.lock").exists()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5])
def test_one_that_fails_anywhere_leaves_nothing(steps, cache, step):
    steps.fails[0] = step
    with pytest.raises(HarnessMissing):
        set_up(HARNESS)
    assert not cache.exists()


@pytest.mark.parametrize("left", ["half made", "another version", "damaged"])
def test_what_is_not_whole_is_made_anew(steps, cache, left):
    if left == "another version":
        set_up(Harness("toy", "toy-harness", "1.1", (), "toy_harness"))
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "remnant").touch()
    if left == "damaged":
        (cache / "whole.json").write_text('{"reci')
    with pytest.raises(HarnessMissing, match="make it by `astra evaluate setup toy`"):
        managed_environment.managed_environment(HARNESS)
    assert set_up(HARNESS)[1]
    assert not (cache / "remnant").exists()


@pytest.mark.slow
def test_real_packages_are_installed_and_one_that_is_missing_is_one_line(tmp_path, monkeypatch, capsys, cache):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel(wheels, "toy_harness", "1.2", needs="something-that-is-never-installed")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setitem(harnesses.HARNESSES, "bfcl", HARNESS)
    assert main(["evaluate", "setup", "bfcl"]) == 1
    error = capsys.readouterr().err
    assert "expected what toy-harness==1.2 needs, found: ERROR" in error
    assert "install it with pip into" in error
    assert error.count("\n") == 1
    assert not cache.exists()
    wheel(wheels, "toy_needs", "3")
    assert main(["evaluate", "setup", "bfcl"]) == 0
    assert capsys.readouterr().out == f"setup: toy-harness 1.2 is made -> {environment_folder(HARNESS)}\n"
    assert main(["evaluate", "setup", "bfcl"]) == 0
    assert "was there" in capsys.readouterr().out
    packages = json.loads((cache / "whole.json").read_text())["packages"]
    assert {"name": "toy-needs", "version": "3"} in [
        {**each, "name": each["name"].replace("_", "-")} for each in packages
    ]


def wheel(folder: Path, module: str, version: str, needs: str = "") -> None:
    """Write a package of one empty module."""
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as file:
        file.writestr(f"{module}.py", "")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def test_a_driver_of_a_harness_starts_without_jax_and_without_the_harness():
    script = (
        "import sys\n"
        "import astra_jax.benchmarks.bfcl, astra_jax.benchmarks.aime, astra_jax.benchmarks.comparison\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'jax', 'transformers', 'bfcl_eval', 'tau2'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, env={**os.environ}, cwd=ROOT
    )
    assert done.stdout == "[]\n", done.stderr
