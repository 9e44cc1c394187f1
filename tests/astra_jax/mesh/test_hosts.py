"""How a host ends while others go on."""

import atexit
import signal
import time
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


def test_a_host_that_waits_for_one_that_is_killed_is_ended_by_jax():
    with two_hosts(["-m", "tests.astra_jax.mesh.run_waiting_host"], devices_per_host=1) as processes:
        for process in processes:
            assert process.stdout is not None
            assert "joined\n" in iter(process.stdout.readline, ""), "it ended"  # Gloo has a line of its own before
        processes[1].kill()
        other = processes[0]
        error = other.communicate(timeout=60)[1]
    assert other.returncode == -signal.SIGABRT, error
    assert "JAX distributed service detected fatal errors" in error


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
    ended: list[float] = []
    monkeypatch.setattr(watch_module, "_client", lambda: SimpleNamespace(key_value_set=lambda *_, **__: None))
    monkeypatch.setattr(HostWatch, "_end", lambda _, __, seconds: ended.append(seconds))
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
