"""Every hostile tool gets the answer that was promised, and leaves nothing behind."""

import pytest

from sandbox.client import SandboxClient
from sandbox.contract.promise import Promise
from sandbox.contract.promises import PROMISES


@pytest.mark.parametrize("promise", [pytest.param(p, id=p.name) for p in PROMISES])
def test_promise(client: SandboxClient, promise: Promise) -> None:
    assert (
        promise.check(client, overshoot_seconds=5.0) is None
    )  # tests share their machine; the benchmark measures 0.25
