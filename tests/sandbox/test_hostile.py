"""Every hostile tool gets the answer that was promised, and leaves nothing behind."""

import pytest

from sandbox.client import SandboxClient
from sandbox.contract.hostile import HOSTILE
from sandbox.contract.promise import Promise


@pytest.mark.parametrize("promise", [pytest.param(p, id=p.name) for p in HOSTILE])
def test_promise(client: SandboxClient, promise: Promise) -> None:
    assert promise.check(client) is None
