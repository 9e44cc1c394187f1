"""A harness that writes down all that it sees, in its build, its import and its run: it sees no key and no file."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from pathlib import Path

import pytest

from astra_jax.benchmarks import harnesses, managed_environment
from astra_jax.benchmarks.harness_process import run_harness
from astra_jax.benchmarks.managed_environment import managed_environment as environment_of
from astra_jax.cli.command import main
from tests.astra_jax.benchmarks.test_managed_environment import git, wheel

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
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    for folder in ("wheels", "locks"):
        (tmp_path / folder).mkdir()
    monkeypatch.setattr(managed_environment, "_LOCKS", tmp_path / "locks")

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
    paths = [path for top in ("drop", "cache", "run") for path in (tmp_path / top).rglob("*")]
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    return [path for path in files if b"canary-of-a-key" in path.read_bytes()]


async def run_program(environment, command: list[str], tmp_path: Path) -> str:
    folder = tmp_path / "run"
    folder.mkdir()
    await run_harness(command, folder=folder, log=folder / "log", variables={}, readable=[environment.folder])
    return (folder / "log").read_text()


def of_a_checkout(tmp_path: Path, spy) -> None:
    """Lay a checkout whose build, filter of git, import and program are spies, with keys of the user's beside it."""
    checkout = tmp_path / "checkout"
    for folder in ("src/tau2", "data/tau2"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "pyproject.toml").write_text(
        '[project]\nname = "tau2"\nversion = "0.2.0"\n'
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    for name, where in (("backend.py", "build"), ("setup.py", "setup"), ("filter.py", "filter")):
        (checkout / name).write_text(spy(where))
    (checkout / "src" / "tau2" / "__init__.py").touch()
    (checkout / "src" / "tau2" / "cli.py").write_text(
        f"SOURCE = {spy('import')!r}\nexec(SOURCE)\n"
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
    (checkout / "data" / "tau2" / "link").symlink_to(tmp_path / "home" / ".netrc")


async def set_up(capfd, *arguments: str) -> str:
    """The output of a set-up that ends well."""
    code = await asyncio.to_thread(main, ["evaluate", "setup", *arguments])
    said = capfd.readouterr()
    assert (code, said.err) == (0, "")
    return said.out


async def test_a_checkout_s_build_import_and_program_see_no_canary(tmp_path, spy, capfd):
    of_a_checkout(tmp_path, spy)
    lock(tmp_path, "tau2", wheel(tmp_path / "wheels", "litellm", "1.80.15"))
    said = await set_up(capfd, "tau2", "--source", str(tmp_path / "checkout"))
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
    said = await set_up(capfd, "bfcl")
    environment = environment_of(harnesses.HARNESSES["bfcl"])
    printed = await run_program(environment, [str(environment.program("python")), "-m", "toy_harness"], tmp_path)
    assert "spy in start" in printed
    assert "spy in import" in printed
    assert seen(tmp_path) == []
    assert "canary-of-a-key" not in f"{said} {printed}"
    assert list((tmp_path / "drop").iterdir()) == []
