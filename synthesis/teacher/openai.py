"""A language model behind any OpenAI-compatible endpoint as the teacher.

    typed request ─► prompt + JSON schema ─► reply ─► read leniently, validate ─► typed reply
                     (cache by content)              └─ twice at most: repair question that names the fault

A reply that stays unusable is `BadReply`, and its item is rejected. `TeacherUnavailable` stops the run until later: the
endpoint refuses the key, leaves many questions in a row unanswered, or was never connected to (`endpoint`,
`status_rules`), or the budget is used up; then the calls in flight come back and are kept.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import astuple
from typing import Any, Final, TypeVar, cast, get_args

from synthesis.records import JsonObject
from synthesis.teacher.cache import Budget, CachedReply, ReplyFile
from synthesis.teacher.calls import Completion, call_of, name_of, repair_of, turn_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.endpoint import Endpoint
from synthesis.teacher.parroting import require_own_words
from synthesis.teacher.protocol import BadReply, Reply, Request, Role, TeacherUnavailable
from synthesis.teacher.reading import read_reply, require_keepable
from synthesis.teacher.usage import Ledger, Usage, record_usage

Answer = TypeVar("Answer")

_MAX_REPAIRS: Final = 2
_LARGER: Final = 2
"""Factor of the token limit with which a reply that was cut off at the limit is asked for once more."""


class OpenAITeacher:
    """Answers every kind of request by asking a language model."""

    def __init__(self, config: OpenAITeacherConfig):
        """Open the client, and the file of replies that the configuration names, if any.

        Raises:
            TeacherUnavailable: the `openai` package or a key is missing, or an address is not one, or holds a key.
            ReplyFileError: the file of replies is damaged, another file, or cannot be written; so may the methods.
        """
        self.config = config
        self.name = config.name
        self.ledger = Ledger()
        self._endpoints: dict[tuple[str, str], Endpoint] = {}
        """The endpoints by address and key: roles that share these share connections and concurrency."""
        for asked in map(config.of, get_args(Role)):
            place = (asked.base_url, asked.api_key_env)
            if place not in self._endpoints:
                self._endpoints[place] = Endpoint(*place, config)
        self._cache = ReplyFile(config.cache) if config.cache is not None else None
        self.budget = Budget(config.max_usd, config.max_tokens, self._cache)
        self._in_flight: dict[str, asyncio.Task[Any]] = {}

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question, from the cache if it was answered before.

        Raises:
            BadReply: refused, cut off, or not a valid reply even after repairs; or the endpoint failed on it.
            TeacherUnavailable: the key is refused, the budget is used up, or the endpoint does not answer or was never
                connected to.
        """
        name = name_of(request, self.config, seed=seed)
        reply = await self._shared(name, lambda: self._reply(request, seed, name=name))
        record_usage(reply.usage)
        return _read_back(reply.text, type(request))

    async def ask_together(self, requests: Sequence[tuple[Request[Reply], int]]) -> list[Reply]:
        """Answer questions of one form in one call, except those that were answered before.

        The reply to each is kept by itself, so that only a changed question is asked again.

        Raises:
            BadReply, TeacherUnavailable: as `ask`.
        """
        names = [name_of(request, self.config, seed=seed) for request, seed in requests]
        replies: dict[str, CachedReply] = {}
        if self._cache is not None:
            for name, (request, _) in zip(names, requests, strict=True):
                if (kept := await self._cache.get(name)) is not None:
                    self.ledger.of(type(request).__name__).cached += 1
                    replies[name] = kept
        missing = {name: asked for name, asked in zip(names, requests, strict=True) if name not in replies}
        if missing:
            replies |= await self._shared(" ".join(missing), lambda: self._answered_together(missing))
        for name in names:
            record_usage(replies[name].usage)
        return [
            _read_back(replies[name].text, type(request)) for name, (request, _) in zip(names, requests, strict=True)
        ]

    async def close(self) -> None:
        """Close the connections and the cache.

        Questions in flight end, but those of a run whose budget is used up come back first: their calls are paid for.
        """
        answering = list(self._in_flight.values())
        for task in () if self.budget.is_used_up else answering:
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        for endpoint in self._endpoints.values():
            await endpoint.close()
        if self._cache is not None:
            await self._cache.close()

    async def _shared(self, name: str, answer: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
        """Return the answer to a question; tasks that ask the same question at the same time share it.

        A question that was sent is answered and kept even if the task that asked it is cancelled.
        """
        if (answering := self._in_flight.get(name)) is None:
            answering = self._in_flight[name] = asyncio.create_task(answer())
            answering.add_done_callback(lambda done: (self._in_flight.pop(name), done.cancelled() or done.exception()))
        return cast(Answer, await asyncio.shield(answering))

    async def _answered_together(self, asked: dict[str, tuple[Request[Any], int]]) -> dict[str, CachedReply]:
        """Ask several questions in one call, and keep the reply to each by its name."""
        requests, seeds = zip(*asked.values(), strict=True)
        joint = type(requests[0]).together(requests)
        together = await self._reply(joint, seeds[0])
        parts = joint.separated(_read_back(together.text, type(joint)))
        replies: dict[str, CachedReply] = {}
        for place, (name, part) in enumerate(zip(asked, parts, strict=True)):
            replies[name] = _share(together, part.model_dump_json(), place, len(asked))
            if self._cache is not None:
                await self._cache.put(name, replies[name])
        return replies

    async def _reply(self, request: Request[Any], seed: int, *, name: str = "") -> CachedReply:
        """Return the reply to a question, which is kept if it has a name."""
        costs = self.ledger.of(type(request).__name__)
        cache = self._cache if name else None
        try:
            if cache is not None and (kept := await cache.get(name)) is not None:
                costs.cached += 1
                return kept
            async with asyncio.timeout(self.config.deadline_seconds):
                reply = await self._valid_reply(request, seed)
            if cache is not None:
                await cache.put(name, reply)
        except BadReply:
            costs.bad_replies += 1
            raise
        except TimeoutError as error:
            costs.bad_replies += 1
            raise BadReply(f"no usable reply within {self.config.deadline_seconds:g} s") from error
        return reply

    async def _valid_reply(self, request: Request[Any], seed: int) -> CachedReply:
        """Ask; if the reply is not valid, ask again with the fault named, `_MAX_REPAIRS` times; raise as `ask`."""
        kind, costs = type(request), self.ledger.of(type(request).__name__)
        call = call_of(request, self.config, seed=seed)
        usage = Usage()
        for repairs_left in reversed(range(_MAX_REPAIRS + 1)):
            completion = await self._completed(request, call, usage)
            try:
                reply, mended = _read(completion, kind)
                request.check(reply)
                if not kind.is_turn:
                    require_own_words(reply, request)
            except ValueError as error:
                problem = _whole(str(error)[:300])
            else:
                costs.mended += mended
                return CachedReply(reply.model_dump_json(), *astuple(usage))  # the cost of all calls, repairs included
            if not repairs_left:
                break
            costs.repairs += 1
            # Drawn anew, too: the same call might have the same reply. A complaint would be a part of a conversation.
            call = {**(call if kind.is_turn else repair_of(call, request, problem)), "seed": (call["seed"] + 1) % 2**31}
        raise BadReply(f"{kind.__name__}: no valid reply after {_MAX_REPAIRS} repairs: {problem}")

    async def _completed(self, request: Request[Any], call: JsonObject, usage: Usage) -> Completion:
        """Return one completion, which is neither a refusal nor cut off, and count it; raise as `ask`."""
        question, config = type(request).__name__, self.config.of(request.role)
        costs = self.ledger.of(question)
        endpoint = self._endpoints[config.base_url, config.api_key_env]
        for limit in (config.max_completion_tokens, _LARGER * config.max_completion_tokens):
            sent = {**call, "max_completion_tokens": limit}
            completion = await endpoint.completed(question, sent, costs, lambda: not self.budget.is_used_up)
            if completion is None:
                counted = f"; all runs that keep their replies in {config.cache} share it" if config.cache else ""
                raise TeacherUnavailable(
                    f"the budget of this run is used up ({self.budget}{counted}); raise teacher.max_usd or "
                    "teacher.max_tokens and run the same command again"
                )
            tokens = (completion.prompt_tokens, completion.completion_tokens)
            spent = Usage(*tokens, config.cost_usd(*tokens))
            for counter in (usage, costs.usage):
                counter.add(spent)
            self.budget.spend(spent)
            if completion.is_refused:
                raise BadReply(f"{question}: the model refused")
            if not completion.is_cut:
                return completion
            costs.cut_off += 1
        raise BadReply(f"{question}: the reply was cut off at the token limit, also at {limit} tokens")


def _read(completion: Completion, kind: type[Request[Reply]]) -> tuple[Reply, Counter[str]]:
    """Return the typed reply of a completion, and the mendings by name; without one it raises `ValueError`."""
    if not kind.is_turn:
        reply, mended = read_reply(completion.said, kind.reply_type)
        return cast(Reply, reply), mended
    turn, mended = turn_of(completion)
    turned = kind.reply_type.model_validate(turn)
    require_keepable(turned)
    return cast(Reply, turned), mended


def _read_back(text: str, kind: type[Request[Reply]]) -> Reply:
    """Return the typed reply that was kept as a text; it is a bad one if it was kept under other rules."""
    try:
        return cast(Reply, kind.reply_type.model_validate_json(text))
    except ValueError as error:
        raise BadReply(f"{kind.__name__}: the reply that was kept cannot be used: {str(error)[:300]}") from error


def _whole(text: str) -> str:
    """Return a text with `?` for half of a character, which can be sent nowhere."""
    return text.encode(errors="replace").decode()


def _share(together: CachedReply, text: str, place: int, count: int) -> CachedReply:
    """Return one of the replies that came together, with its share of their tokens and cost; the shares add up."""

    def share(tokens: int) -> int:
        return tokens // count + (place < tokens % count)

    return CachedReply(
        text, share(together.prompt_tokens), share(together.completion_tokens), together.cost_usd / count
    )
