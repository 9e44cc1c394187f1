"""Calls sent in batches: gathered, uploaded as lines of a file, polled, their answers read from another file.

call ─► queue of its model ─► file ─► batch ─► polled until it ends ─► a line per call ─► Answer
        (until so many, or so long)   └─ its id is kept beside the replies, so that a run that was killed polls on
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeVar

from synthesis.records import JsonObject, JsonValue, canonical_json
from synthesis.teacher.batch_table import BatchTable, OpenBatch
from synthesis.teacher.completion import completion_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.protocol import TeacherUnavailable
from synthesis.teacher.status_rules import rule_of, status_in

Given = TypeVar("Given")

_ENDED: Final = frozenset({"completed", "failed", "expired", "cancelled"})
_MOST_BYTES: Final = 100_000_000
"""Of one file; endpoints take 200 MB."""
_LONGEST_DELAY_SECONDS: Final = 60.0
_MARK: Final = "astra_batch"
_LISTED_BEFORE_SECONDS: Final = 3600.0
"""Clocks may differ by so much."""


_MOST_SHOWN_CHARACTERS: Final = 200


class _Unusable(ValueError):
    """A reply to a request about a batch that lacks what it was asked for; never leaves this file."""


class BatchAnswer(NamedTuple):
    """What a batch has to say to one call."""

    status: int | None
    """HTTP status of the line; None where there is no answer, and the call may be sent again."""
    body: JsonValue
    problem: str = ""
    is_new: bool = True
    """Whether nobody who asked the same was told it before, in this command or another, and counted what it cost."""


@dataclass
class _Waited:
    """What all who ask one question wait for together."""

    answer: asyncio.Future[BatchAnswer | None]
    is_counted: bool = False
    """Whether one of them was told that it is new."""


class _Queued(NamedTuple):
    line: bytes
    may_send: Callable[[], bool]


class Batches:
    """The batches of one endpoint. A call that is in one already, or was answered in one, is not sent again."""

    def __init__(self, openai: Any, client: Any, base_url: str, api_key_env: str, config: OpenAITeacherConfig):
        """`client` is that of the package `openai`, without retries of its own.

        Raises:
            ReplyFileError: the file of replies is damaged; so may `answer_to`.
        """
        assert config.cache is not None
        self._openai, self._client, self._config = openai, client, config
        self._base_url, self._api_key_env = base_url, api_key_env
        self._table = BatchTable(config.cache, base_url, api_key_env)
        self._earlier = self._table.open_batches()
        """Of earlier runs, to be polled on: read before any batch of this run is written down beside them."""
        self._queues: defaultdict[str, dict[str, _Queued]] = defaultdict(dict)
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._waiting: dict[str, _Waited] = {}
        self._under_way: set[str] = set()
        """Questions of the batches that were sent."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer_to(self, call: JsonObject, sent: JsonObject, may_send: Callable[[], bool]) -> BatchAnswer | None:
        """Return the answer to a call; None where its batch leaves and it may not be sent any more.

        `sent` is the call without what the endpoint refuses, as its line says it. The line is named by the whole call:
        by its seed two draws of one prompt are two questions, also where the endpoint takes no seed.

        Raises:
            TeacherUnavailable: the endpoint takes no batches, or has given one up.
        """
        self._resume()
        question = "q-" + sha256(canonical_json(call).encode()).hexdigest()[:40]
        if (kept := self._taken(question)) is not None:
            return kept
        if question not in self._waiting:
            self._waiting[question] = _Waited(asyncio.get_running_loop().create_future())
            self._waiting[question].answer.add_done_callback(lambda done: done.cancelled() or done.exception())
            if question not in self._under_way:
                self._queue(question, sent, may_send)
        waited = self._waiting[question]
        answer = await asyncio.shield(waited.answer)
        # Whoever is still there counts: the first who asked may have been cancelled.
        if answer is None or (kept := self._taken(question)) is not None:
            return kept
        is_new, waited.is_counted = not waited.is_counted, True
        return answer._replace(problem=self._shown(answer.problem), is_new=is_new)

    def _taken(self, question: str) -> BatchAnswer | None:
        if (kept := self._table.take(question)) is None:
            return None
        body, is_new = kept
        return BatchAnswer(200, body, is_new=is_new)

    async def close(self) -> None:
        """Stop polling; what was sent is polled by the next run."""
        tasks = [*self._tasks, *self._timers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for waiting in self._waiting.values():
            waiting.answer.cancel()
        self._table.close()

    # --- gathering ---

    def _queue(self, question: str, call: JsonObject, may_send: Callable[[], bool]) -> None:
        model = call["model"]  # a file has calls of one model
        line = {"custom_id": question, "method": "POST", "url": "/v1/chat/completions", "body": call}
        queue = self._queues[model]
        encoded = json.dumps(line, ensure_ascii=False).encode() + b"\n"
        if sum(len(each.line) for each in queue.values()) + len(encoded) > _MOST_BYTES:
            self._send(model)
            queue = self._queues[model]
        queue[question] = _Queued(encoded, may_send)
        if len(queue) >= self._config.batch_questions:
            self._send(model)
        elif model not in self._timers:
            self._timers[model] = asyncio.create_task(self._send_later(model))

    async def _send_later(self, model: str) -> None:
        await asyncio.sleep(self._config.batch_wait_seconds)
        del self._timers[model]  # first: `_send` cancels a timer
        self._send(model)

    def _send(self, model: str) -> None:
        if (timer := self._timers.pop(model, None)) is not None:
            timer.cancel()
        queue = self._queues.pop(model, {})
        for question in [name for name, queued in queue.items() if not queued.may_send()]:
            del queue[question]
            self._give(question, None)
        if queue:
            self._under_way |= queue.keys()
            self._start(list(queue), self._send_batch(queue))

    def _start(self, questions: Sequence[str], work: Coroutine[Any, Any, None]) -> None:
        async def working() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001 - whoever waits for an answer is told
                for question in questions:
                    if (waiting := self._waiting.pop(question, None)) is not None and not waiting.answer.done():
                        waiting.answer.set_exception(error)
            finally:
                self._under_way.difference_update(questions)

        task = asyncio.create_task(working())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _give(self, question: str, answer: BatchAnswer | None) -> None:
        if (waiting := self._waiting.pop(question, None)) is not None and not waiting.answer.done():
            waiting.answer.set_result(answer)

    # --- sending and polling ---

    def _resume(self) -> None:
        """Go on polling what an earlier run has sent."""
        earlier, self._earlier = self._earlier, []
        for batch in earlier:
            self._under_way |= set(batch.questions)
            self._start(batch.questions, self._follow_again(batch))

    async def _follow_again(self, batch: OpenBatch) -> None:
        batch_id = batch.id or await self._found(batch)
        if batch_id is None:  # it was never sent
            self._end(batch, {}, "a batch that was not sent")
        else:
            self._table.name(batch.mark, batch_id)
            await self._follow(batch, batch_id)

    async def _send_batch(self, queue: dict[str, _Queued]) -> None:
        content = b"".join(queued.line for queued in queue.values())
        # Before it is sent: were we killed between, the batch would be found by its mark.
        batch = self._table.begin(uuid.uuid4().hex, list(queue))

        async def upload() -> str:
            return _text_in(
                await self._client.files.create(file=(f"{batch.mark}.jsonl", content), purpose="batch"), "id"
            )

        file = await self._asked(upload)
        sent: Any = None

        async def send() -> str:
            nonlocal sent
            if sent is not None and (found := await self._found(batch)) is not None:
                return found  # the call before this one failed, and its batch was made
            sent = True
            made = await self._client.batches.create(
                input_file_id=file,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={_MARK: batch.mark},
            )
            return _text_in(made, "id")

        batch_id = await self._asked(send)
        self._table.name(batch.mark, batch_id)
        await self._follow(batch, batch_id)

    async def _found(self, batch: OpenBatch) -> str | None:
        """Return the id of a batch that was sent and not written down; None where it was not sent."""

        async def look() -> str | None:
            seen: set[str] = set()
            try:
                async for listed in self._client.batches.list(limit=100):  # newest first
                    batch_id = _text_in(listed, "id")
                    if (listed.metadata or {}).get(_MARK) == batch.mark:
                        return batch_id
                    # Some give the first page for every other one, without end.
                    if batch_id in seen or listed.created_at < batch.begun - _LISTED_BEFORE_SECONDS:
                        break
                    seen.add(batch_id)
            except (AttributeError, TypeError):  # the client takes any reply for a listing
                raise _Unusable("no listing of batches") from None
            return None

        return await self._asked(look)

    async def _follow(self, batch: OpenBatch, batch_id: str) -> None:
        """Poll a batch until it ends, and hand out its answers."""

        async def look() -> Any:
            found = await self._client.batches.retrieve(batch_id)
            return _text_in(found, "status") and found

        while (found := await self._asked(look)).status not in _ENDED:
            await asyncio.sleep(self._config.batch_poll_seconds)
        # The answers last: where both files have a line for a question, it was answered, and paid for.
        lines = [line for file in (found.error_file_id, found.output_file_id) for line in await self._lines(file)]
        asked = set(batch.questions)
        answers = {line["custom_id"]: _answer_of(line) for line in lines if line["custom_id"] in asked}
        stop = self._stop_after(found, batch_id)
        if stop is not None:  # who asked for what was not answered is told of it
            answers = {question: answer for question, answer in answers.items() if answer.status is not None}
        if found.status == "failed" and stop is None:
            await asyncio.sleep(self._config.batch_poll_seconds)
        self._end(batch, answers, f"a batch that is {found.status}" if stop is None else None)
        if stop is not None:
            raise stop

    def _stop_after(self, found: Any, batch_id: str) -> TeacherUnavailable | None:
        """Return the error with which a batch ends the run; None where its calls may be sent again."""
        if found.status == "cancelled":
            return TeacherUnavailable(
                f"the batch {self._shown(batch_id)} at {self._base_url} was cancelled; what it had answered is "
                "kept, and the same command asks for the rest again"
            )
        errors = getattr(found.errors, "data", None)
        codes = sorted({str(getattr(error, "code", None)) for error in (errors if isinstance(errors, list) else [])})
        if found.status != "failed" or codes == ["token_limit_exceeded"]:  # too much was under way: that passes
            return None
        reason = self._shown(", ".join(codes)) or "without a reason"
        return TeacherUnavailable(
            f"the batch {self._shown(batch_id)} at {self._base_url} failed ({reason}); look at it there, mend "
            "teacher.model or what it names, and run the same command again"
        )

    def _end(self, batch: OpenBatch, answers: dict[str, BatchAnswer], missing: str | None) -> None:
        """Keep the answers of a batch, and give them, and the lack of one where `missing` says why, to who waits."""
        kept = {
            question: answer.body
            for question, answer in answers.items()
            if answer.status == 200 and status_in(answer.body) is None and completion_of(answer.body) is not None
        }
        self._table.finish(batch.mark, kept)
        self._under_way.difference_update(batch.questions)
        for question in batch.questions:
            if question in answers:
                self._give(question, answers[question])
            elif missing is not None:
                self._give(question, BatchAnswer(None, None, f"no line in {missing}"))

    def _shown(self, text: str) -> str:
        """Return what an endpoint says as a part of one line, without the key: some repeat what they were shown."""
        return " ".join(text.replace(self._client.api_key, "[key]").split())[:_MOST_SHOWN_CHARACTERS]

    async def _lines(self, file: JsonValue) -> list[JsonObject]:
        """Return the lines of a file that name their question; none where there is no such file any more."""
        if not isinstance(file, str) or not file:
            return []
        content = await self._asked(lambda: self._content(file))
        found = []
        for line in content.splitlines():
            try:
                read = json.loads(line)
            except (ValueError, RecursionError):
                continue  # whoever waits for its answer finds none
            if isinstance(read, dict) and isinstance(read.get("custom_id"), str):
                found.append(read)
        return found

    async def _content(self, file: str) -> bytes:
        try:
            content: bytes = (await self._client.files.content(file)).content
        except self._openai.NotFoundError:
            return b""
        return content

    async def _asked(self, request: Callable[[], Awaitable[Given]]) -> Given:
        """Return what the endpoint says to a request about a batch; what may pass is tried again, a growing time later.

        Raises:
            TeacherUnavailable: it refuses, or has failed too often in a row.
        """
        failures = 0
        while True:
            try:
                return await request()
            except self._openai.APIStatusError as error:
                problem, action = f"HTTP {error.status_code}", rule_of(error.status_code, error.body, ()).action
            except (self._openai.APIConnectionError, self._openai.APIResponseValidationError) as error:
                problem, action = type(error).__name__, "again"
            except _Unusable as error:
                problem, action = str(error), "again"
            failures += 1
            if action == "budget":
                raise TeacherUnavailable(
                    f"the budget at {self._base_url} is used up ({problem}); add to it and run the same command again"
                ) from None
            if action != "again":
                raise TeacherUnavailable(
                    f"{self._base_url} refuses a request about a batch ({problem}); check the key in "
                    f"{self._api_key_env}, and whether it has the batch API, else leave out teacher.batch"
                ) from None
            if failures >= self._config.max_failures_in_a_row:
                raise TeacherUnavailable(
                    f"{self._base_url} has left {failures} requests about a batch in a row unanswered, the last with "
                    f"{problem}; run the same command again when it is back: it polls what was sent"
                ) from None
            await asyncio.sleep(min(self._config.batch_poll_seconds * 2**failures, _LONGEST_DELAY_SECONDS))


def _text_in(reply: Any, name: str) -> str:
    """Return a field of a reply, which the client passes on whatever it is.

    Raises:
        _Unusable: it is not there, or no text.
    """
    found = getattr(reply, name, None)
    if not isinstance(found, str) or not found:
        raise _Unusable(f"a reply without {name!r}")
    return found


def _answer_of(line: JsonObject) -> BatchAnswer:
    """Take a line of a batch's output or errors apart.

    >>> _answer_of({"response": {"status_code": 429, "body": {"error": {}}}, "error": None}).status
    429
    >>> _answer_of({"response": None, "error": {"code": "batch_expired"}}).problem
    'batch_expired'
    """
    response = line.get("response")
    if isinstance(response, dict) and isinstance(response.get("status_code"), int):
        return BatchAnswer(response["status_code"], response.get("body"))
    error = line.get("error")
    code = error.get("code") if isinstance(error, dict) else None
    return BatchAnswer(None, None, str(code or "a line without a response"))
