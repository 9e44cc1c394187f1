"""One endpoint: its client, the calls that it bears at once, and the fields that it refuses.

The client is that of the `openai` package. It repeats a call up to `max_retries` times if the rule of its status
(`status_rules`) is `again`: after `Retry-After` (at most two minutes) or a growing time with jitter. A 200 without a
message counts as 502, and a 200 whose body holds an error counts as the status of that error.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from anyio import CapacityLimiter

from synthesis.records import JsonObject, JsonValue
from synthesis.teacher.calls import Completion, completion_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import BadReply, TeacherUnavailable
from synthesis.teacher.status_rules import rule_of, status_in
from synthesis.teacher.usage import QuestionCosts

_BAD_GATEWAY: Final = 502
_PROBLEM: Final = "astra_problem"
"""Extension of a response that holds the words for its fault."""
_MOST_PORT: Final = 2**16 - 1
_CONNECT_SECONDS: Final = 5.0
_FIRST_CALLS: Final = 32
_LATENCY_GROWTH: Final = 2.0
"""Multiple of the best latency so far, up to which latency counts as flat."""


class AdaptiveConcurrency:
    """The number of calls in flight: it grows while latency is flat, and halves at a 429.

    It doubles per round trip until the endpoint first pushes back, and grows by one per round trip from then on.
    """

    def __init__(self, *, start: int, maximum: int, clock: Callable[[], float] = time.monotonic):
        self.limit = float(min(start, maximum))
        self.slots = CapacityLimiter(int(self.limit))
        """Places among the calls in flight; entering waits for one."""
        self._maximum, self._clock = maximum, clock
        self._is_probing = True
        self._best_seconds = float("inf")
        self._smoothed_seconds = 0.0
        self._last_cut = float("-inf")

    def succeeded(self, seconds: float) -> None:
        """Grow after a success, while latency is flat."""
        self._best_seconds = min(self._best_seconds, seconds)
        weight = 0.1 if self._smoothed_seconds else 1.0  # the first success is the average so far
        self._smoothed_seconds += weight * (seconds - self._smoothed_seconds)
        # One more per success doubles the limit in a round trip; 1 / limit per success adds one in a round trip.
        if self._smoothed_seconds <= _LATENCY_GROWTH * self._best_seconds:
            self.limit = min(self._maximum, self.limit + (1.0 if self._is_probing else 1.0 / self.limit))
        self.slots.total_tokens = int(self.limit)

    def pushed_back(self) -> None:
        """Halve, at most once per round trip: the calls that are in flight were sent at the old rate."""
        self._is_probing = False
        now = self._clock()
        if now - self._last_cut >= self._smoothed_seconds:
            self._last_cut = now
            self.limit = max(1.0, self.limit / 2)
            self.slots.total_tokens = int(self.limit)


class Endpoint:
    """Sends calls to one base URL with one key, which is held in memory and written nowhere."""

    def __init__(self, base_url: str, api_key_env: str, limits: OpenAITeacherConfig):
        """Open the client.

        Raises:
            TeacherUnavailable: the `openai` package or the key is missing, the key cannot be sent, or the address is
                not one of HTTP or holds a key.
        """
        if found := _fault_of(base_url):
            raise TeacherUnavailable(  # without the address, which may hold the key
                f"the teacher's base_url beside {api_key_env}: expected an address such as https://host/v1, found "
                f"{found}; mend it, and name the variable that holds the key in api_key_env"
            )
        key = _key_in(api_key_env)
        try:
            import aiohttp  # noqa: F401 - the client's transport, part of the extra
            import openai
        except ImportError as error:
            raise TeacherUnavailable(
                "the OpenAI teacher needs the `openai` package; run: pip install 'astra-jax[openai]'"
            ) from error
        self._client = openai.AsyncOpenAI(
            api_key=key,
            base_url=base_url,
            max_retries=limits.max_retries,
            timeout=openai.Timeout(limits.request_seconds, connect=min(_CONNECT_SECONDS, limits.request_seconds)),
            # A fifth of the CPU per call of the default client, whose pool looks through all connections for each call.
            http_client=openai.DefaultAioHttpClient(event_hooks={"response": [self._look_at]}),
        )
        self._base_url, self._api_key_env, self._limits = base_url, api_key_env, limits
        self.concurrency = AdaptiveConcurrency(start=_FIRST_CALLS, maximum=limits.max_concurrency)
        self._refused_fields: defaultdict[str, set[str]] = defaultdict(set)
        """The fields that the endpoint does not take, by model."""
        self._failures_in_a_row = 0
        self._has_answered = False

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def completed(
        self, question: str, call: JsonObject, costs: QuestionCosts, may_send: Callable[[], bool]
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
            async with self.concurrency.slots:
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
                    self._require_connected(error.__cause__)
                    self._give_up(question, type(error).__name__)
            _count_calls(response.request, costs)
            seconds = response.elapsed.total_seconds()
            costs.seconds += seconds
            self.concurrency.succeeded(seconds)
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
            self.concurrency.pushed_back()
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
        """Follow the rule for a status: reject the question, stop the run, or go on without a field."""
        problem = error.response.extensions.get(_PROBLEM) or f"HTTP {error.status_code}"
        rule = rule_of(error.status_code, _json_of(error.response.content), sent)
        match rule.action:
            case "stop":
                raise TeacherUnavailable(
                    f"{self._base_url} refuses model {sent['model']!r} ({problem}); check the address, the model's "
                    f"name and the key in {self._api_key_env}"
                ) from None
            case "budget":
                raise TeacherUnavailable(
                    f"the budget at {self._base_url} is used up ({problem}); add to it and run the same command again"
                ) from None
            case "too_long":
                raise BadReply(f"{question}: too long for model {sent['model']!r} ({problem})") from None
            case "reject":
                self._count_failure(problem)
                raise BadReply(f"{question}: the endpoint refuses the question ({problem})") from None
            case "again":
                self._give_up(question, problem)
        self._refused_fields[sent["model"]].add(rule.field)
        costs.dropped_fields.add(rule.field)

    def _give_up(self, question: str, problem: str) -> NoReturn:
        self._count_failure(problem)
        raise BadReply(
            f"{question}: no answer after {self._limits.max_retries} retries, the last with {problem}"
        ) from None

    def _count_failure(self, problem: str) -> None:
        """Count a question that got no answer; stop the run if it was one too many in a row."""
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._limits.max_failures_in_a_row:
            raise TeacherUnavailable(
                f"{self._base_url} has left {self._failures_in_a_row} questions in a row unanswered, the last "
                f"with {problem}; run the same command again when it is back"
            ) from None

    def _require_connected(self, cause: BaseException | None) -> None:
        """Stop the run if the endpoint was never connected to: there is no such host, port or network."""
        import httpx

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


def _key_in(api_key_env: str) -> str:
    key = os.environ.get(api_key_env)
    if not key:
        raise TeacherUnavailable(
            f"the environment variable {api_key_env} has no key for the endpoint; set it, or any text for an endpoint "
            "that wants no key"
        )
    # An HTTP header takes no other text, and each call would fail.
    if not (key.isascii() and key.isprintable() and key == key.strip()):
        raise TeacherUnavailable(
            f"the endpoint's key in {api_key_env} is not one line of ASCII without spaces around it; set it anew"
        )
    return key


def _fault_of(address: str) -> str:
    """Return the reason why an address is not one of HTTP, or holds a key; empty if it is one without."""
    import httpx  # 7 MB that a run without an endpoint does not need

    try:
        urlsplit(address)  # notices brackets that do not close
        url = httpx.URL(address)
    except (ValueError, httpx.InvalidURL):  # their texts repeat a part of the address
        return "one that cannot be read"
    if url.scheme not in ("http", "https") or not url.host:
        return "one without http:// or https:// and a host"
    if url.port is not None and url.port > _MOST_PORT:
        return f"one whose port is above {_MOST_PORT}"
    if url.userinfo:
        return "one with a user in it"
    return "one with a query or a fragment, behind which no path can stand" if url.query or url.fragment else ""
