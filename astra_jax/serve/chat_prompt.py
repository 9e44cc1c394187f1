"""The prompt of a chat request: its messages, as OpenAI's clients write them, through the checkpoint's own template.

What clients send back is taken as they send it: assistant messages without content, content in parts, calls with fields
of the client's own, null for what is absent. Tools go into the template unchanged, in their order and with fields that
are no standard.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2

from astra_jax.chat.format import THINK
from astra_jax.chat.template import ChatTemplate
from astra_jax.serve.refusal import RequestRefused

_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_OURS: Final = frozenset({
    "conversation", "messages", "tools", "documents", "chat_template", "add_generation_prompt",
    "continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "load_audio_from_video", "processor_kwargs",
})  # fmt: skip
"""What of a rendering is the server's to say, and cannot stand in `chat_template_kwargs`."""


def chat_prompt(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> str:
    """Return the text after which the assistant's next message begins; `options` are the template's own.

    Raises:
        RequestRefused: a message is none, or the template does not render them.
    """
    if ours := sorted(_OURS.intersection(options)):
        raise RequestRefused(
            400, f"chat_template_kwargs: {ours[0]} is the server's to say", param="chat_template_kwargs"
        )
    shown = [template_message(message, f"messages.{index}") for index, message in enumerate(messages)]
    try:
        return template.render(shown, tools, **options)
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise RequestRefused(
            400, f"messages: the chat template cannot render them: {error}", param="messages"
        ) from None


def begins_in_thoughts(prompt: str) -> bool:
    """Say whether a prompt has opened the thoughts of the message that follows, as some templates do.

    >>> begins_in_thoughts("<|im_start|>assistant\\n<think>\\n"), begins_in_thoughts("<think>\\n\\n</think>\\n\\n")
    (True, False)
    """
    return prompt.rstrip().endswith(THINK)


def template_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return one message as a chat template takes it.

    >>> template_message({"role": "assistant", "content": None, "refusal": None, "reasoning": "So."}, "messages.0")
    {'role': 'assistant', 'content': '', 'reasoning_content': 'So.'}

    Raises:
        RequestRefused: it has no role that there is, holds something else than text, or a call that is none.
    """
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        found = message.get("role")
        raise RequestRefused(
            400, f"{where}.role: expected one of {', '.join(_ROLES)}, found {found!r}", param="messages"
        )
    shown: dict[str, Any] = {"role": role, "content": _text(message.get("content"), f"{where}.content")}
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if role == "assistant" and reasoning:
        shown["reasoning_content"] = _text(reasoning, f"{where}.reasoning_content")
    if calls := message.get("tool_calls"):
        if not isinstance(calls, list):
            raise RequestRefused(400, f"{where}.tool_calls: expected a list", param="messages")
        shown["tool_calls"] = [_call(call, f"{where}.tool_calls.{index}") for index, call in enumerate(calls)]
    return shown


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise RequestRefused(400, f"{where}: expected a text or a list of parts", param="messages")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text", part.get("refusal")) if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise RequestRefused(400, f"{where}.{index}: expected a part of text, found {kind!r}", param="messages")
        texts.append(text)
    return "".join(texts)


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestRefused(400, f"{where}: expected a function with a name", param="messages")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        # An object, so that every template writes it alike; what is none is shown as it stands.
        try:
            read = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            read = None
        arguments = read if isinstance(read, dict) else arguments
    return {
        "type": "function",
        "function": {"name": function["name"], "arguments": {} if arguments is None else arguments},
    }
