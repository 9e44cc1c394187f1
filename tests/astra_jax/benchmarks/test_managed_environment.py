"""The environment of a harness: made once, whole or not at all, and no code in it sees a key or a file of the user."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from astra_jax.benchmarks import harnesses, managed_environment
from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.harnesses import HARNESSES, Harness
from astra_jax.benchmarks.managed_environment import HarnessMissing, set_up
from astra_jax.benchmarks.managed_environment import managed_environment as environment_of
from astra_jax.cli.command import main

HARNESS = Harness("toy", "toy-harness", "1.2", "toy_harness", writes_to="TOY_ROOT")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """Where the toy's environment belongs; its lock is a file of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "toy.txt").touch()
    monkeypatch.setattr(managed_environment, "_LOCKS", tmp_path / "locks")
    return tmp_path / "cache" / "astra-jax" / "harnesses" / "toy"


@pytest.fixture
def steps(monkeypatch, cache):
    """The commands of a set-up, without running them; the step of the number in it fails."""
    ran: list[tuple] = []

    def run(command, *rest):
        ran.append((command, rest[-1]))
        (cache / "lib" / "python3" / "site-packages").mkdir(parents=True, exist_ok=True)
        (cache / f"step{len(ran)}").touch()
        if len(ran) == fails[0]:
            raise HarnessMissing("no message")

    fails = [0]
    monkeypatch.setattr(managed_environment, "_run", run)
    monkeypatch.setattr(managed_environment, "_confined", run)
    run.ran, run.fails = ran, fails
    return run


def test_it_is_made_once(steps, cache):
    environment, is_new = set_up(HARNESS)
    assert (is_new, environment.folder) == (True, cache)
    assert {"--no-deps", "--require-hashes", "--only-binary"} < set(steps.ran[1][0])
    assert (steps.ran[2][0][-1], steps.ran[2][1]) == ("import toy_harness", {"TOY_ROOT": "."})
    assert set_up(HARNESS) == (environment, False)
    assert len(steps.ran) == 3
    assert not cache.with_name("toy.lock").exists()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_one_that_fails_anywhere_leaves_nothing(steps, cache, step):
    steps.fails[0] = step
    with pytest.raises(HarnessMissing):
        set_up(HARNESS)
    assert not cache.exists()


@pytest.mark.parametrize("left", ["half made", "another version", "another lock", "damaged"])
def test_an_outdated_or_damaged_environment_is_made_anew(steps, cache, tmp_path, left):
    if left == "another version":
        set_up(replace(HARNESS, version="1.1"))
    if left == "another lock":
        set_up(HARNESS)
        (tmp_path / "locks" / "toy.txt").write_text("# one line more\n")
    cache.mkdir(parents=True, exist_ok=True)
    (cache / "remnant").touch()
    if left == "damaged":
        (cache / "whole.json").write_text('{"reci')
    with pytest.raises(HarnessMissing, match="make it by `astra evaluate setup toy`"):
        environment_of(HARNESS)
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


def lock_of(tmp_path: Path, name: str, package: Path) -> None:
    """Write a lock of one file of a package, of which pip finds nothing else."""
    project, version = package.name.removesuffix(".tar.gz").split("-")[:2]
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    (tmp_path / "locks" / f"{name}.txt").write_text(f"{project}=={version} --hash=sha256:{digest}\n")


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """The only folder in which pip looks."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    # Settings of a user who installs elsewhere.
    (tmp_path / "pip.conf").write_text(f"[install]\nuser = true\ntarget = {tmp_path}/elsewhere\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_PREFIX", str(tmp_path / "elsewhere"))
    monkeypatch.setitem(harnesses.HARNESSES, "bfcl", replace(HARNESS, writes_to=None))
    return tmp_path / "wheels"


def wheel(folder: Path, module: str, version: str, text: str = "", starts: str = "") -> Path:
    """Write a package of one module; `starts` is run wherever Python starts with it."""
    info, path = f"{module}-{version}.dist-info", folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{module}.py", text)
        if starts:
            file.writestr(f"{module}.pth", f"import sys; exec({starts!r})\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_a_package_of_another_digest_and_one_without_a_wheel_are_refused(tmp_path, capsys, cache, wheels):
    lock_of(tmp_path, "toy", wheel(wheels, "toy_harness", "1.2"))
    wheel(wheels, "toy_harness", "1.2", text="changed = True")
    assert main(["evaluate", "setup", "bfcl"]) == 1
    assert "DO NOT MATCH THE HASHES" in capsys.readouterr().err
    for path in wheels.iterdir():
        path.unlink()
    (tmp_path / "setup.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    with tarfile.open(wheels / "toy_harness-1.2.tar.gz", "w:gz") as file:
        file.add(tmp_path / "setup.py", "toy_harness-1.2/setup.py")
    lock_of(tmp_path, "toy", wheels / "toy_harness-1.2.tar.gz")
    assert main(["evaluate", "setup", "bfcl"]) == 1
    error = capsys.readouterr().err
    assert "pip cannot install the wheels of toy.txt: ERROR" in error
    assert "whether there are wheels for Python 3." in error
    assert error.count("\n") == 1
    assert not (tmp_path / "ran").exists()
    assert not cache.exists()


def test_another_checkout_is_one_line_that_names_the_right_one(tmp_path, capsys):
    git(tmp_path, "init", "-q", "another")
    for name, what in (
        ("acebench", "ACEBench/ACEBench) that has its commit 56dd66c of 2025-10-29"),
        ("tau2", "sierra-research/tau2-bench) that has its tag v0.2.0"),
    ):
        for source, found in (
            (["--source", str(tmp_path / "another")], f"{tmp_path}/another is not a checkout of"),
            (["--source", str(tmp_path / "locks")], f"{tmp_path}/locks is not a checkout of"),
            ([], "is needed; get one and name it by"),
        ):
            assert main(["evaluate", "setup", name, *source]) == 1
            error = capsys.readouterr().err
            assert (what in error, found in error, error.count("\n")) == (True, True, 1)
    assert main(["evaluate", "setup", "bfcl", "--source", str(tmp_path)]) == 2


def test_another_checkout_is_refused_although_an_environment_is_there(tmp_path, monkeypatch):
    monkeypatch.setattr(managed_environment, "managed_environment", lambda harness: None)
    with pytest.raises(HarnessMissing, match="locks is not a checkout of"):
        set_up(HARNESSES["tau2"], tmp_path / "locks")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "ASTRA_SERVE_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")
SECRETS = (".netrc", ".cache/huggingface/token", ".ssh/id_rsa", ".gitconfig")
SPY = """
import glob, os, sys
seen = [repr(dict(os.environ))]
files = glob.glob('/proc/*/environ')
for home in (HOME, os.path.expanduser('~'), CHECKOUT):
    files += [os.path.join(folder, name) for folder, _, names in os.walk(home) for name in names]
for path in files:
    try: seen.append(open(path, 'rb').read().decode(errors='replace'))
    except OSError: pass
print('spy in', WHERE, *seen)
for folder in (DROP, '.', os.path.dirname(os.path.abspath(sys.argv[0]))):
    try: open(f'{folder}/dropped-{WHERE}-{os.getpid()}', 'w').write('\\n'.join(seen))
    except OSError: pass
"""


@pytest.fixture
def spy(tmp_path, monkeypatch, wheels):
    """The source of a spy, by the place that it is put in, on a machine full of canaries."""
    home, drop, checkout = tmp_path / "home", tmp_path / "drop", tmp_path / "checkout"
    for folder in (home, drop, checkout):
        folder.mkdir()
    drop.chmod(0o777)
    for name in SECRETS:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("# canary-of-a-key\n")
    monkeypatch.setenv("HOME", str(home))
    for name in KEYS:
        monkeypatch.setenv(name, "canary-of-a-key")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:canary-of-a-key@127.0.0.1:9/simple")

    def source(where: str) -> str:
        names = {"HOME": str(home), "CHECKOUT": str(checkout), "DROP": str(drop), "WHERE": where}
        return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + SPY

    return source


async def spied_on(tmp_path: Path, capfd, arguments: list[str], harness: str, *command: str) -> str:
    """Set a harness up and run a program of it, which sees no canary; return the words of the program."""
    code = await asyncio.to_thread(main, ["evaluate", "setup", *arguments])
    said = capfd.readouterr()
    assert (code, said.err) == (0, "")
    environment, folder = environment_of(harnesses.HARNESSES[harness]), tmp_path / "run"
    folder.mkdir()
    program = [str(environment.program(command[0])), *command[1:]]
    await run_harness(program, folder=folder, log=folder / "log", variables={}, readable=[environment.folder])
    printed = (folder / "log").read_text()
    paths = [path for top in ("drop", "cache", "run") for path in (tmp_path / top).rglob("*")]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    assert [path for path in files if b"canary-of-a-key" in path.read_bytes()] == []
    assert "canary-of-a-key" not in f"{said} {printed}"
    assert list((tmp_path / "drop").iterdir()) == []
    return printed


@pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="Python before 3.11.4 unpacks no checkout")
async def test_a_checkout_brings_the_files_of_its_tag_and_its_code_sees_no_canary(
    tmp_path, spy, capfd, wheels, monkeypatch
):
    """Start of a package, and build, filter of git, import and program of the checkout are spies beside keys."""
    stubs = (("vllm", ("LLM",)), ("google.generativeai", ()))
    monkeypatch.setitem(harnesses.HARNESSES, "tau2", replace(HARNESSES["tau2"], stubs=stubs))
    checkout = tmp_path / "checkout"
    for folder in ("src/tau2", "data/tau2"):
        (checkout / folder).mkdir(parents=True)
    for name, where in (("setup.py", "setup"), ("filter.py", "filter")):
        (checkout / name).write_text(spy(where))
    (checkout / "src" / "tau2" / "__init__.py").touch()
    (checkout / "src" / "tau2" / "cli.py").write_text(
        f"import google.generativeai\nfrom vllm import LLM\nSOURCE = {spy('import')!r}\nexec(SOURCE)\n"
        "def main():\n    exec(SOURCE)\n    print('program ran')\nif __name__ == '__main__':\n    main()\n"
    )
    (checkout / "data" / "tau2" / "tasks.json").write_text("[]")
    (checkout / ".gitattributes").write_text("*.json filter=spy\n")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"], ["tag", "v0.2.0"]):
        git(checkout, *command)
    command = f"{os.path.realpath(sys.executable)} {checkout}/filter.py >/dev/null; cat"
    git(checkout, "config", "filter.spy.smudge", command)
    git(checkout, "config", "core.fsmonitor", command)
    (checkout / ".env").write_text("KEY=canary-of-a-key")
    (checkout / "src" / "tau2" / "cli.py").write_text("changed since")
    (checkout / "data" / "tau2" / "link").symlink_to(tmp_path / "home" / ".netrc")
    lock_of(tmp_path, "tau2", wheel(wheels, "litellm", "1.80.15", starts=spy("start")))
    printed = await spied_on(tmp_path, capfd, ["tau2", "--source", str(checkout)], "tau2", "tau2", "run")
    assert all(words in printed for words in ("spy in start", "spy in import", "program ran"))
    assert await asyncio.to_thread(main, ["evaluate", "setup", "tau2", "--source", str(checkout)]) == 0
    assert "tau2 0.2.0 was there" in capfd.readouterr().out
    environment = environment_of(HARNESSES["tau2"])
    assert environment.document.commit == git(checkout, "rev-parse", "v0.2.0")
    assert sorted(path.name for path in (environment.folder / "source").iterdir() if path.name[0] != ".") == [
        *("data", "filter.py", "setup.py", "src"),
    ]
    assert [path.name for path in (environment.folder / "data" / "tau2").iterdir()] == ["tasks.json"]


@pytest.mark.slow
async def test_a_package_s_start_import_and_program_see_no_canary(tmp_path, spy, capfd, wheels):
    lock_of(tmp_path, "toy", wheel(wheels, "toy_harness", "1.2", text=spy("import"), starts=spy("start")))
    printed = await spied_on(tmp_path, capfd, ["bfcl"], "bfcl", "python", "-m", "toy_harness")
    assert "spy in start" in printed
    assert "spy in import" in printed
