"""The operator's packages inside a jail: imported before the first call, and seeded at the beginning of each."""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import sys
import warnings
from collections.abc import Callable
from typing import Final

from sandbox.jail import linux

FOLDER: Final = "/packages"  # its place in a jail of the tier `namespaces`
_WITH_THREADS: Final = ("OPENBLAS", "OMP", "MKL", "BLIS", "NUMEXPR", "RAYON")
"""Numeric libraries: they start a thread for each core, and their number decides the order of sums."""
_CLONE_THREAD = 0x00010000


def load(folder: str, modules: list[str], begin: Callable[[int], None], tier: str) -> Callable[[int], None]:
    """Import the modules; return the function that begins a call, numpy's random numbers included.

    A package may load the modules that it names at its top when they are first asked for, so they are asked for here.

    Raises:
        OSError: the tools' user may not read the folder.
        ImportError: a package cannot be imported.
        RuntimeError: one has started a thread; a process with threads cannot be forked for a call.
    """
    # In the process's environment, not in `os.environ`: the libraries read it there, and tools do not see it.
    setenv = ctypes.CDLL(None).setenv
    for name in _WITH_THREADS:
        setenv(f"{name}_NUM_THREADS".encode(), b"1", 1)
    os.listdir(folder)  # an importer passes over a folder that this user may not read
    sys.path.append(folder)
    begin(0)  # so that random numbers drawn at the import are the same in every worker
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in modules:
            module = importlib.import_module(name)
            for attribute in dir(module):
                if not attribute.startswith("_"):
                    getattr(module, attribute, None)
            if not _has_one_thread(tier):
                raise RuntimeError(f"{name} starts threads when it is imported, so tools cannot have it; remove it")
    if "numpy.random" not in sys.modules:
        return begin
    numbers, ours = sys.modules["numpy.random"], random.Random(0)

    def begin_with_numbers(seed: int) -> None:
        begin(seed)
        # The state of a Mersenne Twister as `random`'s. `numpy.random.seed` would take .6 ms of each call.
        ours.seed(seed + (2 << 64))
        *words, position = ours.getstate()[1]
        numbers.set_state(("MT19937", words, position))

    begin_with_numbers(0)
    return begin_with_numbers


def _has_one_thread(tier: str) -> bool:
    if tier != "namespaces":
        with open("/proc/self/status") as file:
            return "\nThreads:\t1\n" in file.read()
    try:  # a jail has no /proc; the kernel accepts this flag only from a process with one thread
        linux.unshare(_CLONE_THREAD)
    except OSError:
        return False
    return True
