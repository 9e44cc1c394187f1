"""The filters of system calls, read by a small interpreter of the kernel's programs, against the tables."""

import errno
import functools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandbox.jail import seccomp

MACHINES = ("x86_64", "aarch64")
TIERS = ({"changes": True}, {"changes": False})
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, EOPNOTSUPP = (0x00050000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP))


@functools.cache
def instructions_of(program: bytes) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("<HBBI", program))


def verdict(program: bytes, machine: str, number: int, arguments: tuple[int, ...]) -> int:
    """Return the answer of a program to a system call."""
    data = struct.pack("<IIQ6Q", number, seccomp._AUDIT_ARCH[machine], 0, *arguments)
    instructions = instructions_of(program)
    at = accumulator = 0
    while True:
        code, jump_true, jump_false, k = instructions[at]
        at += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x06:
                return k
            case 0x15:
                at += jump_true if accumulator == k else jump_false
            case 0x35:
                at += jump_true if accumulator >= k else jump_false
            case 0x45:
                at += jump_true if accumulator & k else jump_false
            case _:
                raise AssertionError(code)


def together(programs: tuple[bytes, ...], machine: str, number: int, arguments: tuple[int, ...]) -> int:
    """Return the kernel's answer under several filters: the strictest one, and the newest of equally strict ones."""
    answers = [verdict(program, machine, number, arguments) for program in reversed(programs)]
    order = [KILL, *(answer for answer in answers if answer not in (KILL, ALLOW)), ALLOW]
    return min(answers, key=order.index)


@functools.cache
def filters(kind: str, machine: str) -> tuple[bytes, ...]:
    """Return the filters of a kind of process."""
    if kind == "program":
        return (seccomp.whole_program_filter(machine),)
    return seccomp.filter_programs(machine, changes=kind == "tool")


@functools.cache
def names_of(column: int, calls: str) -> dict[int, str]:
    """Return the names of a table's system calls on a machine, by their numbers."""
    return {numbers[column]: name for name, numbers in getattr(seccomp, calls).items() if numbers[column] >= 0}


def of_a_tool(machine: str, tier: dict[str, bool], number: int, arguments: tuple[int, ...]) -> int:
    """Return the answer to a tool's system call by the tables."""
    column = MACHINES.index(machine)
    if machine == "x86_64" and number >= seccomp._X32_BIT:
        return KILL
    low = [argument & 0xFFFFFFFF for argument in arguments]
    name = names_of(column, "NUMBERS").get(number)
    if name in seccomp._OPENING:
        flags = low[seccomp._OPENING[name]]
        if flags & seccomp._OPENS_TO_CHANGE and not tier["changes"]:
            return EPERM
        return EOPNOTSUPP if flags & seccomp._O_TMPFILE else ALLOW
    if name in seccomp.VALUES:
        argument, values = seccomp.VALUES[name]
        return ALLOW if low[argument] in values else EPERM
    match name:
        case "futex":
            return ALLOW if low[1] & seccomp._FUTEX_PRIVATE or low[1] in seccomp._FUTEX_WAITS else EPERM
        case "sendto":
            return ALLOW if arguments[4] == 0 else EPERM
        case "clone":
            return ALLOW if low[0] & ~seccomp._OF_A_LIBRARY == seccomp._OF_A_THREAD else EPERM
        case "clone3":
            return ENOSYS
    return ALLOW if name in seccomp.TOOLS or (tier["changes"] and name in seccomp.WITH_FILES) else EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_a_new_thread_shares_all_that_its_process_has(machine):
    program = seccomp.filter_programs(machine)[1]
    number = seccomp.NUMBERS["clone"][MACHINES.index(machine)]
    glibc, musl = 0x003D0F00, 0x007D0F00
    for flags in (glibc, musl, glibc | 1 << 32):  # the kernel does not look at the upper half
        assert verdict(program, machine, number, (flags, 0, 0, 0, 0, 0)) == ALLOW
        for bit in (0x100, 0x200, 0x400, 0x800, 0x10000):  # memory, folder, descriptors, signal handlers, process
            assert verdict(program, machine, number, (flags & ~bit, 0, 0, 0, 0, 0)) == EPERM, hex(bit)
        for bit in (1, 17, 0x1000, 0x2000, 0x4000, 0x8000, 0x20000, 0x800000, *(1 << n for n in range(25, 32))):
            assert verdict(program, machine, number, (flags | bit, 0, 0, 0, 0, 0)) == EPERM, hex(bit)


@pytest.mark.parametrize("tier", TIERS, ids=str)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_zygote_may_do_its_work_and_its_calls_may_not(machine, tier):
    first, last = seccomp.filter_programs(machine, **tier)
    column = MACHINES.index(machine)
    for name, numbers in seccomp.ZYGOTE.items():
        if numbers[column] >= 0:
            assert verdict(first, machine, numbers[column], (0xDEAD,) * 6) == ALLOW, name
    for name in ("setns", "unshare", "mount", "umount2", "capset", "kill", "recvmsg", "wait4"):
        assert verdict(last, machine, seccomp.ZYGOTE[name][column], (0,) * 6) == EPERM, name
    # The first filter refuses calls that neither needs, since the second lets unknown calls pass.
    for name, number in (("ptrace", (101, 117)), ("bpf", (321, 280)), ("socket", (41, 198)), ("execve", (59, 221))):
        assert verdict(first, machine, number[column], (0,) * 6) == EPERM, name


def of_a_program(machine: str, number: int, arguments: tuple[int, ...]) -> int:
    """Return the answer to a program's system call: a tool's, except by the tables of programs."""
    column = MACHINES.index(machine)
    low = [argument & 0xFFFFFFFF for argument in arguments]
    if machine == "x86_64" and number >= seccomp._X32_BIT:
        return KILL
    if number in names_of(column, "PROGRAMS"):
        return ALLOW
    for name, values in seccomp.VALUES_FOR_PROGRAMS.items():
        if number == seccomp.NUMBERS[name][column] and low[seccomp.VALUES[name][0]] in values:
            return ALLOW
    if number == seccomp.NUMBERS["socket"][column]:
        is_plain = low[0] in (1, 2, 10) and low[1] & ~0x80800 in (1, 2) and low[2] in (0, 6, 17)
        return ALLOW if is_plain else EPERM
    if number == seccomp.NUMBERS["clone"][column]:
        return EPERM if low[0] & seccomp._NEW_NAMESPACES else ALLOW
    if number == seccomp.NUMBERS["futex"][column] and low[1] == seccomp._FUTEX_WAKE:
        return ALLOW
    return of_a_tool(machine, TIERS[0], number, arguments)


def answers(kind: str, machine: str, number: int, arguments: tuple[int, ...]) -> tuple[int, int]:
    """Return the verdict of the filters of a kind of process, and the one that the tables want."""
    found = together(filters(kind, machine), machine, number, arguments)
    if kind == "program":
        return found, of_a_program(machine, number, arguments)
    return found, of_a_tool(machine, TIERS[kind != "tool"], number, arguments)


KINDS = ("tool", "tool without files", "program")
FLAGS = {
    "tool": (0, 1, 2, 4, 9, 22, 128, 512, 0x5401, 0o20000002, 0x10000, 0x10F00, 0x10B00, 0x3D0F00, 1 << 40),
    "program": (0, 1, 2, 5, 6, 9, 10, 16, 17, 22, 26, 40, 50, 128, 132, 512, 1031, 0x5401, 0x10000, 0x10000011),
}
PLACES_OF_A_FLAG = (
    lambda flag: (flag, 0, 0, 0, 0, 0),
    lambda flag: (2, flag, 0, 0, 0, 0),
    lambda flag: (7, 0, flag, 0, flag, 0),
    lambda flag: (2, 0x80801, flag, 0, flag, 0),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_the_filters_are_programs_that_the_kernel_could_load(machine, kind):
    for program in filters(kind, machine):
        count = len(program) // 8
        assert count < 4096  # the kernel's maximum
        for index, (code, jump_true, jump_false, _) in enumerate(struct.iter_unpack("=HBBI", program)):
            if code & 7 == 5:  # a jump
                assert index + 1 + max(jump_true, jump_false) < count


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_process_may_make_the_calls_of_its_tables_alone(machine, kind):
    for number in (*range(480), 599, 0x40000000, 0x40000101):
        for flag in FLAGS[kind.partition(" ")[0]]:
            for arguments in (place(flag) for place in PLACES_OF_A_FLAG):
                found, expected = answers(kind, machine, number, arguments)
                assert found == expected, (number, arguments)


words = st.tuples(*[st.integers(0, (1 << 64) - 1)] * 6)


@given(st.sampled_from(KINDS), st.sampled_from(MACHINES), st.integers(0, 600), words)
def test_the_filters_decide_as_the_tables_for_any_arguments(kind, machine, number, arguments):
    found, expected = answers(kind, machine, number, arguments)
    assert found == expected


def test_every_call_that_is_open_to_programs_is_closed_to_tools():
    for name, numbers in seccomp.PROGRAMS.items():
        for machine, number in zip(MACHINES, numbers, strict=True):
            if number >= 0:
                assert of_a_tool(machine, TIERS[0], number, (1,) * 6) == EPERM, name
