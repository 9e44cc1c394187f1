"""Where a zygote's objects, machine code and descriptors lie, each tried in a process of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.jail.launcher import CHANNEL

ROOT = Path(__file__).parents[2]


def printed_by(program: str, **options) -> object:
    """The JSON that a program prints which finds the package."""
    command = [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **options)
    return json.loads(result.stdout)


SPREAD = """
import json
from sandbox.jail import heap
heap.reserve()
garbage = [[bytes(size) for size in range(0, 470, 16)] for _ in range(2000)]
kept = garbage[::3]
del garbage
FILL
# As many as fit on a page, beside the list's own growth.
found = {size: [bytes(size) for _ in range(2000 // (size + 33))] for size in (31, 95, 223, 415)}
print(json.dumps([max(map(id, each)) - min(map(id, each)) for each in found.values()]))
"""


def test_what_is_allocated_after_the_holes_are_filled_lies_together():
    assert max(printed_by(SPREAD.replace("FILL", "heap.fill_holes()"))) < 4096
    assert max(printed_by(SPREAD.replace("FILL", ""))) >= 4096  # else it says nothing


def test_the_heap_may_be_laid_out_where_python_has_no_arenas_and_the_kernel_no_huge_pages():
    program = "from sandbox.jail import heap\nheap.reserve()\nheap.fill_holes()\nheap.collapse()\nprint(1)"
    assert printed_by(program, env={**os.environ, "PYTHONMALLOC": "malloc"}) == 1


MAPPINGS = """
import json
from sandbox.jail import machine_code
def protection_of_pages():
    found = {}
    for line in open("/proc/self/maps"):
        if "/" in line:
            addresses, protection = line.split()[:2]
            found.update(dict.fromkeys(range(*(int(end, 16) for end in addresses.split("-")), 4096), protection))
    return found
def faults():
    import os, resource
    pid = os.fork()
    if pid == 0:
        [sorted(str(number) for number in range(100)), json.dumps([1.5, "a"]), json.loads("[1]")]
        os._exit(0)
    return os.wait4(pid, 0)[2].ru_minflt
faults()
before = faults()
protections = protection_of_pages()
machine_code.hand_on()
print(json.dumps([protections == protection_of_pages(), before, faults()]))
"""


def test_machine_code_is_handed_on_to_a_fork_and_stays_protected_as_it_was():
    is_protected, before, after = printed_by(MAPPINGS)
    assert is_protected
    assert after < before - 10


@pytest.mark.parametrize("number", [CHANNEL, 9])
def test_nothing_of_the_zygotes_lies_where_its_calls_have_their_channel(number: int):
    program = f"""
import json, os, socket
from sandbox.jail import launcher
os.dup2(os.open("/dev/null", os.O_RDWR), 0)
control = launcher.keep_channel_free({number})
print(json.dumps([control, socket.socket(fileno=control).type, os.fstat({CHANNEL}).st_rdev == os.fstat(0).st_rdev]))
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.dup2(theirs.fileno(), 200)
    command = f'exec {number}<&200 200<&-; exec {sys.executable} -S -c "$0"'
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}"
    result = subprocess.run(
        ["bash", "-c", command, program], pass_fds=(200,), capture_output=True, text=True, timeout=60, check=True
    )
    os.close(200)
    ours.close()
    theirs.close()
    control, kind, is_null = json.loads(result.stdout)
    assert control != CHANNEL
    assert kind == socket.SOCK_SEQPACKET
    assert is_null
