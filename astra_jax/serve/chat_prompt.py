"""The prompt of a chat request: its messages, as OpenAI's clients write them, through the checkpoint's own template.

What clients send back is read by `synthesis.foreign_messages`: assistant messages without content, content in parts,
calls with fields of the client's own and null for what is absent are taken; results are matched to calls by id. Tools
go into the template in their order, with fields that are no standard and without nulls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2

from astra_jax.chat.format import THINK
from astra_jax.chat.template import ChatTemplate, template_message
from astra_jax.serve.refusal import RequestRefused
from synthesis.foreign_messages import MessageRefused, read_messages, read_tool

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
        RequestRefused: a message or tool cannot be taken, which its `param` names; or the template does not render
            them.
    """
    if ours := sorted(_OURS.intersection(options)):
        raise RequestRefused(
            400, f"chat_template_kwargs: {ours[0]} is the server's to say", param="chat_template_kwargs"
        )
    try:
        offered = [read_tool(tool, f"tools.{index}") for index, tool in enumerate(tools)]
        shown = [template_message(message) for message in read_messages(messages, {}, is_learnt=False)]
    except MessageRefused as refused:
        raise RequestRefused(400, str(refused), param=refused.place) from None
    try:
        return template.render(shown, offered, **options)
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
