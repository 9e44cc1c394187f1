"""One life of a run of the track, for tests that end it: it kills itself, as `kill -9` does, after so many seconds.

    python -m tests.synthesis.trajectories.mortal_run procedural|openai DIRECTORY SECONDS

The records go to DIRECTORY/out. With `openai` the run asks an endpoint of its own through the OpenAI teacher, whose
cache is DIRECTORY/replies.sqlite; every call that reaches the endpoint is a line of DIRECTORY/asked, and the endpoint
counts the call's name as its prompt tokens. Prints the seconds that a whole life took.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import threading
import time
from hashlib import sha256
from pathlib import Path

import aiohttp  # noqa: F401 - imported here, so that a life is spent on work
import openai  # noqa: F401

from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from tests.synthesis.teacher.mock_endpoint import MockEndpoint
from tests.synthesis.teacher.told_teacher import ToldTeacher, said, told


async def run_procedural(directory: Path) -> None:
    config = TrajectoriesConfig(
        count=240, out=directory / "out", follow_up_share=0.5, near_duplicate_similarity=0.8, concurrency=4
    )
    await synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO())


async def run_openai(directory: Path) -> None:
    config = TrajectoriesConfig(
        count=12, out=directory / "out", follow_up_share=0.5, proposals_per_server=4, walks_per_server=3, chain_votes=1,
        concurrency=8,
    )  # fmt: skip
    replies: dict[str, dict] = {}
    with (directory / "asked").open("a") as asked:

        def answer(body: dict) -> str:
            asked.write(f"{call_number(body)}\n")
            asked.flush()
            return said(told(replies, body))

        endpoint = MockEndpoint(answer, latency_seconds=0.01)
        endpoint.prompt_tokens = call_number
        async with endpoint.serving():
            settings = {"model": "mock", "base_url": endpoint.url, "api_key_env": "TEST_KEY"}
            teacher = ToldTeacher(OpenAITeacherConfig(**settings, cache=directory / "replies.sqlite"))
            teacher.replies = replies
            await synthesize_trajectories(config, teacher, progress=io.StringIO())
            await teacher.close()


def call_number(body: dict) -> int:
    """Name a call by a number below 2^48."""
    return int.from_bytes(sha256(json.dumps(body, sort_keys=True).encode()).digest()[:6], "big")


def main(teacher: str, directory: str, seconds: str) -> None:
    if float(seconds) != float("inf"):
        death = threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))
        death.daemon = True
        death.start()
    started = time.monotonic()
    asyncio.run({"procedural": run_procedural, "openai": run_openai}[teacher](Path(directory)))
    print(time.monotonic() - started)


if __name__ == "__main__":
    main(*sys.argv[1:])
