"""A question, its reply, and teachers that ask a mock endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from synthesis.prompts.tasks import ScoredTask, ScoreTask
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.openai import OpenAITeacher
from tests.synthesis.teacher.mock_endpoint import MockEndpoint

SCORES = ScoredTask(reason="plain", clarity=0.9, realism=0.8, tool_necessity=0.7)
KEY = "sk-test-0123456789-secret"


@pytest.fixture(autouse=True)
def key(monkeypatch):
    monkeypatch.setenv("TEST_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def scored(_: dict) -> str:
    return SCORES.model_dump_json()


def question(text: str = "Book a hotel.") -> ScoreTask:
    return ScoreTask(text=text, language="en", slots={}, hidden_slots=(), tools=())


def teacher_of(endpoint: MockEndpoint, kind: type[OpenAITeacher] = OpenAITeacher, **changes: Any) -> Any:
    settings = {"model": "mock", "base_url": endpoint.url, "api_key_env": "TEST_KEY", "request_seconds": 0.5}
    return kind(OpenAITeacherConfig(**(settings | changes)))


@asynccontextmanager
async def asking(
    answer: Callable[[dict], str | dict] = scored, *, latency_seconds: float = 0.0, **settings: Any
) -> AsyncIterator[tuple[MockEndpoint, OpenAITeacher]]:
    """Yield an endpoint that answers as it is told, and a teacher that asks it, closed at the end."""
    async with MockEndpoint(answer, latency_seconds=latency_seconds).serving() as endpoint:
        teacher = teacher_of(endpoint, **settings)
        try:
            yield endpoint, teacher
        finally:
            await teacher.close()
