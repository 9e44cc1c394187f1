"""The interpreter's machine code and constants in memory: a fork hands on where their pages are, as it does for data.

What is mapped from a file and never written to, the kernel leaves out of a fork: each process finds such pages anew, in
some sixty faults. A mapping with a page of its own is handed on whole.

Decided: docs/decisions/sandbox.md, “The parent process prepares memory and streams before it forks a call”.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_READ, _WRITE, _EXECUTE = 1, 2, 4  # of mprotect(2)
_LOADED, _IS_EXECUTED, _IS_WRITTEN, _IS_READ = 1, 1, 2, 4  # of elf(5)


class _Segment(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("offset", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("physical", ctypes.c_uint64),
        ("bytes_of_file", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("alignment", ctypes.c_uint64),
    )


class _Object(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_uint64),
        ("name", ctypes.c_char_p),
        ("segments", ctypes.POINTER(_Segment)),
        ("count", ctypes.c_uint16),
    )


_Visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Object), ctypes.c_size_t, ctypes.c_void_p)


def hand_on() -> None:
    """Have forks of this process find the pages of the interpreter and of the C library where they are here.

    For that one byte of each is written, as it was. It changes nothing where the system lets nobody write to code.

    Raises:
        OSError: they could not be protected again as they were.
    """
    libc, page_bytes = ctypes.CDLL(None, use_errno=True), os.sysconf("SC_PAGE_SIZE")
    for segment, base in _segments_with((ctypes.pythonapi.Py_GetVersion, libc.getpid)):
        start = (base + segment.address) // page_bytes * page_bytes
        size = ctypes.c_size_t(base + segment.address + segment.bytes - start)
        flags = segment.flags
        protection = (_READ if flags & _IS_READ else 0) | (_EXECUTE if flags & _IS_EXECUTED else 0)
        if libc.mprotect(ctypes.c_void_p(start), size, ctypes.c_int(protection | _WRITE)) == 0:
            ctypes.memmove(start, start, 1)
            if libc.mprotect(ctypes.c_void_p(start), size, ctypes.c_int(protection)) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")


def _segments_with(functions: tuple[Any, ...]) -> list[tuple[_Segment, int]]:
    """The segments that nobody writes to, of the objects with these functions, each with its object's base address."""
    addresses = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
    found: list[tuple[_Segment, int]] = []

    def visit(loaded: ctypes._Pointer[_Object], _: int, __: object) -> int:
        base = loaded.contents.base
        segments = [each for each in loaded.contents.segments[: loaded.contents.count] if each.kind == _LOADED]
        if any(base + each.address <= it < base + each.address + each.bytes for each in segments for it in addresses):
            found.extend((each, base) for each in segments if not each.flags & _IS_WRITTEN)
        return 0

    ctypes.CDLL(None).dl_iterate_phdr(_Visit(visit), None)
    return found
