"""The packages that an operator lists, inside a jail: found by an importer of their own, loaded before the first call.

The importer knows the full names of the modules that are allowed and where each lies; their own modules are found in
their own folders, as always. It is asked last, so that no package takes the place of a module of the standard library.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import re
import struct
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from typing import Any, Final

from sandbox.jail import linux

FOLDER: Final = "/packages"  # where a jail of the strongest tier shows them
_ONE_THREAD: Final = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "RAYON_NUM_THREADS",
)
"""Numeric libraries start a thread for each core, whose number would decide in which order they add."""
_CLONE_THREAD = 0x00010000
_TWISTER: Final = struct.Struct("=624Ii")  # the words of a Mersenne Twister, and how many of them are drawn


class Importer:
    """Finds the modules that are allowed, and the metadata of their distributions."""

    def __init__(self, modules: dict[str, str], metadata: dict[str, str]) -> None:
        self._modules, self._metadata = modules, metadata

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return where a module lies; None for one that is not allowed, or that its own package finds."""
        file = self._modules.get(name)
        if file is None:
            return None
        if not file:  # a folder that distributions share: each part of it is found by its full name
            shared = ModuleSpec(name, None, is_package=True)
            shared.submodule_search_locations = []
            return shared
        is_package = os.path.basename(file).startswith("__init__.")
        inside = [os.path.dirname(file)] if is_package else None
        return spec_from_file_location(name, file, submodule_search_locations=inside)

    def find_distributions(self, context: Any = None) -> Iterator[Any]:
        """Yield the distribution that `importlib.metadata` asks for, or all of them."""
        from importlib.metadata import PathDistribution
        from pathlib import Path

        asked = getattr(context, "name", None)
        for name, folder in self._metadata.items():
            if asked is None or name == re.sub("[-_.]+", "-", asked).lower():
                yield PathDistribution(Path(folder))


def install(plan: dict[str, Any]) -> None:
    """Let this process import the packages of `AllowedPackages.plan`; numeric libraries start no threads."""
    # Of the process, not in `os.environ`: libraries that are loaded in a call read them there, and no tool's code does.
    setenv = ctypes.CDLL(None).setenv
    for name in _ONE_THREAD:
        setenv(name.encode(), b"1", 1)
    sys.meta_path.append(Importer(plan["modules"], plan["metadata"]))


def load(plan: dict[str, Any], begin: Callable[[int], None], tier: str) -> Callable[[int], None]:
    """Import what is to be loaded before the calls; return what begins a call, its generators of numbers included.

    With a package come the modules that it names at its top, which it may load when they are first asked for.

    Raises:
        ImportError: a package cannot be imported.
        RuntimeError: one has started a thread, beside which no call can be forked.
    """
    if plan["is_lazy"] or not plan["listed"]:
        return begin
    begin(0)  # what is drawn while they are imported is the same in every worker
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in plan["listed"]:
            module = importlib.import_module(name)
            for attribute in dir(module):
                if not attribute.startswith("_"):
                    getattr(module, attribute, None)
    if not _has_one_thread(tier):
        listed = ", ".join(plan["listed"])
        raise RuntimeError(f"one of {listed} starts threads when it is imported: let calls import it (--lazy-packages)")
    if "numpy.random" not in sys.modules:
        return begin
    seed_numbers = _seeding_of_numpy(sys.modules["numpy.random"])

    def begin_with_numbers(seed: int) -> None:
        begin(seed)
        seed_numbers(seed)

    return begin_with_numbers


def _seeding_of_numpy(numbers: Any) -> Callable[[int], None]:
    """Return what seeds numpy's own generator, a Mersenne Twister as `random`'s, with a stream of its own.

    Its state is written to where it lies: `numpy.random.seed` runs so much code for the first time in a process that
    it takes 0.6 ms of each call. Where the state lies otherwise, that is what is returned.
    """
    ours = random.Random(0)
    address = numbers.get_bit_generator().ctypes.state_address

    def seed_numbers(seed: int) -> None:
        ours.seed(seed + (2 << 64))
        ctypes.memmove(address, _TWISTER.pack(*ours.getstate()[1]), _TWISTER.size)

    before = numbers.get_state()[1]
    seed_numbers(1)
    if [float(numbers.random_sample()) for _ in range(700)] == [ours.random() for _ in range(700)]:
        return seed_numbers
    numbers.set_state(("MT19937", before, 624))
    return lambda seed: numbers.seed((seed & 0xFFFFFFFF, seed >> 32, 1))


def _has_one_thread(tier: str) -> bool:
    if tier != "namespaces":
        with open("/proc/self/status") as file:
            return "\nThreads:\t1\n" in file.read()
    try:  # there is no /proc; the kernel takes this from a process of one thread alone
        linux.unshare(_CLONE_THREAD)
    except OSError:
        return False
    return True
