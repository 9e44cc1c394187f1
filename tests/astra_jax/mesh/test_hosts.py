"""How a host ends while others go on."""

import atexit
import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from types import SimpleNamespace

import jax
import pytest

from astra_jax.config import ConfigError
from astra_jax.mesh import hosts
from astra_jax.mesh import watch as watch_module
from astra_jax.mesh.hosts import ending_with_other_hosts
from astra_jax.mesh.watch import HostWatch, patience_seconds
from tests.astra_jax.two_hosts import two_hosts


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (ConfigError, 2), (MemoryError, 1)])
def test_a_host_that_ends_alone_does_not_wait_for_the_others_and_keeps_its_exit_code(monkeypatch, error, code):
    at_exit: list[tuple] = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(hosts, "_all_hosts_end", lambda: False)
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    with pytest.raises(error), ending_with_other_hosts():
        raise error
    assert [exit_code for _, exit_code in at_exit] == [code]


@contextlib.contextmanager
def waiting_hosts(seconds_H: tuple[float, float]) -> Iterator[list[subprocess.Popen[str]]]:
    """Return two hosts that have joined and wait, each for its own time."""
    waiting = ["-m", "tests.astra_jax.mesh.run_waiting_host"]
    first, second = ([str(seconds)] for seconds in seconds_H)
    with two_hosts(waiting, devices_per_host=1, of_host=(first, second)) as processes:
        for process in processes:
            assert process.stdout is not None
            assert "joined\n" in iter(process.stdout.readline, ""), "it ended"  # Gloo has a line of its own before
        yield processes


def test_a_host_that_waits_for_one_that_is_killed_ends_in_one_line_that_names_it():
    with waiting_hosts((600, 600)) as processes:
        time.sleep(2)  # in which both have given a sign of life
        processes[1].kill()
        error = processes[0].communicate(timeout=30)[1]
    assert processes[0].returncode == 1, error
    assert "astra: HostFailed: one of the 2 hosts is gone: host 1 was killed" in error


def test_hosts_that_are_stopped_together_go_on_and_know_for_how_long():
    with waiting_hosts((14, 14)) as processes:
        time.sleep(2)
        for signum, seconds in ((signal.SIGSTOP, 6), (signal.SIGCONT, 0)):
            for process in processes:
                process.send_signal(signum)
            time.sleep(seconds)
        told = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for text in told:
        assert 5.5 < float(text.partition("stood still for ")[2].split()[0]) < 9


def test_a_host_that_has_ended_as_it_should_is_not_missed():
    with waiting_hosts((3, 11)) as processes:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors


def test_a_host_that_lives_and_does_nothing_is_named_by_all_and_ends_them():
    variables = {"ASTRA_HOSTS_PATIENCE_SECONDS": "4"}
    hanging = ["-m", "tests.astra_jax.mesh.run_hanging_host"]
    started = time.monotonic()
    with two_hosts(hanging, devices_per_host=1, variables=(variables, variables)) as processes:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    assert time.monotonic() - started < 50
    assert any("host 1 has come least far (2 programs, others 3)" in error for error in errors), errors
    # The first to end takes the service of the hosts with it, and JAX may end the other before it has spoken.
    assert all(process.returncode in (1, -signal.SIGABRT) for process in processes), errors


def test_a_job_that_goes_on_is_left_alone(monkeypatch):
    ended: list[str] = []
    service = SimpleNamespace(key_value_set=lambda *_, **__: None, key_value_dir_get=lambda _: [])
    monkeypatch.setattr(watch_module, "_client", lambda: service)
    monkeypatch.setattr(watch_module, "_end", ended.append)
    with HostWatch(2) as watch:
        for _ in range(30):
            watch.step()
            time.sleep(0.1)
        assert not ended
        time.sleep(5)
    assert ended


@pytest.mark.parametrize("text", ["soon", "-1", "0"])
def test_a_patience_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("ASTRA_HOSTS_PATIENCE_SECONDS", text)
    with pytest.raises(ConfigError, match="ASTRA_HOSTS_PATIENCE_SECONDS: expected seconds above 0, found"):
        patience_seconds()
