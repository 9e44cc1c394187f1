"""Fixtures of many tests: a sandbox, a tokenizer, and a tiny policy that has learnt one gold episode."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.checkpoints.policy import Policy
from astra_jax.model.qwen3 import init_params
from astra_jax.testing import tiny_model_config, tiny_tokenizer
from sandbox.local import local_sandbox
from tests.astra_jax.taught import taught_policy
from tests.synthesis.environments.in_this_process import here  # noqa: F401


@pytest.fixture(scope="session")
def sandbox_url() -> Iterator[str]:
    """A service for all tests that need none of their own."""
    with local_sandbox(workers=1) as url:
        yield url


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return tiny_tokenizer()


@pytest.fixture(scope="session")
def untrained(tokenizer) -> Policy:
    model = tiny_model_config(tokenizer.vocab_size)
    return Policy(model, init_params(model, seed=0), tokenizer)


@pytest.fixture(scope="session")
def taught(tokenizer) -> Policy:
    return taught_policy(tokenizer)
