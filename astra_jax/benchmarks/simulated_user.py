"""Who plays the user of a benchmark: another model, at an endpoint that is named for it."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from astra_jax.evaluate.endpoint import Endpoint

USER_KEY_VARIABLE: Final = "ASTRA_USER_KEY"


class SimulatedUser(BaseModel):
    """Who plays the user; the paper's are GPT-5.1 in τ²-bench and GPT-4.1 in ACEBench."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern="^https?://")
    """Address of a server of OpenAI's chat, without /v1; its key is in ASTRA_USER_KEY."""
    model: str
    """Name of the model that plays the user."""
    temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the user."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the user's longest message; without it the server's default."""

    def endpoint(self) -> Endpoint:
        """Return where it is asked."""
        return Endpoint(self.url.rstrip("/"), self.model, 0, False, None, USER_KEY_VARIABLE)
