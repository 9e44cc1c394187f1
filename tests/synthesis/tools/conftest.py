"""Tool servers at addresses, for the tests that reach them."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

SERVER = Path(__file__).with_name("http_server.py")


@pytest.fixture(scope="module")
def serving() -> Iterator[Callable[..., AbstractAsyncContextManager[psutil.Process]]]:
    """Starts a server as a process, and waits until it listens."""
    with subprocess.Popen([sys.executable, SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:

        @asynccontextmanager
        async def serve(port: int, *arguments: str) -> AsyncIterator[psutil.Process]:
            print(port, *arguments, file=forks.stdin, flush=True)
            process = psutil.Process(int(forks.stdout.readline()))
            try:
                async with asyncio.timeout(120):
                    while True:
                        try:
                            _, writer = await asyncio.open_connection("127.0.0.1", port)
                        except OSError:
                            assert process.is_running()
                            await asyncio.sleep(0.05)
                        else:
                            writer.close()
                            break
                yield process
            finally:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                process.wait()

        yield serve
