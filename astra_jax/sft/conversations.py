"""Anybody's conversations in OpenAI's form: a file of JSON lines with `messages` and, where tools are called, `tools`.

Content may be text or parts of text, arguments a JSON object or its text, `tools` a list or its text. Thoughts stand in
`reasoning_content`, in `reasoning`, or before `</think>` in the content. What would be learnt wrong is refused: a call
of a tool that is not offered, an answer to no call, a message of weight 0, the older `functions`. Other keys are left.
A control token's name in a text, such as `<|im_end|>`, is learnt as text (`chat.tokenizer`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import Any, NamedTuple, overload

from pydantic import ValidationError

from astra_jax.errors import AstraError
from astra_jax.sft.data import user_turn_ends
from synthesis.records import JsonObject, Message, ToolCall, ToolDocument

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_SHOWN_CHARACTERS = 60


class ConversationUnreadable(AstraError):
    """A line of a file of conversations is none; the message says file, line, expected and found."""


class Conversation(NamedTuple):
    """What was said, and the tools that were offered."""

    messages: tuple[Message, ...]
    tools: tuple[ToolDocument, ...]


class ConversationFile(Sequence[Conversation]):
    """Random access to the conversations of a file, in its order; blank lines do not count.

    Read by several threads at once.
    """

    def __init__(self, path: Path):
        """Read the whole file once, so that a bad line is found before anything is learnt.

        Raises:
            ConversationUnreadable: a line is no conversation.
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
            lines.seek(0)
            self.sha256 = file_digest(lines, "sha256").hexdigest()

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, index: int) -> Conversation: ...
    @overload
    def __getitem__(self, index: slice) -> list[Conversation]: ...
    def __getitem__(self, index: int | slice) -> Conversation | list[Conversation]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        start, number = self._starts[index]
        with self.path.open("rb") as lines:
            lines.seek(start)
            return self._read(lines.readline(), number)

    def _read(self, line: bytes, number: int) -> Conversation:
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # half of a surrogate pair is JSON, and no text
        except (ValueError, RecursionError) as error:
            reason = f"expected a JSON object in UTF-8, found {_shown(line.decode(errors='replace'))}"
            raise ConversationUnreadable(f"{self.path}, line {number}: {reason}") from error
        try:
            return conversation_of(row)
        except ValueError as error:
            raise ConversationUnreadable(f"{self.path}, line {number}: {error}") from error


def conversation_of(row: Any) -> Conversation:
    """Read a row of `messages` and `tools`.

    >>> row = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]}
    >>> [message.content for message in conversation_of(row).messages]
    ['Hi', 'Hello.']

    Raises:
        ValueError: it is none; the message says where, what was expected and what was found.
    """
    if not isinstance(row, dict):
        raise _wrong("the line", "an object with messages", row)
    if row.get("functions"):
        raise _wrong("functions", "tools, which took their place,", row["functions"])
    tools = tuple(_tools(row.get("tools")))
    entries = row.get("messages")
    if not isinstance(entries, list) or not entries:
        raise _wrong("messages", "a list of messages", entries)
    messages = tuple(_message(entry, f"messages[{place}]") for place, entry in enumerate(entries))
    _require_pairs(messages, {tool.name for tool in tools})
    if not user_turn_ends(messages):
        raise ValueError("messages: expected an assistant message after one of the user, found none")
    return Conversation(messages, tools)


def _tools(entries: Any) -> Iterator[ToolDocument]:
    if isinstance(entries, str):  # as readers that know no JSON columns keep them
        try:
            entries = json.loads(entries)
        except json.JSONDecodeError as error:
            raise _wrong("tools", "a list or its JSON text", entries) from error
    if entries is None:
        return
    if not isinstance(entries, list):
        raise _wrong("tools", "a list of tools", entries)
    names = set()
    for place, entry in enumerate(entries):
        where = f"tools[{place}]"
        function = entry.get("function") if isinstance(entry, dict) else None
        if not isinstance(function, dict) or entry.get("type", "function") != "function":
            raise _wrong(where, 'an object {"type": "function", "function": {…}}', entry)
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        try:
            document = ToolDocument.model_validate(
                {
                    "name": function.get("name"),
                    "description": function.get("description") or "",
                    "parameters": parameters,
                }
            )
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            expected = {"name": "a name of letters, digits, _ and -", "description": "a text"}.get(key, "an object")
            raise _wrong(f"{where}.function.{key}", expected, function.get(key)) from error
        if document.name in names:
            raise _wrong(f"{where}.function.name", "a name that no other tool has", document.name)
        names.add(document.name)
        yield document


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, dict):
        raise _wrong(where, "an object with role and content", entry)
    if entry.get("role") not in tuple(_ROLES):  # which may be asked for what has no hash
        raise _wrong(f"{where}.role", f"one of {', '.join(_ROLES)}", entry.get("role"))
    for key in ("function_call", "audio"):
        if entry.get(key) is not None:
            raise _wrong(f"{where}.{key}", "none, it is not read", entry[key])
    if entry.get("weight") not in (None, 1):
        raise _wrong(f"{where}.weight", "1, every assistant message is learnt", entry["weight"])
    role = _ROLES[entry["role"]]
    calls = entry.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise _wrong(f"{where}.tool_calls", "a list of calls", calls)
    if calls and role != "assistant":
        raise _wrong(f"{where}.tool_calls", f"none in a message of role {role}", calls)
    thoughts = next((entry[key] for key in ("reasoning_content", "reasoning") if entry.get(key) is not None), None)
    if thoughts is not None and not isinstance(thoughts, str):
        raise _wrong(f"{where}.reasoning_content", "text", thoughts)
    call_id = entry.get("tool_call_id")
    if call_id is not None and not isinstance(call_id, str):
        raise _wrong(f"{where}.tool_call_id", "text", call_id)
    if entry.get("content") is None and not calls:
        raise _wrong(f"{where}.content", "text", None)
    return Message.model_validate(
        {
            "role": role,
            "content": _text(entry.get("content"), f"{where}.content"),
            "reasoning_content": thoughts,
            "tool_calls": [_call(call, f"{where}.tool_calls[{place}]") for place, call in enumerate(calls or ())],
            "tool_call_id": call_id,
        }
    )


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    for part, text in zip(parts, texts, strict=True):
        if not isinstance(text, str):
            raise _wrong(where, "text or parts of type text", part)
    return "".join(text for text in texts if text is not None)


def _call(entry: Any, where: str) -> ToolCall:
    function = entry.get("function") if isinstance(entry, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _wrong(where, 'an object {"id": …, "function": {"name": …, "arguments": …}}', entry)
    call_id = entry.get("id")
    if call_id is not None and not isinstance(call_id, str):
        raise _wrong(f"{where}.id", "text", call_id)
    return ToolCall(
        id=call_id or "", name=function["name"], arguments=_arguments(function.get("arguments"), f"{where}.function")
    )


def _arguments(arguments: Any, where: str) -> JsonObject:
    found = arguments
    if isinstance(arguments, str):
        try:
            found = json.loads(arguments or "{}")
        except json.JSONDecodeError:
            found = None
    if not isinstance(found, dict):
        raise _wrong(f"{where}.arguments", "a JSON object or its text", arguments)
    return found


def _require_pairs(messages: Sequence[Message], names: set[str]) -> None:
    open_ids: list[str] = []
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        if message.role == "tool":
            if not open_ids or (message.tool_call_id is not None and message.tool_call_id not in open_ids):
                raise _wrong(f"{where}.tool_call_id", f"that of an open call ({open_ids})", message.tool_call_id)
            open_ids.remove(open_ids[0] if message.tool_call_id is None else message.tool_call_id)
            continue
        if open_ids:
            raise ValueError(
                f"{where}: expected an answer of role tool to the call {open_ids[0]!r}, found {message.role}"
            )
        for call in message.tool_calls:
            if call.name not in names:
                raise _wrong(f"{where}.tool_calls", f"a call of an offered tool ({sorted(names)})", call.name)
            open_ids.append(call.id)


def _wrong(where: str, expected: str, found: Any) -> ValueError:
    return ValueError(f"{where}: expected {expected}, found {_shown(found)}")


def _shown(value: Any) -> str:
    text = " ".join(json.dumps(value, ensure_ascii=False).split())
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
