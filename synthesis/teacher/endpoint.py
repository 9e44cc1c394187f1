"""One endpoint: its connections, how many calls it bears at once, and what it was seen not to take.

What fails is told apart by `status_rules`; a connection that breaks, a reply that is cut or is no completion may pass,
as a 5xx may. What may pass is tried again, at most `max_retries` times, with jitter or after the `Retry-After` that the
endpoint asks for.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from synthesis.records import JsonObject, JsonValue
from synthesis.teacher.adaptive_concurrency import AdaptiveConcurrency
from synthesis.teacher.address import require_address
from synthesis.teacher.completion import Completion, completion_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.status_rules import Rule, rule_of, status_in
from synthesis.teacher.usage import QuestionCosts

_FIRST_DELAY_SECONDS: Final = 0.5
_LONGEST_DELAY_SECONDS: Final = 60.0
_CONNECT_SECONDS: Final = 5.0


class Answer(NamedTuple):
    """What came of one call."""

    status: int | None
    """None where nothing came that has one."""
    body: JsonValue = None
    problem: str = ""
    seconds: float = 0.0
    retry_after: str = ""
    error: Exception | None = None
    is_new: bool = True


class Endpoint:
    """Sends calls to one base URL with one key; the key is held in memory by the client, and written nowhere."""

    def __init__(self, base_url: str, api_key_env: str, limits: OpenAITeacherConfig):
        """Open the client.

        Raises:
            TeacherUnavailable: the `openai` package or the key is missing, or the key cannot be sent; or the address
                is none, or holds a key.
        """
        try:
            import aiohttp  # noqa: F401 - the client's transport, part of the extra
            import openai
        except ImportError as error:
            raise TeacherUnavailable(
                "the OpenAI teacher needs the `openai` package; run: pip install 'astra-jax[openai]'"
            ) from error
        key = os.environ.get(api_key_env)
        if not key:
            raise TeacherUnavailable(
                f"expected the endpoint's key in the environment variable {api_key_env}, found none; set it, or "
                "any text for an endpoint that wants no key"
            )
        # A header takes no other, and would fail at every call.
        if not (key.isascii() and key.isprintable() and key == key.strip()):
            raise TeacherUnavailable(
                f"expected the endpoint's key in {api_key_env} as one line of ASCII without spaces around it, found "
                "others; set it anew"
            )
        require_address(base_url, f"the teacher's base_url beside {api_key_env}")
        self._base_url, self._api_key_env, self._limits = base_url, api_key_env, limits
        self._openai: Any = openai
        self._client: Any = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            max_retries=0,  # `completed` tries again itself: it counts, and tells faults apart
            timeout=openai.Timeout(limits.request_seconds, connect=min(_CONNECT_SECONDS, limits.request_seconds)),
            http_client=openai.DefaultAioHttpClient(),  # a fifth of the CPU per call of the default client
        )
        self._concurrency = AdaptiveConcurrency(start=min(32, limits.max_concurrency), maximum=limits.max_concurrency)
        self._refused_fields: defaultdict[str, set[str]] = defaultdict(set)
        """Of each model: what the endpoint does not take from it."""
        self._failures_in_a_row = 0
        self._has_answered = False
        self._jitter = random.Random(0)  # spreads retries in time; nothing that is written depends on it

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def completed(
        self, question: str, call: JsonObject, costs: QuestionCosts, may_send: Callable[[], bool] = lambda: True
    ) -> Completion | None:
        """Return the completion of one call, a body of `/chat/completions`; what may pass is tried again.

        None where the call's turn has come and it may not be sent any more.

        Raises:
            BadReply: the question is refused, or every retry used up.
            TeacherUnavailable: no question can be answered just now.
        """
        problem, tries_left, attempt = "", self._limits.max_retries, 0
        while True:
            sent = self._taken_fields(call)
            answer = await self._answer(call, sent, costs, may_send)
            if answer is None:
                return None
            problem, rule = answer.problem, Rule("again")
            self._has_answered |= answer.status is not None
            status = status_in(answer.body) if answer.status == 200 else answer.status
            if answer.error is not None:
                self._require_somebody(answer.error, attempt)
            if status is not None:
                problem = f"HTTP {status}" if status == answer.status else f"HTTP 200 with an error {status}"
                self._push_back(status)
                rule = self._obeyed(rule_of(status, answer.body, sent), question, sent, problem, costs)
            elif answer.status == 200 and (completion := completion_of(answer.body)) is None:
                problem = "a completion without a message, or without a sensible count of tokens"
            elif answer.status == 200 and completion is not None:
                self._concurrency.succeeded(answer.seconds)
                self._failures_in_a_row = 0
                return replace(completion, is_new=answer.is_new)
            delay = self._delay_seconds(answer, attempt) if rule.action == "again" else 0.0
            if rule.action == "again":  # a field that is dropped costs no try: each is dropped once
                if not tries_left:
                    break
                tries_left, attempt = tries_left - 1, attempt + 1
                costs.retries += answer.is_new
            await asyncio.sleep(min(delay, _LONGEST_DELAY_SECONDS))
        self._count_failure(problem)
        raise BadReply(f"{question}: no answer after {self._limits.max_retries} retries, the last with {problem}")

    async def _answer(
        self, call: JsonObject, sent: JsonObject, costs: QuestionCosts, may_send: Callable[[], bool]
    ) -> Answer | None:
        """Send a call, as `sent`, when its turn has come; None where it may not be sent any more."""
        async with self._concurrency.slot():
            if not may_send():
                return None
            started = time.monotonic()
            costs.calls += 1
            try:
                # The typed `chat.completions.create` takes twice the CPU; the call is the same.
                body = await self._client.post("/chat/completions", body=sent, cast_to=object)
                # Measured inside the slot: the wait for a place is not the endpoint's latency.
                seconds = time.monotonic() - started
                costs.seconds += seconds
                return Answer(200, body, seconds=seconds)
            except self._openai.APIResponseValidationError as error:
                return Answer(None, problem=type(error).__name__)
            except self._openai.APIStatusError as error:  # not as asked, but somebody is there
                return Answer(error.status_code, error.body, retry_after=error.response.headers.get("retry-after", ""))
            except self._openai.APIConnectionError as error:
                # Time-outs and cut streams among them; their text may hold the request.
                return Answer(None, problem=type(error).__name__, error=error)
            except (ValueError, RecursionError):
                return Answer(None, problem="a body that is no JSON")

    def _delay_seconds(self, answer: Answer, attempt: int) -> float:
        """Return how long to wait before a call is sent again: as long as the endpoint asks for, else ever longer."""
        delay = _FIRST_DELAY_SECONDS * 2**attempt * self._jitter.uniform(0.5, 1.5)
        try:
            return max(0.0, float(answer.retry_after))
        except ValueError:  # not there, or the other form of the header, a date
            return delay

    def _push_back(self, status: int) -> None:
        if status == 429:
            self._concurrency.pushed_back()

    def _taken_fields(self, call: JsonObject) -> JsonObject:
        """Return the call without what the endpoint was seen not to take of this model."""
        refused = self._refused_fields[call["model"]]
        sent = {name: value for name, value in call.items() if name not in refused}
        # Two names of one limit: the older one where the newer is not known.
        if "max_completion_tokens" in refused and "max_completion_tokens" in call and "max_tokens" not in refused:
            sent["max_tokens"] = call["max_completion_tokens"]
        return sent

    def _obeyed(self, rule: Rule, question: str, sent: JsonObject, problem: str, costs: QuestionCosts) -> Rule:
        """Do what a rule says, and return it where the question goes on.

        Raises:
            BadReply: the question is refused.
            TeacherUnavailable: the run is to stop.
        """
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
        if rule.action == "drop":
            self._refused_fields[sent["model"]].add(rule.field)
            costs.dropped_fields.add(rule.field)
        return rule

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

    def _require_somebody(self, error: Exception, attempt: int) -> None:
        """Require that the endpoint has been connected to: nobody was ever there after one retry stops the run.

        Raises:
            TeacherUnavailable: nobody listens, there is no such host, or no network.
        """
        import httpx  # part of the extra, and 7 MB that a run without an endpoint does without

        cause = error.__cause__
        if self._has_answered or attempt < min(1, self._limits.max_retries):
            return
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout):
            raise TeacherUnavailable(
                f"no connection to the teacher at {self._base_url}: {str(cause) or type(cause).__name__}; start it, or "
                "check the address (teacher.base_url) and the network"
            ) from None
