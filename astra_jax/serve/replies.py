"""Replies of chat and plain completions as OpenAI's clients read them, whole and in the pieces of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.serve.choice import Choice, News
from astra_jax.serve.messages import Called, Part, Said, Thought

Json = dict[str, Any]


@dataclass(frozen=True)
class Head:
    """What every reply, and every piece of one, says of itself."""

    id: str
    object: str
    created: int
    """In Unix seconds."""
    model: str

    def reply(self, choices: Sequence[Json], **rest: Any) -> Json:
        """Return a document with these choices."""
        about = {"id": self.id, "object": self.object, "created": self.created, "model": self.model}
        return {**about, "choices": list(choices), **rest}


@dataclass(frozen=True)
class ChatForm:
    """How chat replies are written."""

    tokenizer: Tokenizer
    tells_logprobs: bool

    def whole(self, choice: Choice) -> Json:
        """Return a choice of a reply that was waited for."""
        return {
            "index": choice.index,
            "message": chat_message(choice),
            "logprobs": self._logprobs(choice.ids, choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def first(self, choice: Choice) -> Json:
        """Return the first piece of a stream, which says who speaks."""
        delta = {"role": "assistant", "content": ""}
        return {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}

    def pieces(self, choice: Choice, news: News) -> list[Json]:
        """Return what news is told by; the first piece has the log-probs of its tokens."""
        deltas = [chat_delta(part) for part in news.parts]
        if not deltas and (news.ids and self.tells_logprobs):
            deltas = [{}]
        pieces = [{"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
        if pieces:
            pieces[0]["logprobs"] = self._logprobs(news.ids, news.logprobs)
        return pieces

    def last(self, choice: Choice) -> Json:
        """Return the piece that says how a message ended."""
        return {"index": choice.index, "delta": {}, "logprobs": None, "finish_reason": choice.finish_reason}

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
    """How replies of plain text are written."""

    tokenizer: Tokenizer
    tells_logprobs: bool

    def whole(self, choice: Choice) -> Json:
        """Return a choice of a reply that was waited for."""
        logprobs = self._logprobs(choice.ids, choice.logprobs, start=0)
        return self._piece(choice, choice.content, logprobs, choice.finish_reason)

    def first(self, choice: Choice) -> Json | None:
        """Return None: a stream of text begins with its text."""
        return None

    def pieces(self, choice: Choice, news: News) -> list[Json]:
        """Return what news is told by."""
        text = "".join(part.text for part in news.parts if isinstance(part, Said))
        if not text and not (news.ids and self.tells_logprobs):
            return []
        logprobs = self._logprobs(news.ids, news.logprobs, start=choice.told_characters)
        if logprobs is not None:
            choice.told_characters += sum(map(len, logprobs["tokens"]))
        return [self._piece(choice, text, logprobs, None)]

    def last(self, choice: Choice) -> Json:
        """Return the piece that says how a text ended."""
        return self._piece(choice, "", None, choice.finish_reason)

    def _piece(self, choice: Choice, text: str, logprobs: Json | None, finish_reason: str | None) -> Json:
        return {"index": choice.index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _logprobs(self, ids: Sequence[int], logprobs: Sequence[float], *, start: int) -> Json | None:
        if not self.tells_logprobs:
            return None
        texts = [self.tokenizer.decode([id_]) for id_ in ids]
        offsets = [start]
        for text in texts:
            offsets.append(offsets[-1] + len(text))
        return {
            "tokens": texts,
            "token_logprobs": list(logprobs),
            "top_logprobs": None,
            "text_offset": offsets[:-1],
        }


Form = ChatForm | CompletionForm


def usage_of(choices: Sequence[Choice]) -> Json:
    """Count the tokens of a request; a prompt that several choices follow counts once."""
    prompts = list({id(choice.prompt_ids): choice for choice in reversed(choices)}.values())
    prompt_tokens = sum(len(choice.prompt_ids) for choice in prompts)
    completion_tokens = sum(len(choice.ids) for choice in choices)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(choice.cached_tokens for choice in prompts)},
    }


def chat_message(choice: Choice) -> Json:
    """Return an assistant's message: a text always, empty at worst, unless there are calls alone."""
    calls, thoughts = choice.calls, "".join(part.text for part in choice.said if isinstance(part, Thought))
    message: Json = {"role": "assistant", "content": choice.content or (None if calls else "")}
    if thoughts:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def chat_delta(part: Part) -> Json:
    """Return what a part adds to the message of a stream; a call comes whole.

    >>> chat_delta(Said("Hi")), chat_delta(Thought("So."))
    ({'content': 'Hi'}, {'reasoning_content': 'So.'})
    """
    match part:
        case Thought(text):
            return {"reasoning_content": text}
        case Said(text):
            return {"content": text}
        case Called(number):
            return {"tool_calls": [{"index": number, **_call(part)}]}


def _call(call: Called) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def event(document: Mapping[str, Any]) -> bytes:
    r"""Return a server-sent event.

    >>> event({"a": 1})
    b'data: {"a": 1}\n\n'
    """
    return f"data: {json.dumps(document, ensure_ascii=False)}\n\n".encode()


LAST_EVENT = b"data: [DONE]\n\n"
