"""Which models are asked, and within what limits."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class OpenAITeacherConfig(BaseModel):
    """Which model is asked, and within what limits."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    base_url: str = "https://api.openai.com/v1"
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key; the key itself is nowhere in a configuration."""
    cache: Path | None = None
    """An SQLite file of replies; without one nothing is remembered between runs."""
    temperature: float = Field(default=1.0, ge=0)
    max_completion_tokens: int = Field(default=4096, ge=1)
    max_concurrency: int = Field(default=64, ge=1)
    request_seconds: float = Field(default=120.0, gt=0)
    """Time limit of one call."""
    deadline_seconds: float = Field(default=900.0, gt=0)
    """Time limit of one question, its retries and repair included."""
    max_retries: int = Field(default=3, ge=0)
    max_repairs: int = Field(default=2, ge=0)
    """How often a question whose reply cannot be read is asked again, with what is wrong with it quoted."""
    max_failures_in_a_row: int = Field(default=32, ge=1)
    """So many questions without an answer, and none with one between, are an outage."""
    usd_per_million_prompt_tokens: float = Field(default=0.0, ge=0)
    usd_per_million_completion_tokens: float = Field(default=0.0, ge=0)
