"""The system calls of a harness's program, against those of a tool: the same programs meet the same refusals."""

from __future__ import annotations

import json
import os
import platform
import sys

import pytest

from astra_jax.benchmarks.harness_process import run_harness
from sandbox.client import SandboxClient
from sandbox.contract.bounds import PROCESSES
from sandbox.contract.promise import ROOMY
from sandbox.contract.walls import CHANGES, FILES, NETWORK, SECRETS
from sandbox.jail import seccomp
from sandbox.local import local_sandbox

COLUMN = 0 if platform.machine() == "x86_64" else 1
OPEN = seccomp.NUMBERS.keys() - (seccomp.ZYGOTE.keys() - seccomp.PROGRAMS.keys() - seccomp._WITH_ARGUMENTS.keys())
CLOSED = sorted({*range(335), *range(424, 470)} - {seccomp.NUMBERS[name][COLUMN] for name in OPEN})

# Each gives what was not refused by EPERM.
EVERY_CLOSED_CALL = f"""
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
found = []
for number in {CLOSED}:
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
    if result != -1 or ctypes.get_errno() != errno.EPERM: found.append([number, result, ctypes.get_errno()])
return found
"""
DANGEROUS_ARGUMENTS = """
import ctypes, errno, fcntl, os, socket
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
numbers = {'x86_64': (56, 272, 435), 'aarch64': (220, 97, 435)}[os.uname().machine]
clone, unshare, clone3 = map(ctypes.c_long, numbers)
def refused(what, *known):
    try: what()
    except OSError as error: return error.errno in (errno.EPERM, *known)
    return False
def call(number, *arguments):
    result = libc.syscall(number, *map(ctypes.c_long, arguments), *[ctypes.c_long(0)] * (6 - len(arguments)))
    if result == 0 and number is clone: os._exit(0)
    if result < 0: raise OSError(ctypes.get_errno(), 'call')
def made(*arguments): return lambda: socket.socket(*arguments).close()
one, other = socket.socketpair()
attempts = {
    **{f'family {family}': made(family, kind, protocol) for family in range(50) if family not in (1, 2, 10)
       for kind, protocol in ((1, 0), (2, 0), (3, 0), (5, 0))},
    **{f'kind {kind}': made(family, kind, 0) for kind in (3, 4, 5, 6, 10) for family in (1, 2, 10)},
    **{f'protocol {number}': made(2, kind, number) for number in (1, 33, 132, 136, 255, 262) for kind in (1, 2, 3)},
    **{f'namespace {flag:#x}': lambda flag=flag: call(clone, flag | 17) for flag in
       (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)},
    'user namespace': lambda: call(unshare, 0x10000000), 'time namespace': lambda: call(unshare, 0x80),
    'filter of a socket': lambda: one.setsockopt(1, 26, bytes(16)), 'BPF of a socket': lambda: one.setsockopt(1, 50, 3),
    'larger buffer': lambda: one.setsockopt(1, 7, 1 << 20),
    'larger pipe': lambda: fcntl.fcntl(os.pipe()[1], 1031, 1 << 20),
    'signals of a socket': lambda: fcntl.fcntl(one.fileno(), 8, os.getpid()),
    'seal': lambda: fcntl.fcntl(one.fileno(), 1033, 1),
    'input of a terminal': lambda: fcntl.ioctl(0, 0x5412, bytes(1)), 'new limits of another': lambda: call(
        ctypes.c_long(302 if numbers[0] == 56 else 261), 1, 7, 0, 0),
}
found = [name for name, what in attempts.items() if not refused(what)]
if refused(lambda: call(clone3, 0, 0)) or not refused(lambda: call(clone3, 0, 0), errno.ENOSYS): found.append('clone3')
return found
"""


def function(body: str) -> str:
    return "def f(**arguments):\n" + "\n".join(f"    {line}" for line in body.strip().splitlines())


async def in_a_harness(tmp_path, source: str):
    """Return the value of a source's function, run as a program of a harness."""
    (tmp_path / "program.py").write_text(f"{source}\nimport json\nprint(json.dumps(f()))\n")
    python = os.path.realpath(sys.executable)
    await run_harness([python, "program.py"], folder=tmp_path, log=tmp_path / "log", variables={})
    return json.loads((tmp_path / "log").read_text().splitlines()[-1])


@pytest.fixture(scope="module")
def tool():
    with local_sandbox(1) as url, SandboxClient(url) as client:
        yield client


@pytest.mark.parametrize("body", [EVERY_CLOSED_CALL, DANGEROUS_ARGUMENTS], ids=["every closed call", "arguments"])
async def test_the_same_program_meets_the_same_refusals_as_a_tool(tmp_path, tool, body):
    reply = tool.execute(function(body), "f", {}, state=None, limits=ROOMY)
    assert (reply.error, reply.value) == (None, [])
    assert await in_a_harness(tmp_path, function(body)) == []


def test_the_calls_that_attacks_begin_with_are_among_the_closed_ones():
    names = {
        "io_uring_setup": (425, 425), "userfaultfd": (323, 282), "keyctl": (250, 219), "add_key": (248, 217),
        "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241), "ptrace": (101, 117),
        "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "mount": (165, 40), "umount2": (166, 39),
        "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430), "mount_setattr": (442, 442),
        "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
        "kexec_load": (246, 104), "init_module": (175, 105), "finit_module": (313, 273), "memfd_create": (319, 279),
        "pidfd_getfd": (438, 438), "process_madvise": (440, 440), "seccomp": (317, 277), "personality": (135, 92),
        "open_by_handle_at": (304, 265), "fanotify_init": (300, 262), "quotactl": (179, 60), "syslog": (103, 116),
    }  # fmt: skip
    assert {name for name, numbers in names.items() if numbers[COLUMN] not in CLOSED} == set()


# A program has child processes, and sockets within its own network: these promises are made about tools alone.
OF_TOOLS_ALONE = {
    "Unix sockets are forbidden", "listening is forbidden", "fork is forbidden", "programs are forbidden",
    "exec is forbidden", "spawn is forbidden", "multiprocessing is forbidden", "killing all processes is forbidden",
    "killing the parent is forbidden", "all threads of a call have its 64 descriptors together",
    "nothing of the host can be opened",
}  # fmt: skip
FORBIDDEN = {
    each.name: each.sources[-1]
    for each in (*FILES, *CHANGES, *NETWORK, *SECRETS, *PROCESSES)
    if ("forbidden" in each.kinds or each.value == []) and each.name not in OF_TOOLS_ALONE
}
BREAK_PROMISES = """
import os
broken = []
for name, source in SOURCES.items():
    if not (child := os.fork()):
        space = {}
        exec(source, space)
        try: kept = space['f']() == []
        except (OSError, ValueError): kept = True
        os._exit(not kept)
    if os.waitpid(child, 0)[1]: broken.append(name)
return broken
"""


async def test_what_a_tool_is_forbidden_a_program_is_refused(tmp_path):
    assert len(FORBIDDEN) > 20
    source = f"SOURCES = {FORBIDDEN!r}\n{function(BREAK_PROMISES)}"
    assert await in_a_harness(tmp_path, source) == []


async def test_a_program_is_an_unprivileged_user_and_what_it_writes_is_ours(tmp_path):
    body = "import os\nos.makedirs('deep/er')\nopen('deep/er/file', 'w').close()\nos.symlink('/usr', 'deep/link')\n"
    assert await in_a_harness(tmp_path, function(f"{body}return [*os.getresuid(), *os.getresgid()]")) == [65534] * 6
    for path in (tmp_path, *tmp_path.rglob("*")):
        assert path.lstat().st_uid == os.geteuid(), path
    assert os.stat("/usr").st_uid == 0


async def test_a_program_s_processes_and_descriptors_are_bounded(tmp_path):
    body = (
        "import resource as r\nreturn [r.getrlimit(each)[1] for each in (r.RLIMIT_NPROC, r.RLIMIT_NOFILE, r.RLIMIT_AS)]"
    )
    processes, descriptors, memory = await in_a_harness(tmp_path, function(body))
    assert 0 < processes <= 4096
    assert 0 < descriptors <= 4096
    assert 0 < memory <= 16 << 30


HONEST = """
import asyncio, multiprocessing, os, shutil, socket, subprocess, sys, tempfile, threading
from concurrent.futures import ThreadPoolExecutor
folder = tempfile.mkdtemp()
open(f'{folder}/a', 'w').write('x')
shutil.copy2(f'{folder}/a', f'{folder}/b')
with ThreadPoolExecutor(32) as pool: threads = sum(pool.map(abs, range(100)))
locks, lock = [], multiprocessing.RLock()
def work():
    for _ in range(2000):
        with lock: locks.append(1)
workers = [threading.Thread(target=work) for _ in range(8)]
for each in workers: each.start()
for each in workers: each.join()
context = multiprocessing.get_context('fork')
queue = context.Queue()
child = context.Process(target=queue.put, args=(7,))
child.start()
async def served():
    async def answer(reader, writer):
        writer.write(await reader.readline())
        writer.close()
    server = await asyncio.start_server(answer, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.writelines([b'hel', b'lo', b'\\n'])
    return (await reader.readline()).decode()
sleeper = subprocess.Popen(['sleep', '60'], start_new_session=True)
sleeper.terminate()
return [open(f'{folder}/b').read(), threads, len(locks), queue.get(timeout=20), asyncio.run(served()), sleeper.wait(),
        subprocess.run([sys.executable, '-c', 'print(5)'], capture_output=True, text=True).stdout,
        os.system('exit 3') >> 8]
"""


async def test_an_honest_program_has_threads_processes_locks_files_and_a_loopback(tmp_path):
    assert await in_a_harness(tmp_path, function(HONEST)) == ["x", 4950, 16000, 7, "hello\n", -15, "5\n", 3]
