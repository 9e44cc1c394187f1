"""Packages of a folder: tools import and read them, change none of them, and reach no other file."""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandbox.client import SandboxClient
from sandbox.errors import RefusedToStart
from sandbox.isolation import readable_paths
from sandbox.jail import landlock
from sandbox.packages import find_packages
from sandbox.protocol import Limits
from tests.sandbox.services import DOCKER_REFUSES, ROOT, altered, contained, own, refusal, served, x86_only

KITES = "import strings_of_kites\nfrom importlib.metadata import version\nSPAN = strings_of_kites.LENGTH * 2\n"


def distribution(folder: Path, name: str, files: Mapping[str, str], *, version: str = "1.5") -> None:
    """A real one, as an installer leaves it."""
    metadata = f"{name.replace('-', '_')}-{version}.dist-info"
    contents = {**files, f"{metadata}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\n"}
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    (folder / metadata / "RECORD").write_text("".join(f"{path},,\n" for path in contents))


@pytest.fixture(scope="session")
def shelf():
    """A folder with a copy of numpy, and with kites, which needs strings and has a part in a shared folder."""
    with tempfile.TemporaryDirectory(prefix="shelf-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # every user may read
        fill(folder)
        installed = Path(importlib.metadata.distribution("numpy").locate_file(""))
        for path in installed.glob("numpy*"):
            shutil.copytree(path, folder / path.name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        yield folder


def fill(folder: Path) -> None:
    shared = {"toys/kites/__init__.py": "COLOR = 'red'\n", "toys/kites/tails.py": "LENGTH = 7\n"}
    distribution(folder, "Kites", {"kites/__init__.py": KITES, "kites/data.txt": "sable", **shared})
    distribution(folder, "strings", {"strings_of_kites.py": "LENGTH = 4\n"})
    distribution(folder, "impostor", {"json/__init__.py": "raise OSError('of the package')", "plain.py": ""})


@pytest.fixture(scope="module", params=["namespaces", pytest.param("landlock", marks=x86_only)])
def kites(shelf, request):
    """A service whose tools may import kites and numpy, in each tier."""
    refused = DOCKER_REFUSES if request.param == "landlock" else None
    with served(**contained("--packages", str(shelf), refused=refused)) as (url, _), SandboxClient(url) as client:
        health = client.health()
        assert health["tier"] == request.param
        numpy = __import__("numpy").__version__
        assert health["packages"]["versions"] == {"impostor": "1.5", "kites": "1.5", "numpy": numpy, "strings": "1.5"}
        assert health["packages"]["modules"]["kites"] == ["kites", "toys"]
        yield client


def value(client: SandboxClient, *lines: str, seed: int = 0, limits: Limits | None = None) -> object:
    """Return the value of a tool of these lines, or the kind and message of its error."""
    source = "\n".join(["def f():", *(f"    {line}" for line in lines)])
    reply = client.execute(source, "f", {}, seed=seed, limits=limits or Limits(wall_seconds=30))
    return reply.value if reply.error is None else f"{reply.error.kind}: {reply.error.message}"


def test_a_tool_imports_modules_of_the_folder(kites):
    assert value(kites, "import kites, strings_of_kites", "return [kites.SPAN, strings_of_kites.LENGTH]") == [8, 4]
    assert value(kites, "from toys.kites import tails", "return tails.LENGTH") == 7
    assert value(kites, "import numpy", "return float(numpy.linalg.det(2 * numpy.eye(2)))") == pytest.approx(4)
    assert value(kites, "from importlib.metadata import version", "return version('KITES')") == "1.5"
    assert value(kites, "from importlib import resources", "return resources.read_text('kites', 'data.txt')") == "sable"


def test_nothing_else_can_be_imported_or_read(kites, shelf):
    for module in ("jax", "astra_jax", "synthesis", "pydantic", "pip"):
        found = str(value(kites, f"import {module}"))
        assert found.startswith("exception: ModuleNotFoundError: No module named"), found
    # No package takes the place of a module of the standard library.
    assert value(kites, "import json", "return json.dumps([1])") == "[1]"
    lines = ["import os, kites", "return sorted(os.listdir(os.path.dirname(os.path.dirname(kites.__file__))))"]
    assert value(kites, *lines) == sorted(path.name for path in shelf.iterdir())
    assert str(value(kites, f"open({str(ROOT / 'sandbox' / 'server.py')!r})")).startswith("forbidden")


@pytest.mark.parametrize(
    "attempt",
    [
        "kites.version.__globals__['os'].execv('/bin/sh', ['sh', '-c', 'exit'])",
        "numpy.fromfile('/etc/passwd', dtype=numpy.uint8)",
        "numpy.memmap('/etc/passwd', mode='r')",
        "numpy.lib._npyio_impl.os.listdir('/home')",
        "numpy.save(os.path.dirname(numpy.__file__) + '/escape.npy', numpy.ones(1))",
        "open(kites.__file__, 'a')",
        "numpy.ctypeslib.ctypes.CDLL(None).fork() == -1 and os.listdir('/home')",
        "numpy.load(__import__('io').BytesIO(pickled), allow_pickle=True)",
    ],
)
def test_the_modules_of_a_package_are_no_way_out(kites, attempt):
    lines = ["import kites, numpy, numpy.ctypeslib, os", r"pickled = b'\x80\x04\x8c\x05posix\x8c\x04fork\x93)R.'"]
    found = str(value(kites, *lines, attempt, "return 'out'"))
    # numpy hides the error of unpickling: here it is the fork that the kernel refused.
    refused = ("forbidden", "exception: FileNotFoundError", "exception: UnpicklingError: Failed to interpret file")
    assert found.startswith(refused), found


def test_numbers_of_chance_follow_from_the_seed(kites):
    lines = ["import numpy, random", "chance = numpy.random.default_rng()"]
    drawn = "return [float(chance.random()), float(numpy.random.rand()), random.random()]"
    first, again, other = (value(kites, *lines, drawn, seed=seed) for seed in (3, 3, 2**62 + 3))
    assert first == again
    assert not set(first) & set(other)
    assert len(set(first)) == 3
    # The same in every worker, and on every machine.
    assert first[1] == random.Random(3 + (2 << 64)).random()


def test_memory_of_a_package_counts_for_no_call(kites):
    small = Limits(wall_seconds=30, memory_bytes=8 << 20)
    lines = ["import numpy", "return float(numpy.ones(1000).sum())"]
    assert value(kites, *lines, limits=small) == 1000.0
    assert str(value(kites, "import numpy", "numpy.ones(1 << 22)", limits=small)).startswith("memory")
    # A process that ends at once is not thought to have died for want of memory, since it has a package's in it.
    assert str(value(kites, "import os", "os._exit(1)", limits=Limits(memory_bytes=32 << 20))).startswith("crashed")


def test_numeric_libraries_have_one_thread_and_the_tool_no_environment(kites):
    lines = ["import os, numpy, threading", "big = numpy.ones((600, 600))", "total = float((big @ big).sum())"]
    assert value(kites, *lines, "return [total, dict(os.environ), threading.active_count()]") == [600.0**3, {}, 1]


# A folder that cannot be had is refused in one line.


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (None, "holds no package; make it with `pip install --target"),
        ("import ball\n", "ModuleNotFoundError: No module named 'ball'; install its dependencies into"),
        ("import os\nos._exit(7)\n", "a process that imported the packages of .* ended: exit status 7"),
    ],
)
def test_a_folder_that_cannot_be_had_is_told_in_one_line(tmp_path, files, line):
    if files is not None:
        distribution(tmp_path, "lonely", {"lonely.py": files})
    with pytest.raises(RefusedToStart, match=line) as raised:
        find_packages(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("code", "mode", "words"),
    [
        ("", 0o700, "in the tier `namespaces`: .* PermissionError"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n",
            0o755,
            "odd starts threads when it is imported",
        ),
        # It cannot be used in a jail, and no weaker tier is tried for its sake.
        ("import os\nif os.getuid(): open('/etc/hostname')\n", 0o755, "in the tier `namespaces`: .* FileNotFoundError"),
    ],
)
def test_a_package_that_a_jail_cannot_load_stops_the_start(tmp_path, code, mode, words):
    distribution(tmp_path, "odd", {"odd.py": code})
    tmp_path.chmod(mode)
    log = refusal(**own("--packages", str(tmp_path)))
    assert re.search(f"refuses to start: .*{words}", log)


def test_a_folder_that_tools_may_change_is_found_by_the_self_test(tmp_path):
    old = "linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags | locked"
    new = "linux.MS_REMOUNT | linux.MS_BIND | ('/packages' not in target and linux.MS_RDONLY) | flags | locked"
    altered(tmp_path, "jail/launcher.py", old, new)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    fill(shelf)
    for path in (shelf, *shelf.rglob("*")):
        path.chmod(0o777)
    assert "tools can import kites and not change it: expected the value []" in refusal(
        **own("--packages", str(shelf), root=tmp_path)
    )


@pytest.mark.skipif(landlock.version() == 0, reason="this kernel has no Landlock")
def test_packages_in_the_interpreters_own_folder_are_not_read_with_the_standard_library(tmp_path):
    for name in ("json", "site-packages/jax"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("x = 1\n")
    (tmp_path / "os.py").write_text("x = 1\n")
    listed, readable = readable_paths(str(tmp_path), [])
    # A process of its own: rules are for ever, and a process with JAX must not fork.
    program = f"""
import json, os
from sandbox.jail import landlock, linux
rules = landlock.ruleset("landlock", {readable!r}, {listed!r})
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
landlock.enforcer(rules)()
found = [sorted(os.listdir({str(tmp_path)!r}))]
for name in ("json/__init__.py", "os.py", "site-packages/jax/__init__.py"):
    try:
        os.close(os.open({str(tmp_path)!r} + "/" + name, os.O_RDONLY))
        found.append(True)
    except PermissionError:
        found.append(False)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["json", "os.py", "site-packages"], True, True, False]
