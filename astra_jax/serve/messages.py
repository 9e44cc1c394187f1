r"""The messages that are sampled: token ids become text, and text becomes thoughts, content and tool calls.

    <think>\n…\n</think>\n\n                                        Thought
    Hello.\n                                                        Said
    <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>       Called, as soon as the call is complete

The result does not depend on the pieces in which tokens or text arrive, so a stream adds up to the whole reply. A
block between tool call tags that cannot be read stays in the content, tags included. A message whose calls can all be
read has the parts that `chat.tool_calls.parse_turn` gives it.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from astra_jax.chat.format import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL, to_json
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.chat.tool_calls import MalformedToolCall, ParsedToolCall, parse_call
from astra_jax.engine.interface import Generated, Sampling, Session

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS_OF_A_CHARACTER: Final = 4  # a character has at most four bytes


class MessageText:
    """Turns token ids into text: whole characters, up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, *, silent_ids: Collection[int], stops: Sequence[str] = ()):
        """Begin a message; `silent_ids` are the tokens that end it and are not shown."""
        self._tokenizer, self._silent_ids, self._stops = tokenizer, frozenset(silent_ids), tuple(filter(None, stops))
        self._held_ids: list[int] = []
        """Tokens of a character whose last bytes have not come."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.is_stopped = False
        """Whether a stop string has come."""

    def push(self, id_: int) -> str:
        """Add the next token, and return the text that no later token can change."""
        if self.is_stopped or id_ in self._silent_ids:
            return ""
        self._held_ids.append(id_)
        text = self._tokenizer.decode(self._held_ids)
        if text.endswith(_REPLACEMENT) and len(self._held_ids) < _MOST_TOKENS_OF_A_CHARACTER:
            return ""
        self._held_ids = []
        return self._until_stop_string(text)

    def end(self) -> str:
        """Return the text that was held back; no token follows."""
        rest = self._until_stop_string(self._tokenizer.decode(self._held_ids)) if self._held_ids else ""
        return rest if self.is_stopped else rest + self._held

    def _until_stop_string(self, text: str) -> str:
        if not self._stops:
            return text
        text = self._held + text
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            self._held, self.is_stopped = "", True
            return text[:found]
        certain = len(text) - max(_overlap(text, stop) for stop in self._stops)
        self._held = text[certain:]
        return text[:certain]


def _overlap(text: str, tag: str) -> int:
    """Return the number of characters at the end of a text that are the beginning of a tag, but not all of it.

    >>> _overlap("Well <tool", "<tool_call>"), _overlap("Well", "<tool_call>")
    (5, 0)
    """
    return next((count for count in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:count])), 0)


class Thought(NamedTuple):
    """The next piece of the reasoning."""

    text: str


class Said(NamedTuple):
    """The next piece of the content."""

    text: str


class Called(NamedTuple):
    """A complete tool call."""

    number: int
    """Index of the call among the calls of the message."""
    id: str
    name: str
    arguments: str
    """Arguments of the call, the JSON text of an object."""


Part = Thought | Said | Called


class MessageParts:
    """Divides the text of one message into thoughts, content and tool calls."""

    def __init__(
        self,
        *,
        splits_thoughts: bool = True,
        begins_in_thoughts: bool = False,
        reads_calls: bool = True,
        most_calls: int | None = None,
    ):
        """Begin a message, in its thoughts if the prompt ends with `<think>`; after `most_calls` calls it is over.

        Without `splits_thoughts` and `reads_calls` all text is content, unchanged.
        """
        self._strips, self._reads_calls, self._most_calls = splits_thoughts or reads_calls, reads_calls, most_calls
        self._at: Literal["beginning", "thoughts", "content", "call", "end"] = "content"
        if splits_thoughts:
            self._at = "thoughts" if begins_in_thoughts else "beginning"
        self._rest = ""
        """Text that is not divided yet."""
        self._blanks: list[str] = []
        """Blanks before the first word of the message; a list, because joining them at each piece would take long."""
        self._num_held_lines = 0
        """Line ends that belong to the current part only if more text of it follows; counted for the same reason."""
        self._has_begun = False
        """Whether the current part has any text; line ends before that are dropped."""
        self._num_calls = 0
        self.num_unreadable = 0
        """Number of blocks between tool call tags that cannot be read."""
        self._searched = 0
        """Number of characters of an open call in which its end tag was searched."""
        self._is_in_string = self._is_escaped = False
        """Whether the searched characters end inside a JSON string, and there behind a backslash."""

    @property
    def is_done(self) -> bool:
        """Whether the rest of the message is ignored."""
        return self._at == "end"

    def push(self, text: str) -> list[Part]:
        """Add the next text, and return the parts that no later text can change."""
        self._rest += text
        parts: list[Part] = []
        while self._step(parts):
            pass
        return parts

    def end(self, *, is_cut: bool = False) -> list[Part]:
        """Return the parts that were held back; no text follows.

        A call without an end tag counts, unless the message `is_cut` at its length.
        """
        rest, self._rest = "".join([*self._blanks, self._rest]), ""
        parts: list[Part] = []
        if self._at == "call":
            self._call(parts, rest, "", is_whole=not is_cut)
        elif not self.is_done:
            self._add(parts, Thought if self._at == "thoughts" else Said, rest)
        self._at = "end"
        return parts

    def _step(self, parts: list[Part]) -> bool:
        """Divide the rest at the next place that is certain; return whether another one may follow."""
        match self._at:
            case "beginning":
                begun = self._rest.lstrip()
                if not begun:
                    self._blanks.append(self._rest)
                    self._rest = ""
                    return False
                if begun != THINK and THINK.startswith(begun):
                    return False
                thinks = begun.startswith(THINK)
                self._at = "thoughts" if thinks else "content"
                self._rest = begun.removeprefix(THINK) if thinks else "".join([*self._blanks, self._rest])
                self._blanks = []
                return True
            case "thoughts":
                return self._reaches(END_THINK, Thought, parts)
            case "content":
                return self._reaches(TOOL_CALL if self._reads_calls else None, Said, parts)
            case "call":
                return self._close_call(parts)
            case "end":
                self._rest = ""
                return False

    def _reaches(self, tag: str | None, kind: type[Thought] | type[Said], parts: list[Part]) -> bool:
        """Add the text before the tag that ends the current state; return whether the tag has come."""
        before, found, self._rest = self._rest.partition(tag) if tag else (self._rest, "", "")
        if not found and tag:
            certain = len(before) - _overlap(before, tag)
            before, self._rest = before[:certain], before[certain:]
        self._add(parts, kind, before)
        if found and kind is Thought:
            self._at, self._num_held_lines, self._has_begun = "content", 0, False
        elif found:
            self._at = "call"
        return bool(found)

    def _add(self, parts: list[Part], kind: type[Thought] | type[Said], text: str) -> None:
        if self._strips:
            text = text if self._has_begun else text.lstrip("\n")
            said = text.rstrip("\n")
            held = len(text) - len(said)
            if said:
                text, self._num_held_lines = "\n" * self._num_held_lines + said, held
            else:
                text, self._num_held_lines = "", self._num_held_lines + held
        if text:
            self._has_begun = True
            parts.append(kind(text))

    def _close_call(self, parts: list[Part]) -> bool:
        # An end tag inside a JSON string does not close the call. No character is searched twice.
        while True:
            closed = self._rest.find(END_TOOL_CALL, self._searched)
            for character in self._rest[self._searched : None if closed < 0 else closed]:
                if character == '"' and not self._is_escaped:
                    self._is_in_string = not self._is_in_string
                self._is_escaped = character == "\\" and self._is_in_string and not self._is_escaped
            if closed < 0:
                # The end tag may have begun; it has no quotes, so searching it again changes no string.
                self._searched = len(self._rest) - _overlap(self._rest, END_TOOL_CALL)
                return False
            if not self._is_in_string or not self._rest.lstrip().startswith("{"):
                break
            self._searched = closed + len(END_TOOL_CALL)
        block, self._rest = self._rest[:closed], self._rest[closed + len(END_TOOL_CALL) :]
        self._call(parts, block, END_TOOL_CALL, is_whole=True)
        return True

    def _call(self, parts: list[Part], block: str, closing: str, *, is_whole: bool) -> None:
        self._at, self._searched, self._is_in_string, self._is_escaped = "content", 0, False, False
        call = parse_call(block)
        if isinstance(call, ParsedToolCall) and is_whole:
            parts.append(Called(self._num_calls, f"call_{secrets.token_hex(12)}", call.name, to_json(call.arguments)))
            self._num_calls += 1
            if self._num_calls == self._most_calls:
                self._at = "end"
        else:
            self.num_unreadable += isinstance(call, MalformedToolCall)
            self._add(parts, Said, f"{TOOL_CALL}{block}{closing}")


def cached_tokens(prompt_ids: list[int], message: Generated) -> int:
    """Return the number of prompt tokens that were found in the cache; 0 if the decoder does not tell."""
    return 0 if message.computed_tokens is None else len(prompt_ids) - message.computed_tokens


class News(NamedTuple):
    """An addition to a message: the result of one call of the decoder."""

    parts: list[Part]
    ids: list[int]
    logprobs: list[float]


@dataclass
class Choice:
    """One message of a reply, while it is sampled and after."""

    index: int
    prompt_ids: list[int]
    sampling: Sampling
    session: Session
    text: MessageText
    parts: MessageParts
    said: list[Part] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    """Sampled tokens, the one that ended the message included."""
    logprobs: list[float] = field(default_factory=list)
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None
    """Reason why the message ended; None while it is sampled."""
    cached_tokens: int = 0
    """Prompt tokens that were found in the cache."""
    streamed_characters: int = 0
    """Characters of the tokens whose `text_offset` a stream has sent."""

    @property
    def is_over(self) -> bool:
        """Whether tokens that are sampled from now on are ignored."""
        return self.text.is_stopped or self.parts.is_done

    @property
    def content(self) -> str:
        """The text without thoughts and calls."""
        return "".join(part.text for part in self.said if isinstance(part, Said))

    @property
    def calls(self) -> list[Called]:
        """The tool calls in order."""
        return [part for part in self.said if isinstance(part, Called)]

    def hear(self, ids: list[int], logprobs: list[float]) -> News:
        """Add the next tokens, up to the one with which the message is over."""
        parts: list[Part] = []
        count = 0
        while count < len(ids) and not self.is_over:
            parts += self.parts.push(self.text.push(ids[count]))
            count += 1
        self.said += parts
        self.ids += ids[:count]
        self.logprobs += logprobs[:count]
        return News(parts, ids[:count], logprobs[:count])

    def end(self, message: Generated) -> News:
        """Add the text that was held back, and the reason for which the message ended."""
        parts = self.parts.push(self.text.end())
        is_cut = message.finish == "length" and not self.is_over
        parts += self.parts.end(is_cut=is_cut)
        self.said += parts
        self.finish_reason = "length" if is_cut else "tool_calls" if self.calls else "stop"
        self.cached_tokens = cached_tokens(self.prompt_ids, message)
        return News(parts, [], [])
