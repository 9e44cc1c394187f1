r"""The messages that are sampled: token ids become text, and text becomes thoughts, content and tool calls.

    <think>\n…\n</think>\n\n                                        reasoning_content
    Hello.\n                                                        content
    <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>       tool_calls, when the message ends

The result does not depend on the pieces in which tokens or text arrive, so a stream adds up to the whole reply. Calls
are read as episodes read them; a block that is no call stays in the content, tags included.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, Literal

from astra_jax.chat.format import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL
from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.chat.tool_calls import ParsedToolCall, cut_at_calls

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS_OF_A_CHARACTER: Final = 4  # a character has at most four bytes


def _certain(text: str, tags: Sequence[str]) -> int:
    """Return the number of characters of a text before the longest end that may be the beginning of a tag.

    >>> _certain("Well <tool", ["<tool_call>"]), _certain("Well", ["<tool_call>"])
    (5, 4)
    """
    longest = max((len(tag) for tag in tags), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(tag.startswith(text[start:]) for tag in tags):
            return start
    return len(text)


class MessageText:
    """Turns token ids into text: whole characters, up to the first stop string.

    `silent_ids` are the tokens that end a message and are not shown.
    """

    def __init__(self, tokenizer: Tokenizer, *, silent_ids: Collection[int], stops: Sequence[str] = ()):
        self._tokenizer, self._silent_ids, self._stops = tokenizer, frozenset(silent_ids), [*filter(None, stops)]
        self._held_ids: list[int] = []
        """Tokens of a character whose last bytes have not come."""
        self._held = ""
        """Text that may be the beginning of a stop string."""
        self.is_stopped = False
        """Whether a stop string has come, so that later tokens are ignored."""

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
        rest = self._until_stop_string(self._tokenizer.decode(self._held_ids))
        return rest if self.is_stopped else rest + self._held

    def _until_stop_string(self, text: str) -> str:
        text = self._held + text
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            self.is_stopped = True
            return text[:found]
        certain = _certain(text, self._stops)
        self._held = text[certain:]
        return text[:certain]


class MessageParts:
    """Divides the text of one message: thoughts and content as soon as they are certain, calls at its end.

    A message begins in its thoughts if the prompt ends with `<think>`. Without `reads_calls` its calls are content.
    """

    def __init__(self, *, begins_in_thoughts: bool = False, reads_calls: bool = True):
        self._at: Literal["beginning", "thoughts", "content", "calls"] = (
            "thoughts" if begins_in_thoughts else "beginning"
        )
        self._reads_calls = reads_calls
        self._rest = ""
        """Text that is not divided yet."""
        self._blanks: list[str] = []
        """Blanks before the first word of the message."""
        self._called: list[str] = []
        """Text from the first tag of a call on."""
        self._num_held_lines = 0
        """Line ends that belong to the current part only if more text of it follows."""
        self._has_begun = False
        """Whether the current part has any text; line ends before that are dropped."""

    def push(self, text: str) -> dict[str, str]:
        """Add the next text; return the pieces of `reasoning_content` and `content` that no later text can change."""
        self._rest += text
        said: dict[str, str] = {}
        if self._at == "beginning":
            begun = self._rest.lstrip()
            self._blanks.append(self._rest.removesuffix(begun))
            self._rest = begun
            if begun != THINK and THINK.startswith(begun):
                return {}
            self._at = "thoughts" if begun.startswith(THINK) else "content"
            self._rest = begun.removeprefix(THINK) if self._at == "thoughts" else "".join([*self._blanks, begun])
            self._blanks.clear()
        if self._at == "thoughts":
            said["reasoning_content"] = self._until(END_THINK)
            if self._at == "content":
                self._num_held_lines, self._has_begun = 0, False
        if self._at == "content":
            said["content"] = self._until(TOOL_CALL if self._reads_calls else None)
        if self._at == "calls":
            self._called.append(self._rest)
            self._rest = ""
        return {part: piece for part, piece in said.items() if piece}

    def end(self, text: str = "", *, is_cut: bool = False) -> tuple[dict[str, str], list[ParsedToolCall]]:
        """Add the last text; return the pieces that were not told yet, and the calls of the message.

        A call without an end tag counts, unless the message `is_cut` at its length.
        """
        said = self.push(text)
        rest, calls = "".join([*self._blanks, self._rest]), []
        for piece, call in cut_at_calls("".join(self._called)):
            if isinstance(call, ParsedToolCall) and (piece.endswith(END_TOOL_CALL) or not is_cut):
                calls.append(call)
            else:
                rest += piece
        if rest := self._trimmed(rest):
            part = "reasoning_content" if self._at == "thoughts" else "content"
            said[part] = said.get(part, "") + rest
        return said, calls

    def _until(self, tag: str | None) -> str:
        """Return the text that surely stands before a tag; behind the tag the next part begins."""
        before, found, self._rest = self._rest.partition(tag) if tag else (self._rest, "", "")
        if found and self._at == "content":
            self._at, self._called = "calls", [TOOL_CALL]
        elif found:
            self._at = "content"
        elif tag:
            certain = _certain(before, [tag])
            before, self._rest = before[:certain], before[certain:]
        return self._trimmed(before)

    def _trimmed(self, text: str) -> str:
        """Return a text without line ends at the beginning of its part; those at its end are held back."""
        text = text if self._has_begun else text.lstrip("\n")
        said = text.rstrip("\n")
        lines, self._num_held_lines = self._num_held_lines, len(text) - len(said)
        if not said:
            self._num_held_lines += lines
            return ""
        self._has_begun = True
        return "\n" * lines + said
