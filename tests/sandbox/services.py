"""Services in processes of their own: with options, in simulated containers, changed, or refusing to start."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
IS_ROOT = os.geteuid() == 0
AS_TOOLS_USER: dict[str, Any] = {"user": 65534, "group": 65534, "extra_groups": []} if IS_ROOT else {}
ONE_WORKER = ("-m", "sandbox.server", "--port", "0", "--workers", "1")
# System calls that Docker's default profile refuses to a container without CAP_SYS_ADMIN, on x86-64.
DOCKER_REFUSES = {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155}
LANDLOCK = {"landlock_create_ruleset": 444}
_LAUNCH = """
import ctypes, errno, json, os, resource, struct, sys
sys.path.insert(0, {root!r})
from sandbox.jail import linux
refused, arguments = json.loads(sys.argv[1]), sys.argv[2:]
word = lambda code, k, t=0, f=0: struct.pack("=HBBI", code, t, f, k)
program = [word(0x20, 0)]
for number, answer in refused:
    program += [word(0x15, number, 0, 1), word(0x06, 0x00050000 | answer)]
program += [word(0x15, 56, 0, 3), word(0x20, 16), word(0x45, 0x7E020000, 0, 1), word(0x06, 0x00050000 | errno.EPERM)]
program.append(word(0x06, 0x7FFF0000))
code = b"".join(program)
linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
if {most_threads} >= 0: resource.setrlimit(resource.RLIMIT_NPROC, ({most_threads},) * 2)
buffer = ctypes.create_string_buffer(code, len(code))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))
loaded = Program(len(code) // 8, ctypes.addressof(buffer))
assert linux.libc.prctl(22, ctypes.c_ulong(2), ctypes.byref(loaded), 0, 0) == 0
os.execv(sys.executable, [sys.executable, *arguments])
"""
x86_only = pytest.mark.skipif(os.uname().machine != "x86_64", reason="the simulated container speaks x86-64")


@contextmanager
def served(args: Sequence[str], **options: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Yield the address of the service that a command starts, as its first line says it, and its process."""
    with tempfile.TemporaryFile("w+") as log:  # a pipe that is not read would fill, and stop the service
        process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=log, text=True, **options)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if "sandbox on http" not in line:
                log.seek(0)
                raise AssertionError(f"the service did not start: {line}{log.read()}")
            yield line.split("sandbox on ")[1].split(",")[0], process
        finally:
            process.kill()
            process.communicate()


def refusal(args: Sequence[str], **options: Any) -> str:
    """Return the log of a service that does not start."""
    done = subprocess.run(args, capture_output=True, text=True, timeout=60, check=False, **options)
    assert done.returncode == 1, done.stderr
    return done.stderr


def own(*options: str, root: Path = ROOT) -> dict[str, Any]:
    """Return the arguments of `subprocess` for a service of one worker, from the package in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    return {"args": [sys.executable, *ONE_WORKER, *options], "cwd": root, "env": environment}


def altered(folder: Path, file: str, old: str, new: str) -> Path:
    """Copy the package into a folder, and change one of its files; return the folder."""
    shutil.copytree(ROOT / "sandbox", folder / "sandbox", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "sandbox" / file
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    return folder


def world_readable_python() -> str:
    """Return an interpreter that an ordinary user can run too."""
    own = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    say = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in (own, shutil.which("python3", path="/usr/bin")):
        if python and not python.startswith("/root"):
            version = subprocess.run([python, "-c", say], capture_output=True, text=True, check=True).stdout.strip()
            if version == f"{sys.version_info[0]}.{sys.version_info[1]}":
                return python
    pytest.skip("no Python of this version that every user may read")


def contained(*options, refused=None, as_user=False, most_threads=-1, root=ROOT):
    """Return the arguments of `subprocess` for a service that every user may run.

    Args:
      refused: system calls that its simulated container refuses; None for no container.
      as_user: whether the tools' own user runs it.
      most_threads: the number of threads that this user may have in all.
    """
    command = [*ONE_WORKER, *options]
    if refused is not None:
        numbers = [[number, 38 if name in LANDLOCK else 1] for name, number in refused.items()]
        command = ["-c", _LAUNCH.format(root=str(root), most_threads=most_threads), json.dumps(numbers), *command]
    # The packages of this interpreter may lie in a .venv below ROOT: they stay where they are.
    packages = os.pathsep.join([str(root), *(path for path in sys.path if path.endswith("site-packages"))])
    environment = {"PYTHONPATH": packages, "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    user = AS_TOOLS_USER if as_user else {}
    return {"args": [world_readable_python(), *command], "cwd": "/", "env": environment, **user}
