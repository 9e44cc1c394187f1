"""Packages that an operator lists: tools import them and what they need, read them alone, and reach no other file."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest

from sandbox.client import SandboxClient
from sandbox.isolation import JailedPython, _readable
from sandbox.jail import linux
from sandbox.local import local_sandbox
from sandbox.packages import NO_PACKAGES, PackageUnavailable, find_packages
from sandbox.protocol import Limits
from tests.sandbox.test_tiers import (
    DOCKER_REFUSES,
    environment,
    server,
    stop,
    url_of,
    world_readable_python,
    x86_only,
)

ROOT = Path(__file__).parents[2]
KITES = "import strings_of_kites\nfrom importlib.metadata import version\nSPAN = strings_of_kites.LENGTH * 2\n"


def distribution(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    *,
    requires: tuple[str, ...] = (),
    record: bool = True,
    version: str = "1.5",
) -> None:
    """A real one, as an installer leaves it."""
    metadata = f"{name.replace('-', '_')}-{version}.dist-info"
    heads = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
    contents = {
        **files,
        f"{metadata}/METADATA": "\n".join(["Metadata-Version: 2.1", *heads, "", ""]),
        f"{metadata}/direct_url.json": '{"url": "https://user:secret@example"}',
    }
    for path, text in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    if record:
        (folder / metadata / "RECORD").write_text("".join(f"{path},,\n" for path in contents))


@pytest.fixture(scope="session")
def shelf() -> Iterator[Path]:
    """Distributions that are installed together: kites needs strings; a third shares a folder with kites."""
    with tempfile.TemporaryDirectory(prefix="shelf-") as name:  # where every user may read
        Path(name).chmod(0o755)
        _fill(Path(name))
        yield Path(name)


def _fill(folder: Path) -> None:
    shared = {"toys/kites/__init__.py": "COLOR = 'red'\n", "toys/kites/tails.py": "LENGTH = 7\n"}
    distribution(
        folder, "Kites", {"kites/__init__.py": KITES, "kites/data.txt": "sable", **shared}, requires=("strings",)
    )
    distribution(folder, "strings", {"strings_of_kites.py": "LENGTH = 4\n"}, requires=("absent; extra == 'more'",))
    distribution(folder, "balls", {"balls/__init__.py": "", "toys/balls.py": "", "ball.py": "SECRET = 1\n"})


@pytest.fixture(scope="session", params=["before calls", "in calls"])
def kites(request: pytest.FixtureRequest, shelf: Path) -> Iterator[SandboxClient]:
    """A service whose tools may import kites and numpy."""
    options = ["--package", "kites", "--package", "numpy"] + (
        ["--lazy-packages"] if request.param == "in calls" else []
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(shelf), os.environ.get("PYTHONPATH", "")]))
        with local_sandbox(workers=1, options=tuple(options)) as url, SandboxClient(url) as client:
            assert client.health()["packages"]["loaded"] == request.param
            yield client


def value(client: SandboxClient, *lines: str, before: str = "", seed: int = 0, limits: Limits | None = None) -> object:
    """What a tool of these lines comes to; the kind and message of its error, where it has one."""
    source = "\n".join([before, "def f():", *(f"    {line}" for line in lines)])
    reply = client.execute(source, "f", {}, seed=seed, limits=limits or Limits(wall_seconds=30))
    return reply.value if reply.error is None else f"{reply.error.kind}: {reply.error.message}"


def test_a_tool_imports_what_is_listed_and_what_that_needs(kites: SandboxClient) -> None:
    assert value(kites, "import kites, strings_of_kites", "return [kites.SPAN, strings_of_kites.LENGTH]") == [8, 4]
    assert value(kites, "from toys.kites import tails", "return tails.LENGTH") == 7
    assert value(kites, "import numpy", "return float(numpy.linalg.det(2 * numpy.eye(2)))") == pytest.approx(4)
    assert value(kites, "from importlib.metadata import version", "return version('KITES')") == "1.5"
    assert value(kites, "from importlib import resources", "return resources.read_text('kites', 'data.txt')") == "sable"


@pytest.mark.parametrize("module", ["balls", "ball", "toys.balls", "jax", "astra_jax", "synthesis", "pydantic", "pip"])
def test_no_other_module_can_be_imported(kites: SandboxClient, module: str) -> None:
    found = str(value(kites, f"import {module}"))
    assert found.startswith("exception: ModuleNotFoundError: No module named"), found


def test_no_other_file_is_there(kites: SandboxClient, shelf: Path) -> None:
    reach = ["import os, kites", "folder = os.path.dirname(os.path.dirname(kites.__file__))"]
    shown = value(kites, *reach, "return sorted(os.listdir(folder) + os.listdir(folder + '/toys'))")
    assert {"kites", "numpy", "numpy.libs", "strings_of_kites.py", "toys"} <= set(shown)  # type: ignore[call-overload]
    assert not {"balls", "ball.py", "balls.py", "jax"} & set(shown)  # type: ignore[call-overload]
    assert value(kites, *reach, "return os.listdir(folder + '/Kites-1.5.dist-info')") == ["METADATA"]
    for path in (ROOT / "sandbox" / "server.py", shelf / "ball.py", shelf / "kites" / "__init__.py"):
        assert "FileNotFoundError" in str(value(kites, f"open({str(path)!r})"))


WRITES = {
    "content": "open(path, 'a')",
    "truncation": "os.truncate(path, 3)",
    "mode": "os.chmod(path, 0o777)",
    "times": "os.utime(path)",
    "a new file": "open(os.path.dirname(path) + '/new.py', 'w')",
    "removal": "os.remove(path)",
    "another name": "os.rename(path, path + '.old')",
    "byte code": "__import__('py_compile').compile(path, doraise=True)",
    "descriptor": "os.fchmod(os.open(path, os.O_RDONLY), 0o777)",
}


@pytest.mark.parametrize("attempt", WRITES)
def test_its_files_cannot_be_written(kites: SandboxClient, shelf: Path, attempt: str) -> None:
    before = sorted((str(path), path.stat().st_mtime_ns, path.stat().st_mode) for path in shelf.rglob("*"))
    found = value(kites, "import os, kites", "path = kites.__file__", WRITES[attempt], "return 'written'")
    assert str(found).startswith(("forbidden", "exception: PermissionError", "exception: OSError")), found
    assert sorted((str(path), path.stat().st_mtime_ns, path.stat().st_mode) for path in shelf.rglob("*")) == before


ATTACKS = {
    "the shell": "kites.version.__globals__['os'].execv('/bin/sh', ['sh', '-c', 'exit'])",
    "a process": "numpy.version and __import__('subprocess').run(['true'])",
    "the network": "__import__('socket').socket()",
    "the host's files": "numpy.fromfile('/etc/passwd', dtype=numpy.uint8)",
    "a mapping of the host's files": "numpy.memmap('/etc/passwd', mode='r')",
    "the host's folders": "numpy.lib._npyio_impl.os.listdir('/home')",
    "a file beside": "numpy.save(os.path.dirname(numpy.__file__) + '/escape.npy', numpy.ones(1))",
    "the network by a data source": "numpy.lib.npyio.DataSource('/tmp').open('http://127.0.0.1:1/x')",
    "C": "numpy.ctypeslib.ctypes.CDLL(None).fork() == -1 and os.listdir('/home')",
    "a pickle": r"numpy.load(__import__('io').BytesIO(pickled), allow_pickle=True)",
}


@pytest.mark.parametrize("attempt", ATTACKS)
def test_the_modules_of_a_package_are_no_way_out(kites: SandboxClient, attempt: str) -> None:
    lines = ["import kites, numpy, numpy.ctypeslib, os", r"pickled = b'\x80\x04\x8c\x05posix\x8c\x04fork\x93)R.'"]
    found = str(value(kites, *lines, ATTACKS[attempt], "return 'out'"))
    # numpy does not say what became of a pickle: here it is the fork that the kernel refused.
    refused = ("forbidden", "exception: FileNotFoundError", "exception: UnpicklingError: Failed to interpret file")
    assert found.startswith(refused), found


def test_numbers_of_chance_follow_from_the_seed(kites: SandboxClient) -> None:
    lines = ["import numpy, random", "chance = numpy.random.default_rng()"]
    drawn = "return [float(chance.random()), float(numpy.random.rand()), random.random()]"
    first, again, other = (value(kites, *lines, drawn, seed=seed) for seed in (3, 3, 2**62 + 3))
    assert first == again
    assert not set(first) & set(other)  # type: ignore[call-overload]
    assert len(set(first)) == 3  # type: ignore[call-overload]
    if kites.health()["packages"]["loaded"] == "before calls":  # the same in every worker, and on every machine
        assert first[1] == random.Random(3 + (2 << 64)).random()  # type: ignore[index]


def test_without_them_chance_is_what_it_was_before(kites: SandboxClient, client: SandboxClient) -> None:
    lines = ["import os, random, secrets, uuid"]
    drawn = "return [random.random(), secrets.token_hex(8), str(uuid.uuid4()), os.urandom(3).hex()]"
    assert value(kites, *lines, drawn, seed=5) == value(client, *lines, drawn, seed=5)


def test_memory_of_a_package_is_nobodys_use(kites: SandboxClient) -> None:
    is_lazy = kites.health()["packages"]["loaded"] == "in calls"
    small = Limits(wall_seconds=30, memory_bytes=8 << 20)
    lines = ["import numpy", "return float(numpy.ones(1000).sum())"]
    if is_lazy:  # it is imported out of the call's limits, which are too small for it
        assert str(value(kites, *lines, limits=small)).startswith(("memory", "crashed", "exception"))
        assert value(kites, *lines) == 1000.0
        return
    assert value(kites, *lines, limits=small) == 1000.0
    assert str(value(kites, "import numpy", "numpy.ones(1 << 22)", limits=small)).startswith("memory")
    # A process that ends at once is not thought to have died for want of memory, since it has a package's in it.
    assert str(value(kites, "import os", "os._exit(1)", limits=Limits(memory_bytes=32 << 20))).startswith("crashed")


def test_numeric_libraries_have_one_thread_and_the_tool_no_environment(kites: SandboxClient) -> None:
    lines = ["import os, numpy, threading", "big = numpy.ones((600, 600))", "total = float((big @ big).sum())"]
    assert value(kites, *lines, "return [total, dict(os.environ), threading.active_count()]") == [600.0**3, {}, 1]
    counted = [
        "import numpy, resource",
        "resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))",
        "a = numpy.ones((400, 400))",
    ]
    assert value(kites, *counted, "return float((a @ a)[0, 0])") == 400.0


def test_health_says_which_packages_and_versions(kites: SandboxClient) -> None:
    found = kites.health()["packages"]
    assert found["versions"] == {"kites": "1.5", "numpy": __import__("numpy").__version__}
    assert found["required"] == {"strings": "1.5"}
    assert found["modules"]["kites"] == ["kites", "toys.kites"]


def test_without_a_list_there_are_none(client: SandboxClient) -> None:
    assert client.health()["packages"]["versions"] == {}
    assert str(value(client, "import numpy")).startswith("exception: ModuleNotFoundError")
    assert value(client, "import os", "return os.path.exists('/packages')") is False
    assert find_packages([]) is NO_PACKAGES


# What cannot be had is one line.


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["numpy==2.4"], "expected the name of an installed package such as numpy, found 'numpy==2.4'"),
        (["../kites"], "expected the name of an installed package such as numpy, found '../kites'"),
        (["kites", "Kites"], "expected each package once, found 'Kites' twice"),
        (["gliders"], "expected the package gliders, found none in the environment of this service: pip install"),
        (["hollow"], "expected the package wind, which hollow needs, found none"),
        (["unlisted"], r"expected a list of the files of the package unlisted \(its RECORD\), found none"),
        (["empty"], "expected files of the package empty beside its metadata, found no module there"),
        (["secretive"], "expected that the package secretive can be imported with what it requires alone, found that "
         "secretive cannot: ModuleNotFoundError: No module named 'ball'"),
        (["oddly"], "expected requirements of the package oddly, found 'no one >> 1'"),
        (["leaving"], "found that a process that did ended: exit status 7"),
    ],
)  # fmt: skip
def test_a_package_that_cannot_be_had_is_told_in_one_line(
    shelf: Path, tmp_path: Path, names: list[str], line: str
) -> None:
    distribution(tmp_path, "hollow", {"hollow.py": ""}, requires=("wind>1",))
    distribution(tmp_path, "unlisted", {"unlisted.py": ""}, record=False)
    distribution(tmp_path, "empty", {})
    distribution(tmp_path, "oddly", {"oddly.py": ""}, requires=("no one >> 1",))
    distribution(tmp_path, "secretive", {"secretive.py": "import ball\n"})  # which it does not declare
    distribution(tmp_path, "leaving", {"leaving.py": "import os\nos._exit(7)\n"})
    with pytest.raises(PackageUnavailable, match=line) as raised:
        find_packages(names, path=[str(shelf), str(tmp_path)])
    assert "\n" not in str(raised.value)


def test_a_shared_folder_in_two_places_is_told_in_one_line(shelf: Path, tmp_path: Path) -> None:
    distribution(tmp_path, "tops", {"toys/kites/spinning.py": ""})
    with pytest.raises(PackageUnavailable, match="expected packages that lie in one folder, found toys/kites"):
        find_packages(["kites", "tops"], path=[str(shelf), str(tmp_path)])


def test_only_a_distributions_own_files_are_shown(shelf: Path) -> None:
    found = find_packages(["kites"], path=[str(shelf)])
    metadata = "Kites-1.5.dist-info/METADATA"
    assert set(found.places) == {
        "kites",
        "toys/kites",
        metadata,
        "strings_of_kites.py",
        "strings-1.5.dist-info/METADATA",
    }
    assert found.modules == {"kites": ("kites", "toys.kites"), "strings": ("strings_of_kites",)}
    assert found.plan(in_namespaces=True)["modules"]["toys"] == ""


def refused(*options: str, folder: Path, cwd: Path = ROOT) -> str:
    """What a service says that does not start."""
    command = [sys.executable, "-m", "sandbox.server", "--port", "0", "--workers", "1", *options]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), str(folder)])}
    done = subprocess.run(command, cwd=cwd, env=paths, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if "refuses to start" in line]
    return line


def test_a_service_without_a_package_does_not_start(tmp_path: Path) -> None:
    assert "expected the package gliders, found none" in refused("--package", "gliders", folder=tmp_path)


def test_a_package_that_starts_threads_is_not_loaded_before_the_calls(tmp_path: Path) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
    distribution(tmp_path, "busy", {"busy.py": code})
    line = refused("--package", "busy", folder=tmp_path)
    assert "one of busy starts threads when it is imported: let calls import it (--lazy-packages)" in line


def test_a_package_that_cannot_be_used_in_a_jail_stops_the_start(tmp_path: Path) -> None:
    distribution(
        tmp_path, "nosy", {"nosy.py": "import os\nif os.getuid(): open('/etc/hostname')\nelse: open('/etc/passwd')\n"}
    )
    line = refused("--package", "nosy", "--lazy-packages", folder=tmp_path)
    assert "found that nosy cannot be used: FileNotFoundError" in line
    assert "in the tier `namespaces`" in line  # and no weaker one was tried for its sake


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "jail/launcher.py",
            "linux.MS_REMOUNT | linux.MS_BIND | linux.MS_RDONLY | flags | locked",
            "linux.MS_REMOUNT | linux.MS_BIND | ('/packages/' not in target and linux.MS_RDONLY) | flags | locked",
            "files can be changed",
        ),
        (
            "packages.py",
            "            return is_whole, [folder] if is_whole else places",
            "            return is_whole, [folder]",
            "/packages/toys/balls.py is no file of the packages that are allowed, and can be read",
        ),
        (
            "jail/packages.py",
            "        file = self._modules.get(name)",
            "        file = self._modules.get(name, self._modules['kites'])",
            "is not of the packages that are allowed, and can be imported",
        ),
    ],
)
def test_a_hole_is_found_by_the_self_test(
    shelf: Path, tmp_path: Path, file: str, old: str, new: str, said: str
) -> None:
    shutil.copytree(ROOT / "sandbox", tmp_path / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    own = tmp_path / "shelf"  # which may be changed
    shutil.copytree(shelf, own)
    for path in (own, *own.rglob("*")):
        path.chmod(0o777)
    path = tmp_path / "sandbox" / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    assert said in refused("--package", "kites", folder=own, cwd=tmp_path)


# The weaker tiers.

PROGRAM = """
import json, os, kites, numpy
def f(paths):
    found = [kites.SPAN, float(numpy.linalg.det(2 * numpy.eye(2)))]
    for name in ("balls", "ball", "toys.balls", "jax", "pydantic"):
        try: found.append(__import__(name).__name__)
        except (ImportError, OSError) as error: found.append(type(error).__name__)
    for path in (*paths, os.path.dirname(numpy.__file__) + "/../pydantic/__init__.py"):
        try: found.append(open(path).read())
        except OSError as error: found.append(type(error).__name__)
    for change in (lambda: open(kites.__file__, "a"), lambda: os.chmod(kites.__file__, 0o777)):
        try: found.append(str(change()))
        except OSError as error: found.append(type(error).__name__)
    return found
"""


@x86_only
@pytest.mark.parametrize("lazy", [False, True])
def test_the_same_holds_without_namespaces(shelf: Path, monkeypatch: pytest.MonkeyPatch, lazy: bool) -> None:
    monkeypatch.setattr(
        "tests.sandbox.test_tiers.environment",
        lambda: environment() | {"PYTHONPATH": os.pathsep.join([environment()["PYTHONPATH"], str(shelf)])},
    )
    options = ["--package", "kites", "--package", "numpy", *(["--lazy-packages"] if lazy else [])]
    process = server(world_readable_python(), *options, refused=DOCKER_REFUSES)
    try:
        url = url_of(process)
        assert httpx.get(f"{url}/health").json()["tier"] == "landlock"
        with SandboxClient(url) as client:
            reply = client.execute(PROGRAM, "f", {"paths": [str(shelf / "ball.py"), str(ROOT / "sandbox" / "pool.py")]})
            assert reply.error is None, reply.error
            assert reply.value[:2] == [8, pytest.approx(4)]
            assert reply.value[2:7] == ["ModuleNotFoundError"] * 5
            assert reply.value[7:] == ["PermissionError"] * 5
    finally:
        stop(process)


@pytest.mark.skipif(linux.landlock_abi() == 0, reason="this kernel has no Landlock")
def test_packages_in_the_interpreters_own_folder_are_not_read_with_the_standard_library(tmp_path: Path) -> None:
    for name in ("json", "site-packages/jax"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text("x = 1\n")
    (tmp_path / "os.py").write_text("x = 1\n")
    listed, readable = _readable(JailedPython("", str(tmp_path), "3.11", {}, "", ""), [])
    # A process of its own: rules are for ever, and whoever has JAX must not fork.
    program = f"""
import json, os
from sandbox.jail import landlock, linux
rules = landlock.ruleset("landlock", {readable!r}, {listed!r})
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
linux.landlock_enforcer(rules)()
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
