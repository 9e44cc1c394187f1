"""The Qwen3 chat format: messages and tool documents in, the exact text the model reads out.

The text is that of the official Qwen3 chat template, byte for byte, cut into segments that name their writer, so that
the loss mask is never guessed from the text:

    <|im_start|>user\\n What is …? <|im_end|>\\n        PROMPT
    <|im_start|>assistant\\n                            TEMPLATE
    <think>\\n…\\n</think>\\n\\n<tool_call>…<|im_end|>   MODEL     ← the only text that has loss
    \\n<|im_start|>user\\n<tool_response>\\n            TEMPLATE
    "42 Rue de la Paix"                                TOOL
    \\n</tool_response><|im_end|>\\n                    TEMPLATE

Inside one user turn the rendering is append-only as long as every assistant message has a reasoning (the template drops
an empty think block from all but the last message, and every think block once a newer user message follows).

Decided: docs/decisions/rl.md, “The text of a control token is encoded as text, not as the token”.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from synthesis.records import JsonValue, Message, ToolCall, ToolDocument

IM_START, IM_END, END_OF_TEXT = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
THINK, END_THINK = "<think>", "</think>"
TOOL_CALL, END_TOOL_CALL = "<tool_call>", "</tool_call>"
TOOL_RESPONSE, END_TOOL_RESPONSE = "<tool_response>", "</tool_response>"

TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


class Source(IntEnum):
    """The writer of a token."""

    PROMPT = 0
    TEMPLATE = 1
    MODEL = 2
    TOOL = 3


class Segment(NamedTuple):
    """A piece of the rendered text, and its writer."""

    text: str
    source: Source
    said: tuple[int, int] = (0, 0)
    """First and last character + 1 of a said text, in which the name of a control token is only text."""


def _framed(before: str, said: str, after: str, source: Source) -> Segment:
    return Segment(before + said + after, source, (len(before), len(before) + len(said)))


def render(
    messages: Sequence[Message],
    tools: Sequence[ToolDocument] = (),
    *,
    add_generation_prompt: bool = False,
    enable_thinking: bool = True,
) -> str:
    """Render a conversation to the text the model reads, as the official Qwen3 chat template does.

    >>> render([Message(role="user", content="Hi")], add_generation_prompt=True)
    '<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n'
    """
    text = "".join(segment.text for segment in segments(messages, tools))
    if add_generation_prompt:
        text += generation_prompt(enable_thinking=enable_thinking)
    return text


def generation_prompt(*, enable_thinking: bool = True) -> str:
    """Return the text after which the model writes the next assistant message."""
    return f"{IM_START}assistant\n" + ("" if enable_thinking else f"{THINK}\n\n{END_THINK}\n\n")


def segments(messages: Sequence[Message], tools: Sequence[ToolDocument] = ()) -> Iterator[Segment]:
    """Yield the rendered conversation in order, cut where the writer changes."""
    if tools:
        system = messages[0].content + "\n\n" if messages and messages[0].role == "system" else ""
        documents = "".join("\n" + to_json(tool.to_openai()) for tool in tools)
        # A system message of the conversation's own goes before the tools, in the same turn.
        said = f"{system}{TOOLS_HEAD}{documents}{TOOLS_FOOT}"
        yield _framed(f"{IM_START}system\n", said, f"{IM_END}\n", Source.PROMPT)
    elif messages and messages[0].role == "system":
        yield _framed(f"{IM_START}system\n", messages[0].content, f"{IM_END}\n", Source.PROMPT)
    # The template keeps reasoning only after the last query: before it, an assistant message is its content and calls.
    last_query = _last_query_index(messages)
    for index, message in enumerate(messages):
        if message.role == "user":
            yield user_segment(message.content)
        elif message.role == "system" and index > 0:
            yield _framed(f"{IM_START}system\n", message.content, f"{IM_END}\n", Source.PROMPT)
        elif message.role == "assistant":
            yield Segment(f"{IM_START}assistant\n", Source.TEMPLATE)
            body = assistant_body(message, after_query=index > last_query, is_last=index == len(messages) - 1)
            yield _framed("", body, IM_END, Source.MODEL)
            yield Segment("\n", Source.TEMPLATE)
        elif message.role == "tool":
            is_first = index == 0 or messages[index - 1].role != "tool"
            is_last = index == len(messages) - 1 or messages[index + 1].role != "tool"
            yield from tool_response_segments(message.content, is_first=is_first, is_last=is_last)


def user_segment(content: str) -> Segment:
    """Render a user's message.

    >>> user_segment("Hi").text
    '<|im_start|>user\\nHi<|im_end|>\\n'
    """
    return _framed(f"{IM_START}user\n", content, f"{IM_END}\n", Source.PROMPT)


def tool_response_segments(content: str, *, is_first: bool, is_last: bool) -> Iterator[Segment]:
    """Yield one tool response; consecutive ones share a single user turn."""
    yield Segment((f"{IM_START}user" if is_first else "") + f"\n{TOOL_RESPONSE}\n", Source.TEMPLATE)
    yield _framed("", content, "", Source.TOOL)
    yield Segment(f"\n{END_TOOL_RESPONSE}" + (f"{IM_END}\n" if is_last else ""), Source.TEMPLATE)


def assistant_body(message: Message, *, after_query: bool = True, is_last: bool = False) -> str:
    """Render the thoughts, text and calls of an assistant message, without the role header and `<|im_end|>`."""
    reasoning, content = _reasoning_and_content(message)
    body = content
    if after_query and (is_last or reasoning):
        body = f"{THINK}\n" + reasoning.strip("\n") + f"\n{END_THINK}\n\n" + content.lstrip("\n")
    for position, call in enumerate(message.tool_calls):
        if position > 0 or content:
            body += "\n"
        body += tool_call_text(call)
    return body


def tool_call_text(call: ToolCall) -> str:
    """Render one tool call.

    >>> tool_call_text(ToolCall(id="1", name="rent", arguments={"flat": "房"}))
    '<tool_call>\\n{"name": "rent", "arguments": {"flat": "房"}}\\n</tool_call>'
    """
    return f'{TOOL_CALL}\n{{"name": "{call.name}", "arguments": {to_json(call.arguments)}}}\n{END_TOOL_CALL}'


def to_json(value: JsonValue) -> str:
    """Write JSON as the template's `tojson` does: UTF-8 kept, key order kept."""
    return json.dumps(value, ensure_ascii=False)


def _reasoning_and_content(message: Message) -> tuple[str, str]:
    if message.reasoning_content is not None:
        return message.reasoning_content, message.content
    if END_THINK not in message.content:
        return "", message.content
    before, after = message.content.split(END_THINK)[0], message.content.split(END_THINK)[-1]
    return before.rstrip("\n").split(THINK)[-1].lstrip("\n"), after.lstrip("\n")


def _last_query_index(messages: Sequence[Message]) -> int:
    """Return the index of the user's last own message; tool responses that were pasted as user text do not count."""
    for index in range(len(messages) - 1, -1, -1):
        content = messages[index].content
        pasted = content.startswith(TOOL_RESPONSE) and content.endswith(END_TOOL_RESPONSE)
        if messages[index].role == "user" and not pasted:
            return index
    return len(messages) - 1
