"""One endpoint: its client, the calls that it bears at once, and the fields that it refuses.

The client (`client`) repeats a call up to `max_retries` times if the rule of its status (`status_rules`) is `again`. A
200 without a message counts as 502, and a 200 whose body holds an error counts as the status of that error.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NoReturn

from synthesis.records import JsonObject, JsonValue
from synthesis.teacher.adaptive_concurrency import AdaptiveConcurrency
from synthesis.teacher.client import open_client
from synthesis.teacher.completion import Completion, completion_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.status_rules import rule_of, status_in
from synthesis.teacher.usage import QuestionCosts

_BAD_GATEWAY: Final = 502
_PROBLEM: Final = "astra_problem"
"""Extension of a response that holds the words for its fault."""


class Endpoint:
    """Sends calls to one base URL with one key."""

    def __init__(self, base_url: str, api_key_env: str, limits: OpenAITeacherConfig):
        """Open the client.

        Raises:
            TeacherUnavailable: as `open_client`.
        """
        self._client = open_client(base_url, api_key_env, limits, self._look_at)
        self._base_url, self._api_key_env, self._limits = base_url, api_key_env, limits
        self._concurrency = AdaptiveConcurrency(start=min(32, limits.max_concurrency), maximum=limits.max_concurrency)
        self._refused_fields: defaultdict[str, set[str]] = defaultdict(set)
        """The fields that the endpoint does not take, by model."""
        self._failures_in_a_row = 0
        self._has_answered = False

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def completed(
        self, question: str, call: JsonObject, costs: QuestionCosts, may_send: Callable[[], bool] = lambda: True
    ) -> Completion | None:
        """Return the completion of one call, a body of `/chat/completions`.

        None if the call has waited for its turn and may not be sent any more.

        Raises:
            BadReply: the question is refused, or every retry used up.
            TeacherUnavailable: no question can be answered just now.
        """
        import httpx
        import openai

        while True:  # ends: each field is left out once
            async with self._concurrency.slot():
                if not may_send():
                    return None
                sent = self._taken_fields(call)
                try:
                    # The typed `chat.completions.create` takes twice the CPU; the call is the same.
                    response = await self._client.post("/chat/completions", body=sent, cast_to=httpx.Response)
                except openai.APIStatusError as error:
                    _count_calls(error.request, costs)
                    self._obey(question, sent, error, costs)
                    continue
                except openai.APIConnectionError as error:  # its text may hold the request
                    _count_calls(error.request, costs)
                    self._require_connected(error)
                    self._give_up(question, type(error).__name__)
            _count_calls(response.request, costs)
            seconds = response.elapsed.total_seconds()
            costs.seconds += seconds
            self._concurrency.succeeded(seconds)
            self._failures_in_a_row = 0
            completion = completion_of(response.json())
            assert completion is not None, "looked at before"
            return completion

    async def _look_at(self, response: Any) -> None:
        """Note the status that a response stands for, and tell the client whether to send the call again."""
        self._has_answered = True
        body = _json_of(await response.aread())
        if response.is_success and completion_of(body) is None:
            status = status_in(body)
            response.extensions[_PROBLEM] = (
                f"HTTP {response.status_code} with an error {status}"
                if status
                else "a completion without a message, or without a sensible count of tokens"
            )
            response.status_code = status or _BAD_GATEWAY
        if response.status_code == 429:
            self._concurrency.pushed_back()
        may_pass = not response.is_success and rule_of(response.status_code, body, ()).action == "again"
        response.headers["x-should-retry"] = str(may_pass).lower()

    def _taken_fields(self, call: JsonObject) -> JsonObject:
        """Return the call without the fields that the endpoint was seen not to take for this model."""
        refused = self._refused_fields[call["model"]]
        sent = {name: value for name, value in call.items() if name not in refused}
        # Two names of one limit: the older one if the newer is not known.
        if "max_completion_tokens" in refused and "max_completion_tokens" in call and "max_tokens" not in refused:
            sent["max_tokens"] = call["max_completion_tokens"]
        return sent

    def _obey(self, question: str, sent: JsonObject, error: Any, costs: QuestionCosts) -> None:
        """Follow the rule for a status; return if the call goes on without a field.

        Raises:
            BadReply: the question is refused.
            TeacherUnavailable: the run is to stop.
        """
        problem = error.response.extensions.get(_PROBLEM) or f"HTTP {error.status_code}"
        rule = rule_of(error.status_code, _json_of(error.response.content), sent)
        if rule.action == "stop":
            raise TeacherUnavailable(
                f"{self._base_url} refuses model {sent['model']!r} ({problem}); check the address, the model's name "
                f"and the key in {self._api_key_env}"
            ) from None
        if rule.action == "budget":
            raise TeacherUnavailable(
                f"the budget at {self._base_url} is used up ({problem}); add to it and run the same command again"
            ) from None
        if rule.action == "too_long":
            raise BadReply(f"{question}: too long for model {sent['model']!r} ({problem})") from None
        if rule.action == "reject":
            self._count_failure(problem)
            raise BadReply(f"{question}: the endpoint refuses the question ({problem})") from None
        if rule.action == "again":
            self._give_up(question, problem)
        self._refused_fields[sent["model"]].add(rule.field)
        costs.dropped_fields.add(rule.field)

    def _give_up(self, question: str, problem: str) -> NoReturn:
        self._count_failure(problem)
        raise BadReply(
            f"{question}: no answer after {self._limits.max_retries} retries, the last with {problem}"
        ) from None

    def _count_failure(self, problem: str) -> None:
        """Count a question that got no answer.

        Raises:
            TeacherUnavailable: it was one too many in a row.
        """
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._limits.max_failures_in_a_row:
            raise TeacherUnavailable(
                f"{self._base_url} has left {self._failures_in_a_row} questions in a row unanswered, the last "
                f"with {problem}; run the same command again when it is back"
            ) from None

    def _require_connected(self, error: Exception) -> None:
        """Stop the run if the endpoint was never connected to: there is no such host, port or network.

        Raises:
            TeacherUnavailable: it was not.
        """
        import httpx

        cause = error.__cause__
        if not self._has_answered and isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            raise TeacherUnavailable(
                f"no connection to the teacher at {self._base_url}: {str(cause) or type(cause).__name__}; start it, or "
                "check the address (teacher.base_url) and the network"
            ) from None


def _count_calls(request: Any, costs: QuestionCosts) -> None:
    """Count a call and its retries, whose number the client writes into the last request."""
    retries = int(request.headers.get("x-stainless-retry-count", 0))
    costs.calls += 1 + retries
    costs.retries += retries


def _json_of(content: bytes) -> JsonValue:
    """Return the value of a JSON body, and the text of any other."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode(errors="replace")
