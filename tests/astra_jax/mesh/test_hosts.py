"""How a host ends while others go on."""

import atexit
import signal

import jax
import pytest

from astra_jax.config import ConfigError
from astra_jax.mesh import hosts
from astra_jax.mesh.hosts import ending_with_other_hosts
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
