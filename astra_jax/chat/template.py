"""The chat template of a checkpoint, compared with our rendering before a run learns or samples a token.

A server renders with the template beside the weights. A checkpoint with another template would be taught a format in
which no server asks it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from astra_jax.chat.format import render
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import ConfigError
from astra_jax.transformers_library import transformers_library
from synthesis.records import Message, ToolCall, ToolDocument

_SHOWN_TOKENS = 8


class ChatFormatDiffers(ConfigError):
    """A checkpoint's chat template or tokenizer is not Qwen3's; the message shows the first token that differs."""


@dataclass(frozen=True)
class Probe:
    """A conversation that shows a part of the format."""

    name: str
    messages: tuple[Message, ...]
    tools: tuple[ToolDocument, ...] = ()
    add_generation_prompt: bool = False
    enable_thinking: bool = True


_TOOLS = tuple(
    ToolDocument(
        name=name,
        description=description,
        parameters={"type": "object", "properties": {"flat": {"type": "string"}}, "required": ["flat"]},
    )
    for name, description in (("get_rent", "The rent of a flat, in €."), ("find_owner", "房东是谁？"))
)
_TURNS = (
    Message(role="system", content="Answer in one sentence."),
    Message(role="user", content="What is the rent of Amber Falcon, and who owns it?"),
    Message(
        role="assistant",
        reasoning_content="The rent first.",
        content="One moment.",
        tool_calls=(ToolCall(id="1", name="get_rent", arguments={"flat": "Amber Falken"}),),
    ),
    Message(role="tool", content="no such flat: Amber Falken"),
    Message(
        role="assistant",
        reasoning_content="Misspelt.\nBoth at once.",
        tool_calls=(
            ToolCall(id="2", name="get_rent", arguments={"flat": "Amber Falcon"}),
            ToolCall(id="3", name="find_owner", arguments={"flat": "Amber Falcon"}),
        ),
    ),
    Message(role="tool", content='{"rent": 2150}'),
    Message(role="tool", content='"李雷"'),
)
_ANSWERED = (*_TURNS, Message(role="assistant", reasoning_content="Done.", content="2150 €; 李雷 owns it."))
_NEXT_QUERY = (*_ANSWERED, Message(role="user", content="And of Blue Door?"))

PROBES = (
    Probe("tools, thinking, parallel calls, tool responses", _ANSWERED, _TOOLS),
    Probe("where the next assistant message begins", _TURNS, _TOOLS, add_generation_prompt=True),
    Probe("reasoning before a newer user message", _NEXT_QUERY, _TOOLS, add_generation_prompt=True),
    Probe("no tools, no thinking", _ANSWERED[:2], add_generation_prompt=True, enable_thinking=False),
)


class ChatTemplate:
    """The chat template of a checkpoint, rendered as `transformers` renders it."""

    def __init__(self, folder: Path):
        """Read the template of the checkpoint in `folder`.

        Raises:
            ChatFormatDiffers: it has none.
        """
        self._tokenizer = _their_tokenizer(folder)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Return the text of a conversation, up to the beginning of the assistant's next message.

        Raises:
            jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError: the template does not take it.
        """
        rendered = self._tokenizer.apply_chat_template(
            list(messages), tools=list(tools) or None, add_generation_prompt=True, tokenize=False, **options
        )
        return str(rendered)


def require_chat_template(folder: Path, tokenizer: Tokenizer) -> None:
    """Render every probe as `transformers` does for the checkpoint in `folder`, and compare with ours token by token.

    Raises:
        ChatFormatDiffers: a token differs, or the checkpoint has no chat template.
    """
    theirs = _their_tokenizer(folder)
    for probe in PROBES:
        options = {"add_generation_prompt": probe.add_generation_prompt, "enable_thinking": probe.enable_thinking}
        try:
            found = theirs.apply_chat_template(
                [template_message(message) for message in probe.messages],
                tools=[tool.to_openai() for tool in probe.tools] or None,
                return_dict=False,
                **options,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ChatFormatDiffers(
                f"{folder}: the chat template cannot render {probe.name} ({error}); take that of a Qwen3 checkpoint"
            ) from error
        expected = tokenizer.encode(render(probe.messages, probe.tools, **options))
        if found != expected:
            raise ChatFormatDiffers(_first_difference(folder, probe, theirs, tokenizer, found, expected))


def _first_difference(
    folder: Path, probe: Probe, theirs: Any, tokenizer: Tokenizer, found: list[int], expected: list[int]
) -> str:
    same = next(
        (i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), min(len(found), len(expected))
    )
    before = tokenizer.decode(expected[max(0, same - _SHOWN_TOKENS) : same])
    ours = tokenizer.decode(expected[same : same + _SHOWN_TOKENS])
    its = theirs.decode(found[same : same + _SHOWN_TOKENS])
    return (
        f"{folder}: the chat format of its template or tokenizer is not that of Qwen3 ({probe.name}): "
        f"from token {same} on, after {before!r}, expected {ours!r} {expected[same : same + _SHOWN_TOKENS]}, "
        f"found {its!r} {found[same : same + _SHOWN_TOKENS]}; start from a checkpoint with Qwen3's own template"
    )


def _their_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of `transformers`, of the class in its config (the automatic one imports torch)."""
    path = folder / "tokenizer_config.json"
    try:
        name = json.loads(path.read_text(encoding="utf-8")).get("tokenizer_class") if path.is_file() else None
    except (ValueError, AttributeError) as error:
        raise ChatFormatDiffers(f"{path}: not a JSON object ({error}); download it again") from error
    library = transformers_library()
    tokenizer_class = getattr(library, name or "PreTrainedTokenizerFast", library.PreTrainedTokenizerFast)
    tokenizer = tokenizer_class.from_pretrained(folder, local_files_only=True)
    if tokenizer.chat_template is None:
        raise ChatFormatDiffers(
            f"{folder}: neither tokenizer_config.json nor chat_template.jinja has a chat template; put that of a Qwen3 "
            "checkpoint there"
        )
    return tokenizer


def template_message(message: Message) -> dict[str, Any]:
    """Return a message as chat templates take it.

    >>> template_message(Message(role="assistant", content="Yes.", reasoning_content="So."))
    {'role': 'assistant', 'content': 'Yes.', 'reasoning_content': 'So.'}
    """
    entry: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.reasoning_content is not None:
        entry["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        entry["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return entry
