r"""A Qwen3 message taken apart while its text comes: thoughts, what is said, and tool calls.

    <think>\n…\n</think>\n\n                                        Thought
    Hello.\n                                                        Said
    <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>       Called, as soon as it is whole

What stands between the tags of a call and is none stays in what is said, tags included. How the text is cut into pieces
does not matter: every decision rests on what came before a tag and the tag. Messages whose calls can all be read come
apart as `chat.tool_calls.parse_turn` takes them apart.
"""

from __future__ import annotations

import enum
import secrets
from typing import NamedTuple

from astra_jax.chat.format import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL, to_json
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, parse_call
from astra_jax.serve.message_text import overlap


class Thought(NamedTuple):
    """The next piece of the reasoning."""

    text: str


class Said(NamedTuple):
    """The next piece of the content."""

    text: str


class Called(NamedTuple):
    """A tool call, as soon as it is whole."""

    number: int
    """Of the message's calls before it."""
    id: str
    name: str
    arguments: str
    """JSON text of an object."""


Part = Thought | Said | Called


class _At(enum.Enum):
    BEGINNING = enum.auto()
    THOUGHTS = enum.auto()
    CONTENT = enum.auto()
    CALL = enum.auto()
    END = enum.auto()


class MessageParts:
    """Takes one message apart."""

    def __init__(
        self,
        *,
        splits_thoughts: bool = True,
        begins_in_thoughts: bool = False,
        reads_calls: bool = True,
        most_calls: int | None = None,
    ):
        """A prompt that ends with `<think>` makes a message that begins in its thoughts.

        Without `splits_thoughts` and `reads_calls` the text is handed on as it is. After `most_calls` nothing counts.
        """
        self._strips, self._reads_calls, self._most_calls = splits_thoughts or reads_calls, reads_calls, most_calls
        self._at = _At.CONTENT
        if splits_thoughts:
            self._at = _At.THOUGHTS if begins_in_thoughts else _At.BEGINNING
        self._rest = ""
        """Text of which nothing is decided."""
        self._blanks: list[str] = []
        """What a message begins with before its first word."""
        self._lines = 0
        """Line ends that count only if more text of their part follows."""
        self._has_begun = False
        """Whether the part at hand has any text: line ends before it do not count."""
        self._num_calls = 0
        self.num_unreadable = 0
        """Calls that could not be read, and stay in what is said."""
        self._searched = 0
        """How much of an open call's text has been looked through for its end."""
        self._is_in_string = self._is_escaped = False
        """Whether it breaks off inside a string of its JSON, and behind a backslash there."""

    @property
    def is_done(self) -> bool:
        """Whether whatever follows counts for nothing."""
        return self._at is _At.END

    def push(self, text: str) -> list[Part]:
        """Take in the next text; return what is certain now."""
        self._rest += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def end(self, *, is_cut: bool = False) -> list[Part]:
        """Return what was held back, when no text follows; a call without an end tag is none if the message is cut."""
        rest, self._rest = self._rest, ""
        if self._at is _At.BEGINNING:
            rest = "".join(self._blanks) + rest
        parts: list[Part] = []
        if self._at is _At.CALL:
            self._call(parts, rest, "", is_whole=not is_cut)
        elif self._at is not _At.END:
            self._hand_on(parts, Thought if self._at is _At.THOUGHTS else Said, rest)
        self._at = _At.END
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Decide what can be decided next; return whether there may be more."""
        match self._at:
            case _At.BEGINNING:
                begun = self._rest.lstrip()
                if not begun:  # kept apart: each further piece would copy all before it
                    self._blanks.append(self._rest)
                    self._rest = ""
                    return False
                if begun != THINK and THINK.startswith(begun):
                    return False
                thinks = begun.startswith(THINK)
                self._at = _At.THOUGHTS if thinks else _At.CONTENT
                self._rest = begun.removeprefix(THINK) if thinks else "".join(self._blanks) + self._rest
                return True
            case _At.THOUGHTS:
                return self._up_to(END_THINK, _At.CONTENT, Thought, parts)
            case _At.CONTENT:
                return self._up_to(TOOL_CALL if self._reads_calls else None, _At.CALL, Said, parts)
            case _At.CALL:
                return self._close_call(parts)
            case _At.END:
                self._rest = ""
                return False

    def _up_to(self, tag: str | None, after: _At, kind: type[Thought] | type[Said], parts: list[Part]) -> bool:
        """Hand on what comes before a tag, and what lies beyond it to the next decision."""
        found = -1 if tag is None else self._rest.find(tag)
        if tag is None or found < 0:
            certain = len(self._rest) - (0 if tag is None else overlap(self._rest, tag))
            self._hand_on(parts, kind, self._rest[:certain])
            self._rest = self._rest[certain:]
            return False
        self._hand_on(parts, kind, self._rest[:found])
        self._rest, self._at = self._rest[found + len(tag) :], after
        if kind is Thought:
            self._lines, self._has_begun = 0, False
        return True

    def _hand_on(self, parts: list[Part], kind: type[Thought] | type[Said], text: str) -> None:
        if self._strips:
            text = text if self._has_begun else text.lstrip("\n")
            said = text.rstrip("\n")
            held = len(text) - len(said)
            # Counted, not kept: each piece of empty lines behind a word would copy all of them before it.
            text, self._lines = ("\n" * self._lines + said, held) if said else ("", self._lines + held)
        if text:
            self._has_begun = True
            parts.append(kind(text))

    def _close_call(self, parts: list[Part]) -> bool:
        # An end tag inside a string of its JSON closes nothing; what was looked through is not looked through again.
        while True:
            closed = self._rest.find(END_TOOL_CALL, self._searched)
            read = len(self._rest) if closed < 0 else closed
            for index in range(self._searched, read):
                character = self._rest[index]
                if self._is_in_string and not self._is_escaped and character == "\\":
                    self._is_escaped = True
                    continue
                if character == '"' and not self._is_escaped:
                    self._is_in_string = not self._is_in_string
                self._is_escaped = False
            if closed < 0:
                # The beginning of an end tag may be there: quotes are in none, so only the tag is looked for again.
                self._searched = len(self._rest) - overlap(self._rest, END_TOOL_CALL)
                return False
            if not self._is_in_string or not self._rest.lstrip().startswith("{"):
                break
            self._searched = closed + len(END_TOOL_CALL)
        self._searched = 0
        block, self._rest = self._rest[:closed], self._rest[closed + len(END_TOOL_CALL) :]
        self._call(parts, block, END_TOOL_CALL, is_whole=True)
        return True

    def _call(self, parts: list[Part], block: str, closing: str, *, is_whole: bool) -> None:
        self._at = _At.CONTENT
        self._searched, self._is_in_string, self._is_escaped = 0, False, False
        call = parse_call(block)
        if isinstance(call, ParsedToolCall) and is_whole:
            id_ = f"call_{secrets.token_hex(12)}"
            parts.append(Called(self._num_calls, id_, call.name, to_json(call.arguments)))
            self._num_calls += 1
            if self._num_calls == self._most_calls:
                self._at = _At.END
        else:
            self.num_unreadable += isinstance(call, MalformedToolCall)
            self._hand_on(parts, Said, f"{TOOL_CALL}{block}{closing}")
