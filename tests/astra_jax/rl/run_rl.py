"""Runs RL in a process of its own, for tests that kill it: `run_rl CONFIG_JSON SANDBOX_URL`."""

from __future__ import annotations

import asyncio
import sys

from astra_jax.cli.compile_cache import keep_compiled_programs
from astra_jax.rl.config import RLConfig
from astra_jax.rl.stage import run_rl
from sandbox.client import AsyncSandboxClient


async def run(config: RLConfig, url: str) -> None:
    async with AsyncSandboxClient(url) as sandbox:
        await run_rl(config, sandbox)


if __name__ == "__main__":
    keep_compiled_programs()
    asyncio.run(run(RLConfig.model_validate_json(sys.argv[1]), sys.argv[2]))
