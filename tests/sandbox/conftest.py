"""One real service for the whole folder."""

import httpx
import pytest

from sandbox.client import SandboxClient
from sandbox.local import local_sandbox


@pytest.fixture(scope="session")
def sandbox_url():
    with local_sandbox(workers=2) as url:
        yield url


@pytest.fixture(scope="session")
def client(sandbox_url):
    with SandboxClient(sandbox_url) as client:
        yield client


@pytest.fixture(scope="session")
def http_client(sandbox_url):
    with httpx.Client(base_url=sandbox_url, trust_env=False, timeout=60) as client:
        yield client
