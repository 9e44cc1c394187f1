"""An endpoint whose calls go in batches: the same rules for what comes back, and a day of patience."""

from __future__ import annotations

import time
from collections.abc import Callable

from synthesis.records import JsonObject
from synthesis.teacher.batches import Batches
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.endpoint import Answer, Endpoint
from synthesis.teacher.usage import QuestionCosts


class BatchEndpoint(Endpoint):
    """Sends calls to one base URL with one key, in batches."""

    def __init__(self, base_url: str, api_key_env: str, limits: OpenAITeacherConfig):
        """Open the client, and the list of batches beside the replies.

        Raises:
            TeacherUnavailable: the `openai` package or the key is missing, or the key cannot be sent; or the address
                is none, or holds a key.
            ReplyFileError: the file of replies is damaged, another file, or cannot be written.
        """
        super().__init__(base_url, api_key_env, limits)
        self._batches = Batches(self._openai, self._client, base_url, api_key_env, limits)

    async def close(self) -> None:
        """Stop polling, and close the connections."""
        await self._batches.close()
        await super().close()

    async def _answer(
        self, call: JsonObject, sent: JsonObject, costs: QuestionCosts, may_send: Callable[[], bool]
    ) -> Answer | None:
        started = time.monotonic()
        found = await self._batches.answer_to(call, sent, may_send)
        if found is None:
            return None
        costs.calls += found.is_new
        seconds = time.monotonic() - started
        costs.seconds += seconds
        return Answer(found.status, found.body, found.problem, seconds, is_new=found.is_new)

    def _delay_seconds(self, answer: Answer, attempt: int) -> float:
        return 0.0  # the next batch waits to be filled
