"""Asks questions in batches of an endpoint until it is killed: `python batch_run.py URL CACHE COUNT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from synthesis.prompts.task_scoring import ScoreTask
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher


async def main(url: str, cache: str, count: int) -> None:
    """Ask, and print that all is answered."""
    teacher = OpenAITeacher(
        OpenAITeacherConfig(
            model="mock", base_url=url, api_key_env="TEST_KEY", cache=Path(cache), batch=True,
            batch_wait_seconds=0.05, batch_poll_seconds=0.05,
        )
    )  # fmt: skip
    asked = [
        teacher.ask(ScoreTask(text=str(number), language="en", slots={}, hidden_slots=(), tools=()), seed=0)
        for number in range(count)
    ]
    await asyncio.gather(*asked)
    await teacher.close()
    print("answered", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
