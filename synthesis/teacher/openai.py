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
from collections.abc import Sequence
from typing import Any, Final, cast, get_args

from synthesis.records import JsonObject
from synthesis.teacher.cache import Budget, CachedReply, ReplyFile
from synthesis.teacher.calls import Completion, call_of, name_of, repair_of, turn_of
from synthesis.teacher.config import OpenAITeacherConfig
from synthesis.teacher.endpoint import Endpoint
from synthesis.teacher.parroting import require_own_words
from synthesis.teacher.protocol import BadReply, Reply, Request, Role, TeacherUnavailable
from synthesis.teacher.reading import read_reply, require_keepable
from synthesis.teacher.usage import Ledger, Usage, record_usage

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
        self._in_flight: dict[str, asyncio.Task[dict[str, CachedReply]]] = {}

    async def ask(self, request: Request[Reply], *, seed: int) -> Reply:
        """Answer one question, from the cache if it was answered before.

        Raises:
            BadReply: refused, cut off, or not a valid reply even after repairs; or the endpoint failed on it.
            TeacherUnavailable: the key is refused, the budget is used up, or the endpoint does not answer or was never
                connected to.
        """
        (reply,) = await self._answers([(request, seed)], is_joint=False)
        return reply

    async def ask_together(self, requests: Sequence[tuple[Request[Reply], int]]) -> list[Reply]:
        """Answer questions of one form in one call, except those that were answered before.

        The reply to each is kept by itself, so that only a changed question is asked again.

        Raises:
            BadReply, TeacherUnavailable: as `ask`.
        """
        return await self._answers(requests, is_joint=True)

    async def _answers(self, requests: Sequence[tuple[Request[Reply], int]], *, is_joint: bool) -> list[Reply]:
        """Return the replies to questions; those without a kept one are asked, in one call if `is_joint`."""
        names = [name_of(request, self.config, seed=seed) for request, seed in requests]
        replies: dict[str, CachedReply] = {}
        for name, (request, _) in zip(names, requests, strict=True):
            if self._cache is not None and (kept := await self._cache.get(name)) is not None:
                self.ledger.of(type(request).__name__).cached += 1
                replies[name] = kept
        if missing := {name: asked for name, asked in zip(names, requests, strict=True) if name not in replies}:
            # Tasks that ask the same at the same time share the answer, which is kept even if they are cancelled.
            if (answering := self._in_flight.get(together := " ".join(missing))) is None:
                answering = self._in_flight[together] = asyncio.create_task(self._asked(missing, is_joint=is_joint))
                answering.add_done_callback(
                    lambda done: (self._in_flight.pop(together), done.cancelled() or done.exception())
                )
            replies |= await asyncio.shield(answering)
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

    async def _asked(self, asked: dict[str, tuple[Request[Any], int]], *, is_joint: bool) -> dict[str, CachedReply]:
        """Ask one question, or several in one call, and keep the reply to each by its name."""
        (request, seed), *_ = asked.values()
        joint = type(request).together([each for each, _ in asked.values()]) if is_joint else None
        whole = await self._reply(joint or request, seed)
        texts = [whole.text]
        if joint is not None:
            texts = [part.model_dump_json() for part in joint.separated(_read_back(whole.text, type(joint)))]
        replies = {
            name: _share(whole, text, place, len(asked))
            for place, (name, text) in enumerate(zip(asked, texts, strict=True))
        }
        if self._cache is not None:
            for name, reply in replies.items():
                await self._cache.put(name, reply)
        return replies

    async def _reply(self, request: Request[Any], seed: int) -> CachedReply:
        """Return the valid reply to a question within its time limit, and count one that stays bad."""
        costs = self.ledger.of(type(request).__name__)
        try:
            async with asyncio.timeout(self.config.deadline_seconds):
                return await self._valid_reply(request, seed)
        except BadReply:
            costs.bad_replies += 1
            raise
        except TimeoutError as error:
            costs.bad_replies += 1
            raise BadReply(f"no usable reply within {self.config.deadline_seconds:g} s") from error

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
                problem = str(error)[:300].encode(errors="replace").decode()  # half of a character cannot be sent
            else:
                costs.mended += mended
                return CachedReply(reply.model_dump_json(), usage)  # the cost of all calls, repairs included
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


def _share(together: CachedReply, text: str, place: int, count: int) -> CachedReply:
    """Return one of `count` replies that came together, with its share of their tokens and cost; the shares add up."""
    usage = together.usage

    def share(tokens: int) -> int:
        return tokens // count + (place < tokens % count)

    return CachedReply(text, Usage(share(usage.prompt_tokens), share(usage.completion_tokens), usage.cost_usd / count))
