"""A language model behind any OpenAI-compatible endpoint as the teacher.

    typed request ─► prompt + JSON schema ─► reply ─► read leniently, validate ─► typed reply
                     (cache by content)              └─ twice at most: repair question that quotes the error

A reply that stays unusable is `BadReply`, and rejects what it was for; an endpoint that refuses the key, answers nobody
for a while, or cannot even be connected to at first contact, is `TeacherUnavailable`, and stops the run until later
(`endpoint`, `status_rules`). The key is read from the environment, held in memory by the client, and written nowhere.
"""

from __future__ import annotations

import asyncio
import json
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, cast, get_args

from pydantic import BaseModel

from synthesis.records import canonical_json
from synthesis.teacher.cache import CachedReply, ReplyCache, ReplyFile
from synthesis.teacher.completion import Completion
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.endpoint import Endpoint
from synthesis.teacher.protocol import BadReply, Reply, Request, Role
from synthesis.teacher.reading import read_reply
from synthesis.teacher.usage import Ledger, record_usage

_REPAIR: Final = (
    "This reply cannot be used: {}\nReply again, with nothing but one JSON object that satisfies the schema."
)


class OpenAITeacher:
    """Answers every kind of request by asking a language model."""

    def __init__(self, config: OpenAITeacherConfig, cache: ReplyCache | None = None):
        """Open the client; without a `cache`, the file that the configuration names, if any, is opened as one.

        Raises:
            TeacherUnavailable: the `openai` package or the key is missing.
        """
        self.config = config
        self.name = config.name
        self.ledger = Ledger()
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        """By address and key: roles that share both share its connections and its concurrency."""
        for asked in map(config.of, get_args(Role)):
            place = (asked.base_url, asked.api_key_env)
            if place not in self._endpoints:
                self._endpoints[place] = Endpoint(*place, config)
        self._cache = ReplyFile(config.cache) if cache is None and config.cache is not None else cache
        self._in_flight: dict[str, asyncio.Future[CachedReply]] = {}

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question, from the cache if it was answered before.

        Raises:
            BadReply: refused, cut off, or not a valid reply even after a repair; or the endpoint failed on it.
            TeacherUnavailable: the key is refused, the budget is used up, or the endpoint answers nobody or was never
                connected to.
        """
        kind = type(request)
        messages, schema = request.messages(), _reply_schema(kind.reply_type)
        key = self._key(kind, messages, schema, seed)
        reply = None
        while reply is None and key in self._in_flight:  # the same question is being asked: share its answer
            shared = self._in_flight[key]
            try:
                reply = await asyncio.shield(shared)  # which the others keep if we are cancelled
            except asyncio.CancelledError:
                if not shared.cancelled() or cast(asyncio.Task[Any], asyncio.current_task()).cancelling():
                    raise
                # Whoever asked it was cancelled, and we were not: ask ourselves.
        if reply is None:
            reply = await self._answered_once(key, kind, messages, schema, seed)
        record_usage(reply.prompt_tokens, reply.completion_tokens, reply.cost_usd)
        return cast(Reply, kind.reply_type.model_validate_json(reply.text))

    async def close(self) -> None:
        """Close the connections and the cache."""
        for endpoint in self._endpoints.values():
            await endpoint.close()
        if self._cache is not None:
            await self._cache.close()

    def _key(self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int) -> str:
        config = self.config.of(kind.role)
        asked = [config.model, config.sampled_with(), kind.__name__, messages, schema, seed]
        return sha256(canonical_json(asked).encode()).hexdigest()

    async def _answered_once(
        self, key: str, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> CachedReply:
        shared: asyncio.Future[CachedReply] = asyncio.get_running_loop().create_future()
        shared.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody need wait for it
        self._in_flight[key] = shared
        try:
            if self._cache is not None and (kept := await self._cache.get(key)) is not None:
                self.ledger.of(kind.__name__).cached += 1
                reply = kept
            else:
                async with asyncio.timeout(self.config.deadline_seconds):
                    reply = await self._valid_reply(kind, messages, schema, seed)
                if self._cache is not None:
                    await self._cache.put(key, reply)
        except TimeoutError as error:
            bad = BadReply(f"no usable reply within {self.config.deadline_seconds:g} s")
            shared.set_exception(bad)
            self.ledger.of(kind.__name__).bad_replies += 1
            raise bad from error
        except BaseException as error:
            if isinstance(error, Exception):
                shared.set_exception(error)
            else:  # this task was cancelled: no answer comes for those who share it
                shared.cancel()
            self.ledger.of(kind.__name__).bad_replies += isinstance(error, BadReply)
            raise
        finally:
            del self._in_flight[key]
        shared.set_result(reply)
        return reply

    async def _valid_reply(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> CachedReply:
        """Ask; if the reply is not valid, ask again with the error quoted, `max_repairs` times.

        Raises:
            BadReply: it stays unusable.
            TeacherUnavailable: no question can be answered just now.
        """
        asked, costs = list(messages), self.ledger.of(kind.__name__)
        prompt_tokens = completion_tokens = 0
        for repairs_left in reversed(range(self.config.max_repairs + 1)):
            completion = await self._completed(kind, asked, schema, seed)
            prompt_tokens += completion.prompt_tokens
            completion_tokens += completion.completion_tokens
            said = completion.content or completion.reasoning  # some endpoints take the whole reply for thoughts
            try:
                reply, mended = read_reply(said, kind.reply_type)
                text = reply.model_dump_json()
            except ValueError as error:  # `Unreadable`, and what no JSON text can hold
                problem = str(error)
            else:
                costs.mended += mended
                cost = self._cost(kind, prompt_tokens, completion_tokens)  # of all calls, where some were repairs
                return CachedReply(text, prompt_tokens, completion_tokens, cost)
            if repairs_left:
                costs.repairs += 1
                repair = {"role": "user", "content": _REPAIR.format(problem)}
                asked = [*asked, {"role": "assistant", "content": said}, repair]
        raise BadReply(f"{kind.__name__}: no valid reply after {self.config.max_repairs} repairs: {problem}")

    def _cost(self, kind: type[Request[Any]], prompt_tokens: int, completion_tokens: int) -> float:
        config = self.config.of(kind.role)
        prompt_cost = prompt_tokens * config.usd_per_million_prompt_tokens
        return (prompt_cost + completion_tokens * config.usd_per_million_completion_tokens) / 1e6

    async def _completed(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> Completion:
        """Return one completion, which is neither a refusal nor cut off, and count it.

        Raises:
            BadReply: the question is refused, the reply cut off, or every retry used up.
            TeacherUnavailable: no question can be answered just now.
        """
        costs, config = self.ledger.of(kind.__name__), self.config.of(kind.role)
        endpoint = self._endpoints[config.base_url, config.api_key_env]
        completion = await endpoint.completed(kind.__name__, self._call(kind, messages, schema, seed), costs)
        prompt_tokens, completion_tokens = completion.prompt_tokens, completion.completion_tokens
        costs.usage.add(prompt_tokens, completion_tokens, self._cost(kind, prompt_tokens, completion_tokens))
        if completion.is_refused:
            raise BadReply(f"{kind.__name__}: the model refused")
        if completion.is_cut:
            raise BadReply(f"{kind.__name__}: the reply was cut off at the token limit")
        return completion

    def _call(
        self, kind: type[Request[Any]], messages: list[dict[str, str]], schema: dict[str, Any], seed: int
    ) -> dict[str, Any]:
        config = self.config.of(kind.role)
        system, *rest = messages
        asked = f"{system['content']}\n\nReply with one JSON object that satisfies this schema:\n{json.dumps(schema)}"
        call: dict[str, Any] = {
            **config.sampled_with(),
            "model": config.model,
            "messages": [{**system, "content": asked}, *rest],
            "seed": seed % 2**31,
        }
        # Strict mode allows neither optional fields nor objects of any keys, and replies have both.
        described = {"name": kind.reply_type.__name__, "schema": schema, "strict": False}
        call["response_format"] = {"type": "json_schema", "json_schema": described}
        return call


@lru_cache(maxsize=256)
def _reply_schema(reply_type: type[BaseModel]) -> dict[str, Any]:
    return reply_type.model_json_schema()
