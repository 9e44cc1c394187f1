"""A harness that writes down all that it sees, in its build, its import and its run: it sees no key and no file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from astra_jax.benchmarks import harnesses, managed_environment
from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.managed_environment import managed_environment as environment_of
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.test_managed_environment import wheel

KEYS = ("OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY", "ASTRA_SERVE_KEY", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN")
SECRETS = (".netrc", ".config/pip/pip.conf", ".cache/huggingface/token", ".ssh/id_rsa", ".gitconfig")
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
BACKEND = """
import spy_of_build, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(f'{folder}/tau2-0.2.0-py3-none-any.whl', 'w') as file:
        file.writestr('tau2/__init__.py', '')
        file.writestr('tau2/cli.py', open('src/tau2/cli.py').read())
        file.writestr('tau2-0.2.0.dist-info/METADATA', 'Metadata-Version: 2.1\\nName: tau2\\nVersion: 0.2.0\\n')
        file.writestr('tau2-0.2.0.dist-info/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')
        file.writestr('tau2-0.2.0.dist-info/entry_points.txt', '[console_scripts]\\ntau2 = tau2.cli:main\\n')
        file.writestr('tau2-0.2.0.dist-info/RECORD', '')
    return 'tau2-0.2.0-py3-none-any.whl'
"""


@pytest.fixture
def spy(tmp_path, monkeypatch):
    """The source of a spy, by the place that it is put in, in a machine full of canaries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(managed_environment, "_LOCKS", tmp_path / "locks", raising=False)

    def source(where: str) -> str:
        names = {"HOME": str(home), "CHECKOUT": str(checkout), "DROP": str(drop), "WHERE": where}
        return "".join(f"{name} = {value!r}\n" for name, value in names.items()) + SPY

    return source


def lock(tmp_path: Path, name: str, path: Path) -> None:
    package, version = path.name.split("-")[:2]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    (tmp_path / "locks" / f"{name}.txt").write_text(f"{package}=={version} --hash=sha256:{digest}\n")


def seen(tmp_path: Path) -> list[Path]:
    """The files in which a canary is, other than those that the test wrote."""
    found = []
    for top in ("drop", "cache", "run"):
        for folder, _, names in os.walk(tmp_path / top):
            paths = [Path(folder) / name for name in names]
            found += [
                path
                for path in paths
                if path.is_file() and not path.is_symlink() and b"canary-of-a-key" in path.read_bytes()
            ]
    return found


async def run_program(environment, command: list[str], tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir()
    await run_harness(command, folder=folder, log=folder / "log", variables={}, readable=[environment.folder])
    return (folder / "log").read_text()


def git(source: Path, *arguments: str) -> None:
    command = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, check=True, env={"PATH": os.environ["PATH"]})


def of_a_checkout(tmp_path: Path, spy, *, commits: bool) -> None:
    """Lay a checkout whose build, filter of git, import and program are spies, with keys of the user's beside it."""
    checkout = tmp_path / "checkout"
    for folder in ("src/tau2", "data/tau2"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "pyproject.toml").write_text(
        '[project]\nname = "tau2"\nversion = "0.2.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    (checkout / "backend.py").write_text(BACKEND)
    (checkout / "spy_of_build.py").write_text(spy("build"))
    (checkout / "setup.py").write_text(spy("setup"))
    (checkout / "src" / "tau2" / "__init__.py").touch()
    (checkout / "src" / "tau2" / "cli.py").write_text(
        f"SOURCE = {spy('import')!r}\nexec(SOURCE)\n"
        "def main():\n    exec(SOURCE)\n    print('program ran')\nif __name__ == '__main__':\n    main()\n"
    )
    (checkout / "data" / "tau2" / "tasks.json").write_text("[]")
    (checkout / "filter.py").write_text(spy("filter"))
    (checkout / ".gitattributes").write_text("*.json filter=spy\n")
    if commits:
        git(checkout, "init", "-q")
        git(checkout, "add", ".")
        git(checkout, "commit", "-qm", "one")
        command = f"{os.path.realpath(sys.executable)} {checkout}/filter.py >/dev/null; cat"
        git(checkout, "config", "filter.spy.smudge", command)
        git(checkout, "config", "core.fsmonitor", command)
    (checkout / ".env").write_text("KEY=canary-of-a-key")
    (checkout / "data" / "tau2" / "link").symlink_to(tmp_path / "home" / ".netrc")


@pytest.mark.parametrize("commits", [True, False], ids=["of git", "of no git"])
async def test_a_checkout_s_build_import_and_program_see_no_canary(tmp_path, spy, commits, capfd):
    of_a_checkout(tmp_path, spy, commits=commits)
    lock(tmp_path, "tau2", wheel(tmp_path / "wheels", "litellm", "1.80.15"))
    code = await in_a_thread(["evaluate", "setup", "tau2", "--source", str(tmp_path / "checkout")])
    said = capfd.readouterr()
    assert (code, said.err) == (0, "")
    environment = environment_of(harnesses.TAU2_HARNESS)
    printed = await run_program(environment, [str(environment.program("tau2")), "run"], tmp_path)
    assert "spy in import" in printed
    assert "program ran" in printed
    assert (environment.folder / "data" / "tau2" / "tasks.json").read_text() == "[]"
    assert seen(tmp_path) == []
    assert "canary-of-a-key" not in f"{said} {printed}"
    assert list((tmp_path / "drop").iterdir()) == []


async def test_a_package_s_start_import_and_program_see_no_canary(tmp_path, spy, capfd, monkeypatch):
    path = wheel(tmp_path / "wheels", "toy_harness", "1.2", text=spy("import"), starts=spy("start"))
    monkeypatch.setitem(harnesses.HARNESSES, "bfcl", harnesses.Harness("toy", "toy-harness", "1.2", "toy_harness"))
    lock(tmp_path, "toy", path)
    code = await in_a_thread(["evaluate", "setup", "bfcl"])
    said = capfd.readouterr()
    assert (code, said.err) == (0, "")
    environment = environment_of(harnesses.HARNESSES["bfcl"])
    printed = await run_program(environment, [str(environment.program("python")), "-m", "toy_harness"], tmp_path)
    assert "spy in start" in printed
    assert "spy in import" in printed
    assert seen(tmp_path) == []
    assert "canary-of-a-key" not in f"{said} {printed}"
    assert list((tmp_path / "drop").iterdir()) == []


async def in_a_thread(arguments: list[str]) -> int:
    return await asyncio.to_thread(main, arguments)
