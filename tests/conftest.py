"""Eight CPU devices, set before anything imports JAX, so that every mesh can be tested on one machine.

Property tests draw the same examples every time: a red run can be run again and stays red. Of a mutant it is enough to
know that one fails: the smallest example that does is not looked for, which takes seconds.
"""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from astra_jax.user_cache import processor, trim, user_cache

phases = [Phase.explicit, Phase.generate] if "MUTANT_UNDER_TEST" in os.environ else list(Phase)
settings.register_profile("repeatable", derandomize=True, deadline=None, phases=phases)
settings.load_profile("repeatable")

os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiled programs are shared by all test processes, the commands that they start, and later runs: JAX finds a program
# by its text, its flags and its compiler. They are kept in the virtual environment; if there is none, among the user's
# caches.
if "PYTEST_XDIST_WORKER" not in os.environ:
    keeper = user_cache() if sys.prefix == sys.base_prefix else Path(sys.prefix)
    compiled = keeper / "compiled_by_tests" / processor()
    compiled.mkdir(parents=True, exist_ok=True)
    trim(compiled, most_bytes=2**30)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
# Threads that spin while they wait starve their neighbours on a small machine; those of OpenBLAS always do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# No test and no library asks the hub for anything.
os.environ["HF_HUB_OFFLINE"] = "1"
# A shell's background job ignores Ctrl-C, and so would every command that a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Collecting makes a million objects that stay: to look through them for garbage, again and again, took a third of it.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Compile the programs of fast tests without optimisation: they compile more than they compute."""
    flag = "--xla_backend_optimization_level=0"
    if config.option.markexpr == "not slow" and flag not in os.environ["XLA_FLAGS"]:
        os.environ["XLA_FLAGS"] += f" {flag}"


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Let the garbage collector skip the objects that exist before the first test."""
    gc.freeze()
    gc.enable()
