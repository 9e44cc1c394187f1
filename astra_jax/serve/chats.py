"""The replies to chats, in the form of OpenAI's API: whole, or as a stream that adds up to the same."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from astra_jax.chat.format import THINK, to_json
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.chat.tool_calls import ParsedToolCall
from astra_jax.engine.interface import Sampling, Session
from astra_jax.episodes.episode import all_or_none
from astra_jax.serve.messages import MessageParts, MessageText
from astra_jax.serve.requests import ChatRequest, RequestRefused, chat_prompt, refusal_of
from astra_jax.serve.service import Service, body_of, logprobs_of, usage, while_wanted

Json = dict[str, Any]


def _empty() -> Json:
    return {"role": "assistant", "content": ""}


@dataclass
class Choice:
    """One message of a reply, while it is sampled and after."""

    index: int
    session: Session
    text: MessageText
    parts: MessageParts
    message: Json = field(default_factory=_empty)
    ids: list[int] = field(default_factory=list)
    """Sampled tokens, the one that ended the message included."""
    logprobs: list[float] = field(default_factory=list)
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    """Reason why the message ended; None while it is sampled."""

    def say(self, pieces: dict[str, str]) -> None:
        """Add pieces of text to the message."""
        for part, piece in pieces.items():
            self.message[part] = self.message.get(part, "") + piece

    def end(self, calls: list[ParsedToolCall], *, is_cut: bool) -> Json:
        """End the message; return its calls, as a stream sends them."""
        self.finish_reason = "length" if is_cut else "tool_calls" if calls else "stop"
        if not calls:
            return {}
        called = [_call(call) for call in calls]
        self.message |= {"content": self.message["content"] or None, "tool_calls": called}
        return {"tool_calls": [{"index": index, **call} for index, call in enumerate(called)]}


def _call(call: ParsedToolCall) -> Json:
    function = {"name": call.name, "arguments": to_json(call.arguments)}
    return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}


@dataclass(frozen=True)
class Chat:
    """A chat that can be answered."""

    service: Service
    about: Json
    """Fields with which the reply, and each event of a stream, begins."""
    prompt_ids: list[int]
    sampling: Sampling
    choices: list[Choice]
    tells_logprobs: bool
    tells_usage: bool

    async def sample_all(self, tell: Callable[[Json], None]) -> None:
        """Sample all messages to their ends; `tell` hears of each next piece of a choice, as a stream sends it."""
        await all_or_none(self._sample(choice, tell) for choice in self.choices)

    async def _sample(self, choice: Choice, tell: Callable[[Json], None]) -> None:
        def told(ids: list[int], logprobs: list[float]) -> None:
            if choice.text.is_stopped:
                return
            text, count = "", 0
            while count < len(ids) and not choice.text.is_stopped:
                text += choice.text.push(ids[count])
                count += 1
            choice.ids += ids[:count]
            choice.logprobs += logprobs[:count]
            delta = choice.parts.push(text)
            choice.say(delta)
            if delta or self.tells_logprobs:
                tell(self._piece(choice, ids[:count], logprobs[:count], delta=delta))
            if choice.text.is_stopped:
                self.service.decoder.abort(choice.session)

        message = await self.service.sampled(self.prompt_ids, self.sampling, choice.session, told)
        rest = choice.text.end()
        is_cut = message.finish == "length" and not choice.text.is_stopped
        said, calls = choice.parts.end(rest, is_cut=is_cut)
        choice.say(said)
        delta = {**said, **choice.end(calls, is_cut=is_cut)}
        if message.computed_tokens is not None:
            choice.cached_tokens = len(self.prompt_ids) - message.computed_tokens
        tell(self._piece(choice, [], [], delta=delta))

    def _piece(self, choice: Choice, ids: list[int], logprobs: list[float], **content: Json) -> Json:
        piece = {"index": choice.index, **content, "finish_reason": choice.finish_reason}
        if self.tells_logprobs:
            decode = self.service.served.policy.tokenizer.decode
            piece["logprobs"] = logprobs_of([decode([id_]) for id_ in ids], logprobs)
        return piece

    def whole(self) -> Json:
        """Return the reply; the content of a message is a text, and null only beside calls without any."""
        choices = [self._piece(each, each.ids, each.logprobs, message=each.message) for each in self.choices]
        return {**self.about, "object": "chat.completion", "choices": choices, "usage": self._usage()}

    async def stream(self, send: Send) -> None:
        """Send the events of a stream; if a message fails, an error is the last one, in the place of `[DONE]`."""
        pieces: asyncio.Queue[Json | None] = asyncio.Queue()
        sampling = asyncio.ensure_future(self.sample_all(pieces.put_nowait))
        sampling.add_done_callback(lambda _: pieces.put_nowait(None))

        async def tell(document: Json | str) -> None:
            text = document if isinstance(document, str) else json.dumps(document, ensure_ascii=False)
            await send({"type": "http.response.body", "body": f"data: {text}\n\n".encode(), "more_body": True})

        chunk = {**self.about, "object": "chat.completion.chunk"}
        try:
            for choice in self.choices:
                await tell({**chunk, "choices": [self._piece(choice, [], [], delta=_empty())]})
            while (piece := await pieces.get()) is not None:
                await tell({**chunk, "choices": [piece]})
            sampling.result()
            if self.tells_usage:
                await tell({**chunk, "choices": [], "usage": self._usage()})
            await tell("[DONE]")
        except Exception as error:  # noqa: BLE001 - the client is told
            await tell(refusal_of(error).to_json())
        finally:
            sampling.cancel()
            await asyncio.gather(sampling, return_exceptions=True)

    def _usage(self) -> Json:
        counts = usage(len(self.prompt_ids), sum(len(choice.ids) for choice in self.choices))
        return {**counts, "prompt_tokens_details": {"cached_tokens": self.choices[0].cached_tokens}}


def _stream(chat: Chat) -> ASGIApp:
    """Return a reply that is sent while it is sampled; the sampling ends if the client leaves or the server stops."""

    async def sent(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await while_wanted(receive, chat.stream(send))
        except (ClientDisconnect, asyncio.CancelledError):
            return  # the connection is closed without an end
        await send({"type": "http.response.body", "body": b""})

    return sent


async def answer_chat(service: Service, request: Request) -> ASGIApp:
    """Answer `POST /v1/chat/completions`.

    Raises:
        RequestRefused, DecoderError: the chat cannot be answered.
        ClientDisconnect: the client has left.
    """
    body = await body_of(request, ChatRequest)
    # Rendering and tokenising a long history takes a while, in which the event loop serves others.
    chat = await asyncio.to_thread(_chat, service, body)
    if body.stream:
        return _stream(chat)
    await while_wanted(request.receive, chat.sample_all(lambda piece: None))
    return JSONResponse(chat.whole())


def _chat(service: Service, body: ChatRequest) -> Chat:
    name, template = service.name_of(body.model), service.served.template
    if template is None:
        raise RequestRefused(400, "messages: the checkpoint has no chat template", param="messages")
    tokenizer: Tokenizer = service.served.policy.tokenizer
    prompt = chat_prompt(template, body)
    ids = tokenizer.encode(prompt)
    length = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    choices = [
        Choice(
            index,
            service.session(None if body.seed is None else body.seed + index),
            MessageText(tokenizer, silent_ids=service.served.end_ids, stops=body.stop),
            MessageParts(
                begins_in_thoughts=prompt.rstrip().endswith(THINK),
                reads_calls=bool(body.tools) and body.tool_choice == "auto",
            ),
        )
        for index in range(body.n)
    ]
    return Chat(
        service=service,
        about={"id": f"chatcmpl-{secrets.token_hex(16)}", "created": int(time.time()), "model": name},
        prompt_ids=ids,
        sampling=body.sampling(service.max_tokens(len(ids), length)),
        choices=choices,
        tells_logprobs=body.logprobs,
        tells_usage=body.stream_options.include_usage,
    )
