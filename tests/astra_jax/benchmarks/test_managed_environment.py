"""The environment of a harness: made once, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from astra_jax.benchmarks import harnesses, managed_environment
from astra_jax.benchmarks.harnesses import HARNESSES, Harness
from astra_jax.benchmarks.managed_environment import HarnessMissing, environment_folder, set_up
from astra_jax.cli.command import main

HARNESS = Harness("toy", "toy-harness", "1.2", "toy_harness")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Where the toy's environment belongs; its lock is a file of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "toy.txt").touch()
    monkeypatch.setattr(managed_environment, "_LOCKS", tmp_path / "locks", raising=False)
    return tmp_path / "astra-jax" / "harnesses" / "toy"


@pytest.fixture
def steps(monkeypatch, cache):
    """The commands of a set-up, without running them; the step of the number in it fails."""
    ran: list[list[str]] = []

    def run(command, *rest):
        rest = [each for each in rest if isinstance(each, str)]
        ran.append(command)
        (cache / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        (cache / f"step{len(ran)}").touch()
        if len(ran) == fails[0]:
            raise HarnessMissing(f"{rest[-2]}: no message; {rest[-1]}")

    fails = [0]
    monkeypatch.setattr(managed_environment, "_run", run)
    monkeypatch.setattr(managed_environment, "_confined", run)
    run.ran, run.fails = ran, fails
    return run


def test_it_is_made_once(steps, cache):
    environment, is_new = set_up(HARNESS)
    assert is_new
    assert environment.folder == cache
    assert {"--no-deps", "--require-hashes", "--only-binary"} < set(steps.ran[1])
    assert steps.ran[2][-1] == "import toy_harness"
    made = len(steps.ran)
    again, is_new = set_up(HARNESS)
    assert not is_new
    assert again == environment
    assert len(steps.ran) == made
    assert not cache.with_name("toy.lock").exists()


def test_a_harness_without_wheels_for_this_python_is_refused_in_one_line(steps, cache):
    with pytest.raises(
        HarnessMissing, match=r"^toy-harness 1\.2 has no wheels for Python 3\.1\d; .* with Python 3\.10 "
    ):
        set_up(replace(HARNESS, newest_python=(3, 10)))
    assert (steps.ran, cache.exists()) == ([], False)
    assert set_up(replace(HARNESS, newest_python=sys.version_info[:2]))[1]


@pytest.mark.parametrize("step", [1, 2, 3])
def test_one_that_fails_anywhere_leaves_nothing(steps, cache, step):
    steps.fails[0] = step
    with pytest.raises(HarnessMissing):
        set_up(HARNESS)
    assert not cache.exists()


@pytest.mark.parametrize("left", ["half made", "another version", "another lock", "damaged"])
def test_what_is_not_whole_is_made_anew(steps, cache, tmp_path, left):
    if left == "another version":
        set_up(Harness("toy", "toy-harness", "1.1", "toy_harness"))
    if left == "another lock":
        set_up(HARNESS)
        (tmp_path / "locks" / "toy.txt").write_text("# one line more\n")
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "remnant").touch()
    if left == "damaged":
        (cache / "whole.json").write_text('{"reci')
    with pytest.raises(HarnessMissing, match="make it by `astra evaluate setup toy`"):
        managed_environment.managed_environment(HARNESS)
    assert set_up(HARNESS)[1]
    assert not (cache / "remnant").exists()


@pytest.mark.parametrize("harness", HARNESSES.values(), ids=list(HARNESSES))
def test_a_lock_has_a_version_and_digests_of_all_that_is_asked_for_and_no_address(harness):
    folder = Path(harnesses.__file__).with_name("locks")
    lock = (folder / f"{harness.name}.txt").read_text()
    requirements = [line for line in lock.replace("\\\n", " ").splitlines() if line]
    assert "://" not in lock
    assert all("==" in line and "--hash=sha256:" in line for line in requirements)
    locked = {line.partition("==")[0].replace("_", "-").lower() for line in requirements}
    asked = [line for line in (folder / f"{harness.name}.in").read_text().splitlines() if not line.startswith("#")]
    for line in asked:
        name, *versions = line.replace("_", "-").partition("==")
        assert name.partition("<")[0].partition(">")[0].lower() in locked, line
        assert not versions[1] or line.lower().replace("_", "-") in lock.replace("_", "-"), line
    if harness.source is None:
        assert f"{harness.package}=={harness.version} " in lock


def lock_of(tmp_path: Path, *packages: Path) -> None:
    """Write the toy's lock of these files of packages, of which pip finds nothing else."""
    lines = []
    for path in packages:
        name, version = path.name.removesuffix(".tar.gz").split("-")[:2]
        lines.append(f"{name}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n")
    (tmp_path / "locks" / "toy.txt").write_text("".join(lines))


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """The only folder in which pip looks."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setitem(harnesses.HARNESSES, "bfcl", HARNESS)
    return tmp_path / "wheels"


@pytest.mark.slow
def test_real_packages_are_installed_and_one_that_is_missing_is_one_line(tmp_path, capsys, cache, wheels):
    packages = [wheel(wheels, "toy_harness", "1.2", needs="something-that-is-never-installed")]
    packages.append(wheel(wheels, "toy_needs", "3"))
    lock_of(tmp_path, *packages)
    packages[1].rename(tmp_path / packages[1].name)
    assert main(["evaluate", "setup", "bfcl"]) == 1
    error = capsys.readouterr().err
    assert "pip cannot install the wheels of toy.txt: ERROR" in error
    assert "check pip's index" in error
    assert error.count("\n") == 1
    assert not cache.exists()
    (tmp_path / packages[1].name).rename(packages[1])
    assert main(["evaluate", "setup", "bfcl"]) == 0
    assert capsys.readouterr().out == f"setup: toy-harness 1.2 is made -> {environment_folder(HARNESS)}\n"
    assert main(["evaluate", "setup", "bfcl"]) == 0
    assert "was there" in capsys.readouterr().out
    assert ["toy_needs", "3"] in json.loads((cache / "whole.json").read_text())["packages"]


@pytest.mark.slow
def test_a_harness_may_write_into_the_folder_that_its_variable_names_while_it_is_imported(tmp_path, cache, wheels):
    text = "import os\nos.mkdir(os.environ.get('TOY_ROOT', os.path.dirname(__file__)) + '/result')\n"
    lock_of(tmp_path, wheel(wheels, "toy_harness", "1.2", text=text))
    with pytest.raises(HarnessMissing, match="Read-only file system"):
        set_up(HARNESS)
    assert set_up(replace(HARNESS, writes_to="TOY_ROOT"))[1]
    assert not list(cache.rglob("result"))


@pytest.mark.slow
def test_a_package_of_another_digest_and_one_without_a_wheel_are_refused(tmp_path, capsys, cache, wheels):
    lock_of(tmp_path, wheel(wheels, "toy_harness", "1.2"))
    wheel(wheels, "toy_harness", "1.2", text="changed = True")
    assert main(["evaluate", "setup", "bfcl"]) == 1
    assert "DO NOT MATCH THE HASHES" in capsys.readouterr().err
    for path in wheels.iterdir():
        path.unlink()
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with tarfile.open(wheels / "toy_harness-1.2.tar.gz", "w:gz") as file:
        file.add(tmp_path / "setup.py", "toy_harness-1.2/setup.py")
    lock_of(tmp_path, wheels / "toy_harness-1.2.tar.gz")
    assert main(["evaluate", "setup", "bfcl"]) == 1
    assert "ERROR" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert not cache.exists()


def wheel(folder: Path, module: str, version: str, needs: str = "", text: str = "", starts: str = "") -> Path:
    """Write a package of one module; `starts` is run wherever Python starts with it."""
    info, path = f"{module}-{version}.dist-info", folder / f"{module}-{version}-py3-none-any.whl"
    metadata = f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {needs}\n" if needs else ""
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{module}.py", text)
        if starts:
            file.writestr(f"{module}.pth", f"import sys; exec({starts!r})\n")
        file.writestr(f"{info}/METADATA", metadata)
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def checkout(folder: Path) -> Harness:
    """Make a checkout that was changed since its tag; return a harness of the tag."""
    for name in ("src/toy", "data"):
        (folder / name).mkdir(parents=True)
    (folder / "src" / "toy" / "main.py").write_text("import google.generativeai\nfrom vllm import LLM\n")
    (folder / "data" / "tasks.json").write_text("[]")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v1"]):
        git(folder, *command)
    (folder / ".env").write_text("KEY=secret")
    (folder / "src" / "toy" / "main.py").write_text("changed since")
    more = {"modules": "src", "program": ("toy", "toy.main")}
    stubs = (("vllm", ("LLM",)), ("google.generativeai", ()))
    return Harness("toy", "toy", "1", "toy.main", source="a toy", commit="v1", stubs=stubs, **more)


def test_a_checkout_brings_the_files_of_its_tag_and_nothing_that_lies_beside_them(tmp_path, monkeypatch):
    run, source = managed_environment._run, tmp_path / "checkout"
    harness = checkout(source)
    # The lock is empty, so that pip is not asked for anything.
    monkeypatch.setattr(managed_environment, "_run", lambda command, *rest: "venv" in command and run(command, *rest))
    environment, is_new = set_up(harness, source)  # that it imports was tried, with its stubs
    assert is_new
    assert (environment.document.version, environment.document.commit) == ("1", git(source, "rev-parse", "v1"))
    assert sorted(path.name for path in environment.source().iterdir()) == ["data", "src"]
    assert "LLM" in (environment.source() / "src" / "toy" / "main.py").read_text()
    assert "-m toy.main" in environment.program("toy").read_text()
    assert (environment.folder / "data" / "tasks.json").read_text() == "[]"
    assert not set_up(harness, source)[1]
    git(source, "commit", "-q", "--allow-empty", "-m", "two")
    git(source, "tag", "-f", "v1")
    environment, is_new = set_up(harness, source)
    assert (is_new, environment.document.commit) == (True, git(source, "rev-parse", "HEAD"))


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("acebench", "ACEBench/ACEBench) that has its commit 56dd66c of 2025-10-29"),
        ("tau2", "sierra-research/tau2-bench) that has its tag v0.2.0"),
    ],
)
def test_a_checkout_of_something_else_is_one_line_with_what_to_get(tmp_path, capsys, name, what):
    checkout(tmp_path / "another")
    for source, found in (
        (["--source", str(tmp_path / "another")], f"{tmp_path}/another is not a checkout of"),
        (["--source", str(tmp_path / "locks")], f"{tmp_path}/locks is not a checkout of"),
        ([], "is needed; get one and name it by"),
    ):
        assert main(["evaluate", "setup", name, *source]) == 1
        error = capsys.readouterr().err
        assert what in error
        assert f"{found}" in error
        assert error.count("\n") == 1
    assert main(["evaluate", "setup", "bfcl", "--source", str(tmp_path)]) == 2
