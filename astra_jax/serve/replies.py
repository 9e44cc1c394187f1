"""The replies to chats and texts, in the form of OpenAI's API: whole, or as a stream that adds up to the same."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from astra_jax.chat.format import THINK
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.engine.interface import Sampling
from astra_jax.episodes.episode import all_or_none
from astra_jax.serve.messages import Called, Choice, MessageParts, MessageText, News, Part, Said, Thought
from astra_jax.serve.requests import (
    ChatRequest,
    CompletionRequest,
    RequestRefused,
    TextRequest,
    chat_prompt,
    refusal_of,
)
from astra_jax.serve.service import OUT_OF_GRACE, Service, usage

Json = dict[str, Any]
_Body = TypeVar("_Body", bound=TextRequest)


@dataclass(frozen=True)
class ChatForm:
    """The form of a chat's choices."""

    tokenizer: Tokenizer
    tells_logprobs: bool
    first: ClassVar[list[Json]] = [{"delta": {"role": "assistant", "content": ""}}]
    """Content of the pieces with which a stream begins."""
    last: ClassVar[Json] = {"delta": {}}
    """Content of the piece with which a message ends."""

    def whole(self, choice: Choice) -> Json:
        """Return a complete choice; the content is a text, and null only beside calls without any."""
        message: Json = {"role": "assistant", "content": choice.content or (None if choice.calls else "")}
        if thoughts := "".join(part.text for part in choice.said if isinstance(part, Thought)):
            message["reasoning_content"] = thoughts
        if choice.calls:
            message["tool_calls"] = [_call(call) for call in choice.calls]
        logprobs = self._logprobs(choice.ids, choice.logprobs)
        return _piece(choice, logprobs=logprobs, finish_reason=choice.finish_reason, message=message)

    def pieces(self, choice: Choice, news: News) -> list[Json]:
        """Return the pieces for an addition; the first of them has the log-probs of its tokens."""
        deltas = [_delta(part) for part in news.parts] or [{}] * (self.tells_logprobs and bool(news.ids))
        pieces = [_piece(choice, delta=delta) for delta in deltas]
        if pieces:
            pieces[0]["logprobs"] = self._logprobs(news.ids, news.logprobs)
        return pieces

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float]) -> Json | None:
        if not self.tells_logprobs:
            return None
        texts = [self.tokenizer.decode([id_]) for id_ in ids]
        return {
            "content": [
                {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
                for text, logprob in zip(texts, logprobs, strict=True)
            ]
        }


@dataclass(frozen=True)
class CompletionForm:
    """The form of a plain text's choices."""

    tokenizer: Tokenizer
    tells_logprobs: bool
    first: ClassVar[list[Json]] = []
    last: ClassVar[Json] = {"text": ""}

    def whole(self, choice: Choice) -> Json:
        """Return a complete choice."""
        logprobs = self._logprobs(choice.ids, choice.logprobs, start=0)
        return _piece(choice, logprobs=logprobs, finish_reason=choice.finish_reason, text=choice.content)

    def pieces(self, choice: Choice, news: News) -> list[Json]:
        """Return the pieces for an addition."""
        text = "".join(part.text for part in news.parts if isinstance(part, Said))
        if not text and not (news.ids and self.tells_logprobs):
            return []
        logprobs = self._logprobs(news.ids, news.logprobs, start=choice.streamed_characters)
        if logprobs is not None:
            choice.streamed_characters += sum(map(len, logprobs["tokens"]))
        return [_piece(choice, logprobs=logprobs, text=text)]

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float], *, start: int) -> Json | None:
        if not self.tells_logprobs:
            return None
        texts = [self.tokenizer.decode([id_]) for id_ in ids]
        offsets = list(itertools.accumulate(map(len, texts), initial=start))[:-1]
        return {"tokens": texts, "token_logprobs": list(logprobs), "top_logprobs": None, "text_offset": offsets}


def _piece(choice: Choice, *, logprobs: Json | None = None, finish_reason: str | None = None, **content: Any) -> Json:
    return {"index": choice.index, **content, "logprobs": logprobs, "finish_reason": finish_reason}


def _delta(part: Part) -> Json:
    match part:
        case Thought(text):
            return {"reasoning_content": text}
        case Said(text):
            return {"content": text}
        case Called(number):
            return {"tool_calls": [{"index": number, **_call(part)}]}


def _call(call: Called) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def usage_of(choices: Sequence[Choice]) -> Json:
    """Return the numbers of tokens of a request; a prompt of several choices counts once."""
    prompts = list({id(choice.prompt_ids): choice for choice in reversed(choices)}.values())
    counts = usage(sum(len(each.prompt_ids) for each in prompts), sum(len(choice.ids) for choice in choices))
    return {**counts, "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in prompts)}}


def _event(document: Json) -> bytes:
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


@dataclass(frozen=True)
class _Asked:
    """A request for text that can be answered."""

    about: Json
    """Fields with which the reply, and each event of a stream, begins."""
    form: ChatForm | CompletionForm
    choices: list[Choice]

    def reply(self, choices: list[Json], **rest: Any) -> Json:
        return {**self.about, "choices": choices, **rest}


class TextEndpoints:
    """The endpoints of chats and texts. They raise RequestRefused, DecoderError or ClientDisconnect."""

    def __init__(self, service: Service):
        self._service, self._tokenizer = service, service.served.policy.tokenizer

    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`."""
        return await self._text(request, ChatRequest, self._asked_to_chat)

    async def completions(self, request: Request) -> Response:
        """Answer `POST /v1/completions`."""
        return await self._text(request, CompletionRequest, self._asked_to_complete)

    async def _text(self, request: Request, model: type[_Body], understand: Callable[[_Body], _Asked]) -> Response:
        service = self._service
        async with AsyncExitStack() as place:
            body = await place.enter_async_context(service.taking(request, model))
            # Rendering and tokenising a long history takes a while, in which the event loop serves others.
            asked = await asyncio.to_thread(understand, body)
            if body.stream:
                return _Stream(_events(service, asked, body.stream_options.include_usage), place.pop_all())
            await service.while_wanted(
                request, all_or_none(_sample(service, choice, lambda news: None) for choice in asked.choices)
            )
        choices = [asked.form.whole(choice) for choice in asked.choices]
        return JSONResponse(asked.reply(choices, usage=usage_of(asked.choices)))

    def _asked_to_chat(self, body: ChatRequest) -> _Asked:
        service = self._service
        name, template = service.name_of(body.model), service.served.template
        if template is None:
            raise RequestRefused(400, "messages: the checkpoint has no chat template", param="messages")
        prompt = chat_prompt(template, body)
        ids = self._tokenizer.encode(prompt)
        length = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        splits = service.options.splits_thoughts if body.separate_reasoning is None else body.separate_reasoning
        sampling = body.sampling(service.max_tokens(len(ids), length))
        new_parts = functools.partial(
            MessageParts,
            splits_thoughts=splits,
            begins_in_thoughts=prompt.rstrip().endswith(THINK),
            reads_calls=bool(body.tools) and body.tool_choice != "none",
            most_calls=None if body.parallel_tool_calls else 1,
        )
        return _Asked(
            _about("chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion", name),
            ChatForm(self._tokenizer, body.logprobs),
            [self._choice(body, index, ids, sampling, new_parts()) for index in range(body.n)],
        )

    def _asked_to_complete(self, body: CompletionRequest) -> _Asked:
        service = self._service
        name = service.name_of(body.model)
        choices: list[Choice] = []
        for prompt in body.prompts:
            ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            if not ids:
                raise RequestRefused(400, "prompt: expected at least one token, found none", param="prompt")
            self._require_known(ids, "prompt")
            sampling = body.sampling(service.max_tokens(len(ids), body.max_tokens))
            for _ in range(body.n):
                parts = MessageParts(splits_thoughts=False, reads_calls=False)
                choices.append(self._choice(body, len(choices), ids, sampling, parts))
        form = CompletionForm(self._tokenizer, body.logprobs is not None)
        return _Asked(_about("cmpl", "text_completion", name), form, choices)

    def _choice(self, body: TextRequest, index: int, ids: list[int], sampling: Sampling, parts: MessageParts) -> Choice:
        self._require_known(body.stop_token_ids, "stop_token_ids")
        silent_ids = {*self._service.served.end_ids, *body.stop_token_ids}
        text = MessageText(self._tokenizer, silent_ids=silent_ids, stops=body.stop)
        seed = None if body.seed is None else body.seed + index
        return Choice(index, ids, sampling, self._service.session(seed, salt=body.cache_salt), text, parts)

    def _require_known(self, ids: Sequence[int], param: str) -> None:
        # Checked before a stream begins, because its status cannot be changed later.
        vocab_size = self._service.served.policy.model_config.vocab_size
        if not all(0 <= id_ < vocab_size for id_ in ids):
            raise RequestRefused(400, f"{param}: expected token ids from 0 to {vocab_size - 1}", param=param)


def _about(kind: str, object_: str, name: str) -> Json:
    return {"id": f"{kind}-{secrets.token_hex(16)}", "object": object_, "created": int(time.time()), "model": name}


async def _sample(service: Service, choice: Choice, tell: Callable[[News], None]) -> None:
    """Sample one message to its end; `tell` hears of each addition to it."""

    def told(ids: list[int], logprobs: list[float]) -> None:
        if choice.is_over:
            return
        tell(choice.hear(ids, logprobs))
        if choice.is_over:
            service.decoder.abort(choice.session)

    message = await service.sampled(choice.prompt_ids, choice.sampling, choice.session, told)
    tell(choice.end(message))
    service.metrics.empty_replies.inc(not choice.content and not choice.calls)
    service.metrics.unreadable_calls.inc(choice.parts.num_unreadable)


async def _events(service: Service, asked: _Asked, tells_usage: bool) -> AsyncIterator[bytes]:
    """Yield the events of a stream; if it fails, an error is the last one, in the place of `[DONE]`."""
    heard: asyncio.Queue[tuple[Choice, News | None] | Exception] = asyncio.Queue()

    async def sample(choice: Choice) -> None:
        try:
            await _sample(service, choice, lambda news: heard.put_nowait((choice, news)))
            heard.put_nowait((choice, None))
        except Exception as error:  # noqa: BLE001 - the client is told
            heard.put_nowait(error)

    async def end_with_grace() -> None:
        await service.grace_is_over.wait()
        heard.put_nowait(OUT_OF_GRACE)

    tasks = [asyncio.create_task(work) for work in (end_with_grace(), *map(sample, asked.choices))]
    rest = {"usage": None} if tells_usage else {}
    is_complete = False
    try:
        for choice, first in itertools.product(asked.choices, asked.form.first):
            yield _event(asked.reply([_piece(choice, **first)], **rest))
        num_left = len(asked.choices)
        while num_left:
            if isinstance(next_ := await heard.get(), Exception):
                is_complete = True
                yield _event(refusal_of(next_).to_json())
                return
            choice, news = next_
            if news is None:
                num_left -= 1
                pieces = [_piece(choice, finish_reason=choice.finish_reason, **asked.form.last)]
            else:
                pieces = asked.form.pieces(choice, news)
            for piece in pieces:
                yield _event(asked.reply([piece], **rest))
        if tells_usage:
            yield _event(asked.reply([], usage=usage_of(asked.choices)))
        is_complete = True
        yield b"data: [DONE]\n\n"
    finally:
        service.metrics.client_disconnects.inc(not is_complete)
        for task in tasks:
            service.let_end(task)


class _Stream(StreamingResponse):
    """A stream of events that holds its place in the queue to the end, also if the client leaves before it begins."""

    def __init__(self, events: AsyncIterator[bytes], place: AsyncExitStack):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._place = place

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with self._place:
            await super().__call__(scope, receive, send)
