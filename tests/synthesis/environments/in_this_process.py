"""A sandbox for tools that a test wrote itself: they run in this process."""

from __future__ import annotations

from astra_jax.testing import InProcessSandbox


class InThisProcess:
    """Runs the calls of a batch one after the other."""

    async def execute_batch(self, requests):
        sandbox = InProcessSandbox()
        return [
            await sandbox.execute(request.source or "", request.function, request.arguments, state=request.state)
            for request in requests
        ]
