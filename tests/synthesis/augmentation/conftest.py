"""One sandbox for all tests of the folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sandbox.local import local_sandbox


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    with local_sandbox(workers=2) as url:
        yield url
