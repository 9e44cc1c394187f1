"""Real processes, as /proc shows them."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def children(pid: int) -> list[int]:
    """The processes whose parent is `pid`."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(entry))
    return found


def descendants(pid: int) -> list[int]:
    """All processes below `pid`."""
    found = children(pid)
    return found + [below for child in found for below in descendants(child)]


def service_process(url: str) -> int:
    """The service that listens on this URL's port."""
    port = int(url.rsplit(":", 1)[1])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    inodes = {line.split()[9] for line in lines if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"}
    for child in children(os.getpid()):
        for fd in os.listdir(f"/proc/{child}/fd"):
            with suppress(FileNotFoundError):  # closed since it was listed
                if os.readlink(f"/proc/{child}/fd/{fd}")[8:-1] in inodes:
                    return child
    raise AssertionError(f"no process listens on {port}")


def zygotes(service: int) -> list[int]:
    """The jailed processes of a service: the children of its launchers."""
    return [zygote for launcher in children(service) for zygote in children(launcher)]


def descriptors(pid: int) -> int:
    """Open descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def rss_bytes(pid: int) -> int:
    """Resident memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def zombies(pids: list[int]) -> int:
    """Return how many have ended and were not waited for."""
    count = 0
    for pid in pids:
        with suppress(OSError):
            count += Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return count


def wait_until(holds: Callable[[], bool], seconds: float = 10.0) -> float:
    """Seconds until `holds()`; fails after `seconds`."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, "waited in vain"
        time.sleep(0.01)
    return time.monotonic() - began
