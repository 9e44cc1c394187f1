"""Text in, text out, as OpenAI's clients know it: `POST /v1/chat/completions` and `POST /v1/completions`.

A chat is rendered by the checkpoint's own template, and what is sampled is taken apart as it comes: a stream says the
same as a reply that is waited for. A client that hangs up lets go of rows and pages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from astra_jax.engine.interface import DecoderError, Sampling
from astra_jax.episodes.episode import all_or_none
from astra_jax.serve.chat_prompt import begins_in_thoughts, chat_prompt
from astra_jax.serve.chat_request import ChatRequest, chat_request
from astra_jax.serve.choice import Choice, News
from astra_jax.serve.completion_request import CompletionRequest, completion_request
from astra_jax.serve.message_parts import MessageParts
from astra_jax.serve.message_text import MessageText
from astra_jax.serve.openai_replies import LAST_EVENT, ChatForm, CompletionForm, Form, Head, event, usage_of
from astra_jax.serve.refusal import RequestRefused
from astra_jax.serve.service import OUT_OF_GRACE, Service
from astra_jax.serve.text_sampling import TextRequest

log = logging.getLogger("astra.serve")
ReasoningParser = Literal["qwen3", "none"]


@dataclass(frozen=True)
class _Asked:
    """A request that is understood."""

    head: Head
    form: Form
    samplings: list[Sampling]
    choices: list[Choice]


class TextEndpoint:
    """Answers with text, and with what a message is made of."""

    def __init__(self, service: Service, reasoning_parser: ReasoningParser = "qwen3"):
        self._service, self._splits_thoughts = service, reasoning_parser == "qwen3"
        self._tokenizer = service.served.policy.tokenizer

    async def chat(self, request: Request) -> Response:
        """Answer `POST /v1/chat/completions`.

        Raises:
            RequestRefused: it cannot be answered.
            ClientDisconnect: nobody waits for the answer any more.
        """
        return await self._answered(request, chat_request, self._asked_to_chat)

    async def completions(self, request: Request) -> Response:
        """Answer `POST /v1/completions`.

        Raises:
            RequestRefused, ClientDisconnect: as `chat`.
        """
        return await self._answered(request, completion_request, self._asked_to_complete)

    async def _answered(
        self, request: Request, read: Callable[[bytes], Any], understand: Callable[[Any], _Asked]
    ) -> Response:
        service = self._service
        with ExitStack() as stack:
            stack.enter_context(service.taking())
            body = read(await service.body(request))
            service.require_open()
            # Rendering and tokenising a long history takes long: not in the thread that serves the others.
            asked = await asyncio.to_thread(understand, body)
            if body.stream:
                return _Stream(_events(service, asked, body.stream_options.include_usage), stack.pop_all())
            await service.while_wanted(request, _sample_all(service, asked))
        _count_oddities(service, asked)
        choices = [asked.form.whole(choice) for choice in asked.choices]
        return JSONResponse(asked.head.reply(choices, usage=usage_of(asked.choices)))

    def _asked_to_chat(self, body: ChatRequest) -> _Asked:
        service = self._service
        name, template = service.name_of(body.model), service.served.template
        if template is None:
            raise RequestRefused(400, "messages: the checkpoint has no chat template", param="messages")
        prompt = chat_prompt(template, body.messages, body.tools, body.chat_template_kwargs)
        ids = self._tokenizer.encode(prompt)
        splits = self._splits_thoughts if body.separate_reasoning is None else body.separate_reasoning

        def parts() -> MessageParts:
            return MessageParts(
                splits_thoughts=splits,
                begins_in_thoughts=begins_in_thoughts(prompt),
                reads_calls=body.reads_calls,
                most_calls=None if body.parallel_tool_calls else 1,
            )

        sampling = body.sampling(service.max_tokens(len(ids), body.asked_tokens))
        return _Asked(
            _head("chatcmpl", "chat.completion.chunk" if body.stream else "chat.completion", name),
            ChatForm(self._tokenizer, body.logprobs),
            [sampling] * body.n,
            [self._choice(body, number, ids, parts()) for number in range(body.n)],
        )

    def _asked_to_complete(self, body: CompletionRequest) -> _Asked:
        service = self._service
        name = service.name_of(body.model)
        samplings: list[Sampling] = []
        choices: list[Choice] = []
        for prompt in body.prompts:
            ids = self._tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
            if not ids:
                raise RequestRefused(400, "prompt: expected at least one token, found none", param="prompt")
            self._require_known(ids, "prompt")
            sampling = body.sampling(service.max_tokens(len(ids), body.max_tokens))
            for _ in range(body.n):
                samplings.append(sampling)
                choices.append(self._choice(body, len(choices), ids, None))
        return _Asked(
            _head("cmpl", "text_completion", name),
            CompletionForm(self._tokenizer, body.logprobs is not None),
            samplings,
            choices,
        )

    def _require_known(self, ids: Sequence[int], param: str) -> None:
        # Before a stream begins, whose status can no longer say so.
        vocab_size = self._service.served.policy.model_config.vocab_size
        if not all(0 <= id_ < vocab_size for id_ in ids):
            raise RequestRefused(400, f"{param}: expected token ids from 0 to {vocab_size - 1}", param=param)

    def _choice(self, body: TextRequest, index: int, ids: list[int], parts: MessageParts | None) -> Choice:
        self._require_known(body.stop_token_ids, "stop_token_ids")
        silent_ids = {*self._service.served.end_ids, *body.stop_token_ids}
        text = MessageText(self._tokenizer, silent_ids=silent_ids, stops=body.stop)
        seed = None if body.seed is None else body.seed + index
        return Choice(index, ids, self._service.session(seed, salt=body.cache_salt), text, parts)


def _count_oddities(service: Service, asked: _Asked) -> None:
    if isinstance(asked.form, ChatForm):
        totals = service.metrics.totals
        totals["empty_replies"] += sum(not choice.content and not choice.calls for choice in asked.choices)
        totals["unreadable_calls"] += sum(choice.parts.num_unreadable for choice in asked.choices if choice.parts)


def _head(kind: str, object_: str, name: str) -> Head:
    return Head(f"{kind}-{secrets.token_hex(16)}", object_, int(time.time()), name)


async def _sample(
    service: Service, choice: Choice, sampling: Sampling, tell: Callable[[Choice, News], None] | None = None
) -> None:
    """Sample one message to its end, and tell of it as it comes.

    Raises:
        RequestRefused: the decoder does not take it.
    """

    def told(ids: list[int], logprobs: list[float]) -> None:
        if choice.is_over:
            return
        news = choice.hear(ids, logprobs)
        if tell is not None:
            tell(choice, news)
        if choice.is_over:
            service.decoder.abort(choice.session)

    try:
        message = await service.sampled(choice.prompt_ids, sampling, choice.session, told)
    except DecoderError as error:
        raise RequestRefused(400, str(error)) from None
    news = choice.end(message)
    if tell is not None:
        tell(choice, news)


async def _sample_all(service: Service, asked: _Asked) -> None:
    await all_or_none(_sample(service, *pair) for pair in zip(asked.choices, asked.samplings, strict=True))


async def _events(service: Service, asked: _Asked, tells_usage: bool) -> AsyncIterator[bytes]:
    """Yield the events of a stream; one that fails late ends with an error in the place of its last event."""
    heard: asyncio.Queue[tuple[Choice, News | None] | Exception] = asyncio.Queue()

    def tell(choice: Choice, news: News) -> None:
        heard.put_nowait((choice, news))

    async def sample(choice: Choice, sampling: Sampling) -> None:
        try:
            await _sample(service, choice, sampling, tell)
            heard.put_nowait((choice, None))
        except Exception as error:  # noqa: BLE001 - the reader of the stream is told
            heard.put_nowait(error)

    async def end_with_grace() -> None:
        await service.grace_is_over.wait()
        heard.put_nowait(OUT_OF_GRACE)

    tasks = [asyncio.create_task(end_with_grace())]
    tasks += [asyncio.create_task(sample(*pair)) for pair in zip(asked.choices, asked.samplings, strict=True)]
    rest = {"usage": None} if tells_usage else {}
    is_told = False
    try:
        for choice in asked.choices:
            if (first := asked.form.first(choice)) is not None:
                yield event(asked.head.reply([first], **rest))
        num_left = len(asked.choices)
        while num_left:
            if isinstance(next_ := await heard.get(), Exception):
                if isinstance(next_, RequestRefused):
                    refused = next_
                else:
                    log.error("a stream failed", exc_info=next_)
                    refused = RequestRefused(500, f"{type(next_).__name__}; the server's log says more")
                is_told = True
                yield event(refused.to_json())
                return
            choice, news = next_
            num_left -= news is None
            for piece in [asked.form.last(choice)] if news is None else asked.form.pieces(choice, news):
                yield event(asked.head.reply([piece], **rest))
        _count_oddities(service, asked)
        if tells_usage:
            yield event(asked.head.reply([], usage=usage_of(asked.choices)))
        is_told = True
        yield LAST_EVENT
    finally:
        service.metrics.totals["client_disconnects"] += not is_told
        for task in tasks:
            service.let_end(task)


class _Stream(StreamingResponse):
    """Events; whatever was held for them is let go of, also where the client has left before the first."""

    def __init__(self, events: AsyncIterator[bytes], held: ExitStack):
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        with self._held:
            await super().__call__(scope, receive, send)
