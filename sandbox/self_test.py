"""The tier of isolation that holds on this machine: found by a start in it, and attacks on it, never assumed.

The attacks are the promises of `contract.promises.AT_START`. They run through the service's own pool, with a file of
the host as bait. If one promise is broken, the tier does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.contract.promise import Promise, promise
from sandbox.contract.promises import AT_START
from sandbox.contract.walls import CHANGE_FILE
from sandbox.errors import RefusedToStart, ServiceFault
from sandbox.execution import Execution
from sandbox.isolation import Tier
from sandbox.jail.launcher import SANDBOX_UID
from sandbox.packages import NO_PACKAGES, Packages
from sandbox.pool import Pool
from sandbox.protocol import ExecuteReply

_CLIENT = "self-test"
_OVERSHOOT_SECONDS = 60.0  # a machine that is busy may start slowly

_FIXES = {
    Tier.NAMESPACES: (
        "allow unprivileged user namespaces (sysctl user.max_user_namespaces > 0, kernel.unprivileged_userns_clone=1, "
        "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0 or a profile for this Python; in Docker a seccomp "
        "profile that allows unshare, setns, mount, umount2 and pivot_root, see docs/sandbox.md)"
    ),
    Tier.LANDLOCK: (
        "Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK and `landlock` in the kernel's `lsm=` list, seccomp "
        "allowed, and a Python that every user may read (or start the service as an ordinary user)"
    ),
}


@dataclass(frozen=True)
class Isolation:
    """The tier that held, and why stronger tiers did not hold."""

    tier: Tier
    refused: dict[str, str] = field(default_factory=dict)


async def establish(minimum: Tier, packages: Packages = NO_PACKAGES) -> Isolation:
    """Return the strongest tier that keeps the promises, and in which tools can import each of the packages.

    A weaker tier is never tried for a package's sake.

    Raises:
        RefusedToStart: no tier of `minimum` or above keeps them, or one keeps them without the packages alone.
    """
    refused: dict[str, str] = {}
    for tier in [Tier.NAMESPACES] if minimum is Tier.NAMESPACES else Tier:
        try:
            await _probe(tier)
        except ServiceFault as error:
            refused[tier] = str(error)
            continue
        if packages.versions:
            try:
                await _probe(tier, packages)
            except ServiceFault as error:
                raise RefusedToStart(
                    f"tools cannot have the packages of {packages.folder} in the tier `{tier}`: {error}"
                ) from None
        return Isolation(tier, refused)
    lines = [f"no isolation of at least the tier `{minimum}` holds on this machine"]
    for name, why in refused.items():
        lines += [f"  {name}: {why}", f"    to have it: {_FIXES[Tier(name)]}"]
    raise RefusedToStart("\n".join(lines))


async def _probe(tier: Tier, packages: Packages = NO_PACKAGES) -> None:
    """Attack a tier; a broken promise, or a package that cannot be imported, is a fault of the service."""
    pool = Pool(tier, workers=1, max_children=8, packages=packages)
    try:
        await pool.start()
        execution = Execution(pool)
        asked = [one for one in AT_START if tier is Tier.NAMESPACES or not one.needs_namespaces]
        with _bait() as canary:
            bait = {"path": str(canary), "address": str(canary.parent / "socket")}
            asked = [dataclasses.replace(one, arguments=one.arguments | bait) for one in asked]
            for name in packages.imported:
                about = f"tools can import {name} and not change it"
                asked.append(promise(about, "ok", CHANGE_FILE, value=[], arguments={"module": name}))
            before = _seen_from_outside(canary, canary.parent)
            verdicts = await asyncio.gather(*(_check(execution, one) for one in asked))
            broken = [found for found in verdicts if found]
            # A change that the attack made and could not notice counts as well.
            if _seen_from_outside(canary, canary.parent) != before:
                broken.append("a file of the host was changed")
        if broken:
            raise ServiceFault(f"the self-test escaped: {'; '.join(broken)}")
    finally:
        await pool.close()


async def _check(execution: Execution, one: Promise) -> str | None:
    replies = [
        ExecuteReply.model_validate_json(await execution.execute_call(_CLIENT, request)) for request in one.requests()
    ]
    found = one.verdict(replies, _OVERSHOOT_SECONDS)
    return found and f"{one.name}: {found}"


@contextlib.contextmanager
def _bait() -> Iterator[Path]:
    """Yield a file of the host that belongs, with its folder, to the tools' own user, and that no tool may touch."""
    with tempfile.TemporaryDirectory(prefix="sandbox-self-test-") as folder:
        path = Path(folder) / "canary"
        path.write_text(secrets.token_hex(16))
        for bait, mode in ((path, 0o644), (path.parent, 0o777)):
            bait.chmod(mode)
            if os.geteuid() == 0:
                os.chown(bait, SANDBOX_UID, SANDBOX_UID)
        yield path


def _seen_from_outside(*paths: Path) -> list[tuple[int, ...]]:
    """Return the state of files, with the kernel's own time of change, which shows even a change that was undone."""
    found = [path.stat() for path in paths if path.exists()]
    return [(status.st_ino, status.st_mode, status.st_uid, status.st_size, status.st_ctime_ns) for status in found]
