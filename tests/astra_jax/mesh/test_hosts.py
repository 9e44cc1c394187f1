"""How a host ends while others go on."""

import atexit
import signal
import time
from unittest import mock

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
    monkeypatch.setattr(hosts, "OtherHosts", lambda *_: mock.Mock(num_watched=1))
    monkeypatch.setattr(atexit, "register", lambda *call: at_exit.append(call))
    with pytest.raises(error), ending_with_other_hosts():
        raise error
    assert [exit_code for _, exit_code in at_exit] == [code]


@pytest.mark.parametrize("killed", [1, 0])
def test_a_host_that_waits_for_one_that_is_killed_ends_soon_in_one_line(killed):
    """JAX alone needs 100 s for it; where the first is killed, JAX, whose service it had, adds words or is faster."""
    module = "tests.astra_jax.mesh.run_waiting_host"
    with two_hosts(["-m", module], devices_per_host=1) as processes:
        for process in processes:
            assert process.stdout is not None
            assert "joined\n" in iter(process.stdout.readline, ""), "it ended"  # Gloo has a line of its own before
        time.sleep(0.2)
        processes[killed].kill()
        other = processes[1 - killed]
        error = other.communicate(timeout=30)[1]
    line = (
        "astra: HostLost: expected all 2 hosts to go on, found one gone: it has failed and says why, or it was "
        "killed, or its machine or network is down; the same command on every host goes on from the last checkpoint\n"
    )
    if killed == 1:
        assert (other.returncode, error) == (1, line)
    else:
        assert other.returncode in (1, -signal.SIGABRT), error
        assert line in error or "JAX distributed service detected fatal errors" in error
