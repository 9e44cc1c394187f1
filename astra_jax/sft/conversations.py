"""Conversations in OpenAI's form: a file of JSON lines with `messages` and, if tools are called, `tools`.

Content may be text or parts of text, arguments a JSON object or its text, `tools` a list or its text. Thoughts are in
`reasoning_content`, `reasoning` or `thinking`, in parts of type thinking, or before `</think>` in the content. A line
that would be learnt wrong is refused (`synthesis.foreign_messages`), and so are a message of weight 0 and the older
`functions`. Other keys are ignored. The name of a control token in a text, such as `<|im_end|>`, is learnt as text
(`chat.tokenizer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from astra_jax.errors import AstraError
from astra_jax.sft.data import user_turn_ends
from synthesis.foreign_messages import MessageRefused, read_messages, read_tool, strict_json
from synthesis.records import Message, ToolDocument


class ConversationUnreadable(AstraError):
    """A line of a file is not a conversation; the message names file, line, expected form and found form."""


class Conversation(NamedTuple):
    """Messages, and the tools that were offered."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDocument, ...]


class ConversationFile:
    """Random access to the conversations of a file, in its order; blank lines do not count.

    Several threads may read it at the same time.
    """

    def __init__(self, path: Path):
        """Read the whole file once, so that a bad line is found before anything is learnt.

        Raises:
            ConversationUnreadable: a line is not a conversation.
            OSError: the file cannot be read.
        """
        self.path = Path(path)
        self._starts: list[tuple[int, int]] = []  # byte and number of each line
        start = 0
        with self.path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    self._read(line, number)
                    self._starts.append((start, number))
                start += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> Conversation:
        start, number = self._starts[index]
        with self.path.open("rb") as lines:
            lines.seek(start)
            return self._read(lines.readline(), number)

    def _read(self, line: bytes, number: int) -> Conversation:
        try:
            row = json.loads(line)
            conversation = conversation_of(row)
            # Keys that are not read must be JSON and text as well: half of a surrogate pair and NaN are neither.
            json.dumps(row, ensure_ascii=False, allow_nan=False).encode()
        except MessageRefused as refused:
            raise ConversationUnreadable(f"{self.path}, line {number}: {refused}") from refused
        except (ValueError, RecursionError) as error:
            found = " ".join(line.decode(errors="replace")[:60].split())
            reason = f"expected a JSON object in UTF-8, found {found}: {type(error).__name__}: {str(error)[:80]}"
            raise ConversationUnreadable(f"{self.path}, line {number}: {reason}") from error
        return conversation


def conversation_of(row: Any) -> Conversation:
    """Read a row of `messages` and `tools`.

    >>> row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    >>> [message.content for message in conversation_of(row).messages]
    ['Hi', 'Hello.']

    Raises:
        MessageRefused: the row is not a conversation; the message names the place, the expected and the found form.
    """
    if not isinstance(row, dict):
        raise MessageRefused("the line", "an object with messages", row)
    if row.get("functions"):
        raise MessageRefused("functions", "tools, which took their place,", row["functions"])
    tools = tuple(_tools(row.get("tools")))
    entries = row.get("messages")
    if not isinstance(entries, list) or not entries:
        raise MessageRefused("messages", "a list of messages", entries)
    messages = tuple(read_messages(entries, {tool.name: tool.parameters for tool in tools}, is_learnt=True))
    if not user_turn_ends(messages):
        raise MessageRefused("messages", "an assistant message after one of the user", None)
    return Conversation(messages, tools)


def _tools(entries: Any) -> Iterator[ToolDocument]:
    if isinstance(entries, str):  # as readers that know no JSON columns keep them
        entries = strict_json(entries, "tools", "a list or its JSON text")
    if entries is None:
        return
    if not isinstance(entries, list):
        raise MessageRefused("tools", "a list of tools", entries)
    names = set()
    for place, entry in enumerate(entries):
        function = read_tool(entry, f"tools.{place}")["function"]
        try:
            document = ToolDocument.model_validate(
                {
                    "name": function.get("name"),
                    "description": function.get("description") or "",
                    "parameters": function.get("parameters") or {"type": "object", "properties": {}},
                }
            )
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            expected = {"name": "1 to 64 letters, digits, _ and -", "description": "a text"}.get(key, "an object")
            raise MessageRefused(f"tools.{place}.function.{key}", expected, function.get(key)) from error
        if document.name in names:
            raise MessageRefused(f"tools.{place}.function.name", "a name that no other tool has", document.name)
        names.add(document.name)
        yield document
