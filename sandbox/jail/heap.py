"""Where the interpreter's objects lie in memory: close together, since a call's process copies each page it writes to.

A count of references stands in every object, so whatever a call uses it writes to. Nothing here changes what a program
does, only what it costs: where the kernel has no such pages, or Python another allocator, all goes on as it would.

Decided: docs/decisions/sandbox.md, “The parent process prepares memory and streams before it forks a call”.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_RESERVED_BYTES = 6 << 20  # what the usual modules take
_ARENA_BYTES = 1 << 20  # of Python's allocator, each of which is one mapping
_POOL_BYTES, _POOL_HEADER_BYTES = 16 << 10, 48  # blocks of one size each
_LARGEST_BLOCK_BYTES = 512  # what is larger comes from the C library
_EMPTY_BYTES = b"".__sizeof__()
_RESERVED_BLOCK_BYTES = 448
_HUGE_PAGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25  # Linux 6.1
_kept: list[object] = []  # what fills the holes


def reserve() -> None:
    """Have the allocator take its arenas now, one beside the other, and give none of them back."""
    blocks = [bytes(_RESERVED_BLOCK_BYTES - _EMPTY_BYTES) for _ in range(_RESERVED_BYTES // _RESERVED_BLOCK_BYTES)]
    _kept.extend({id(block) // (_ARENA_BYTES // 2): block for block in blocks}.values())  # one in each arena


def fill_holes() -> None:
    """Have what is allocated from here on lie together, of each size, on pages that nothing else is on.

    What was freed while modules were loaded left holes all over: whoever fills one copies a page for it.
    """
    for size in range(16, _LARGEST_BLOCK_BYTES + 1, 16):
        _fill(size, _maker(size))


def _maker(size: int) -> Callable[[], object]:
    """Return what makes an object that takes a block of `size` bytes, and nothing else.

    >>> {_maker(size)().__sizeof__() - size for size in range(16, 513, 16)}
    {0}
    """
    if size > _EMPTY_BYTES:
        return lambda: bytes(size - _EMPTY_BYTES)
    return object if size == object().__sizeof__() else lambda: complex(size, size)


def _fill(size: int, make: Callable[[], object]) -> None:
    # A pool in which most blocks were free is a new one, and comes when no other has a free block; the one after it is
    # left with all that it has.
    most = (_POOL_BYTES - _POOL_HEADER_BYTES) // size * 8 // 10
    pool, taken = 0, 0
    for _ in range(_RESERVED_BYTES // size):  # more than there can be: other allocators have no pools
        block = make()
        _kept.append(block)
        if id(block) // _POOL_BYTES == pool:
            taken += 1
        elif taken >= most:
            return
        else:
            pool, taken = id(block) // _POOL_BYTES, 1


def collapse() -> None:
    """Have the heap be huge pages, which a fork copies as one; a page that is written to is still copied alone."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    addresses = [id(block) for block in _kept]
    starts = [*range(min(addresses) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES, max(addresses), _HUGE_PAGE_BYTES)]
    end = libc.sbrk(0) // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES  # of what the C library gives out
    for start in [*starts, end - 2 * _HUGE_PAGE_BYTES, end - _HUGE_PAGE_BYTES]:  # refused where other memory lies there
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(_HUGE_PAGE_BYTES), ctypes.c_int(_MADV_COLLAPSE))
