"""A host that is gone is noticed, one that says goodbye is not; nothing of JAX is needed for it."""

import concurrent.futures
import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from astra_jax.mesh import lost_hosts
from astra_jax.mesh.lost_hosts import OtherHosts

NUM_HOSTS = 3


class Job:
    """As many hosts as threads, which gather what they give."""

    def __init__(self, count: int) -> None:
        self.lost = [threading.Event() for _ in range(count)]
        self.gathered = [b""] * count
        all_gave = threading.Barrier(count)

        def gather_at(number: int) -> Callable[[bytes], list[bytes]]:
            def gather(own: bytes) -> list[bytes]:
                self.gathered[number] = own
                all_gave.wait(10)
                return self.gathered

            return gather

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            self.hosts = list(
                pool.map(
                    lambda number: OtherHosts(number, count, gather_at(number), self.lost[number].set), range(count)
                )
            )


@pytest.fixture
def job(monkeypatch) -> Iterator[Job]:
    monkeypatch.setattr(lost_hosts, "_LEAVE_SECONDS", 0.05)  # none of these ends its process when another is lost
    job = Job(NUM_HOSTS)
    yield job
    for host in job.hosts:
        host.leave()
    wait_for_threads()


def wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "other hosts":
            thread.join(5)
            assert not thread.is_alive()


def vanish(host: OtherHosts) -> None:
    """What the others see when its process is killed."""
    host.fall_silent()
    for connection in host._connections:
        with contextlib.suppress(OSError):  # closed when the other said goodbye
            connection.shutdown(socket.SHUT_RDWR)


def test_the_first_holds_a_connection_to_each_other_and_these_to_the_first(job):
    assert [host.num_watched for host in job.hosts] == [NUM_HOSTS - 1, 1, 1]
    assert not any(lost.is_set() for lost in job.lost)


def test_that_the_first_is_gone_is_noticed_by_all_others(job):
    vanish(job.hosts[0])
    assert job.lost[1].wait(5)
    assert job.lost[2].wait(5)
    assert not job.lost[0].is_set()


def test_that_another_is_gone_is_noticed_by_the_first_and_by_the_rest_from_it(job):
    vanish(job.hosts[1])
    assert job.lost[0].wait(5)
    assert job.lost[2].wait(5)
    assert not job.lost[1].is_set()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_hosts_that_say_goodbye_are_not_lost(job, order):
    for number in order:
        job.hosts[number].leave()
    wait_for_threads()
    assert not any(lost.is_set() for lost in job.lost)


def test_a_host_that_has_left_notices_nobody_any_more(job):
    job.hosts[0].leave()
    vanish(job.hosts[1])
    assert not job.lost[0].wait(0.2)


def test_a_host_that_knows_no_address_of_the_first_goes_on_unwatched(monkeypatch):
    monkeypatch.setattr(lost_hosts, "_own_addresses", lambda: ["127.0.0.2"])  # where nobody listens
    monkeypatch.setattr(lost_hosts, "_CONNECT_SECONDS", 0.2)
    real = socket.create_server
    monkeypatch.setattr(socket, "create_server", lambda _, **options: real(("127.0.0.1", 0), **options))
    job = Job(2)
    assert [host.num_watched for host in job.hosts] == [0, 0]
    job.hosts[0].leave()
    assert not any(lost.is_set() for lost in job.lost)


def test_where_the_first_cannot_listen_nobody_waits_for_it(monkeypatch):
    monkeypatch.setattr(socket, "create_server", mock.Mock(side_effect=OSError("no port is free")))
    assert [host.num_watched for host in Job(2).hosts] == [0, 0]


@pytest.mark.parametrize("knows_the_secret", [False, True])
def test_who_does_not_know_the_secret_or_did_not_wait_for_it_is_no_host(monkeypatch, knows_the_secret):
    monkeypatch.setattr(lost_hosts, "_CONNECT_SECONDS", 0.5)
    strangers: list[socket.socket] = []

    def gather(own: bytes) -> list[bytes]:
        first = json.loads(own)
        stranger = socket.create_connection(("127.0.0.1", first["port"]))
        stranger.sendall(bytes.fromhex(first["secret"]) if knows_the_secret else bytes(16))
        if knows_the_secret:
            stranger.shutdown(socket.SHUT_WR)  # as one that has closed its connection, as it waited too long
        strangers.append(stranger)
        return [own, b""]

    lost = threading.Event()
    assert OtherHosts(0, 2, gather, lost.set).num_watched == 0
    assert len(strangers[0].recv(17)) == (16 if knows_the_secret else 0)
    strangers[0].close()
    assert not lost.wait(0.1)
