"""The text of a message while its tokens come: whole characters only, and nothing from a stop string on."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from astra_jax.chat.tokenizer import Tokenizer

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_MOST_TOKENS_OF_A_CHARACTER: Final = 4  # a character is at most four bytes


class MessageText:
    """Turns token ids into text, token by token, so that it does not matter how many come at once."""

    def __init__(self, tokenizer: Tokenizer, *, silent_ids: Collection[int], stops: Sequence[str] = ()):
        """`silent_ids` end a message and are no text of it."""
        self._tokenizer, self._silent_ids, self._stops = tokenizer, frozenset(silent_ids), tuple(stops)
        self._held_ids: list[int] = []
        """Of a character whose bytes are not all there."""
        self._held = ""
        """What may be the beginning of a stop string."""
        self.num_tokens = 0
        """Up to the one that ended it."""
        self.is_stopped = False
        """Whether a stop string has come."""

    def push(self, ids: Iterable[int]) -> str:
        """Take in the next tokens; return the text that is certain now."""
        certain = ""
        for id_ in ids:
            if self.is_stopped:
                break
            self.num_tokens += 1
            if id_ not in self._silent_ids:
                certain += self._from_stop_strings(self._decoded(id_))
        return certain

    def end(self) -> str:
        """Return the text that was held back, when no token follows."""
        rest = self._from_stop_strings(self._tokenizer.decode(self._held_ids)) if self._held_ids else ""
        self._held_ids = []
        if not self.is_stopped:
            rest, self._held = rest + self._held, ""
        return rest

    def _decoded(self, id_: int) -> str:
        self._held_ids.append(id_)
        text = self._tokenizer.decode(self._held_ids)
        if text.endswith(_REPLACEMENT) and len(self._held_ids) < _MOST_TOKENS_OF_A_CHARACTER:
            return ""
        self._held_ids = []
        return text

    def _from_stop_strings(self, text: str) -> str:
        if not self._stops:
            return text
        text = self._held + text
        found = min((place for stop in self._stops if (place := text.find(stop)) >= 0), default=-1)
        if found >= 0:
            self._held, self.is_stopped = "", True
            return text[:found]
        count = max(overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - count :]
        return text[: len(text) - count]


def overlap(text: str, tag: str) -> int:
    """Return how many last characters of a text are the beginning of a tag, but not all of it.

    >>> overlap("Well <tool", "<tool_call>"), overlap("Well", "<tool_call>")
    (5, 0)
    """
    return next((count for count in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:count])), 0)
