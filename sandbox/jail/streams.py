"""The standard streams of a tool: in memory and bounded, so that no pipe can fill and nothing reaches the server's."""

from __future__ import annotations

import io
import sys
from typing import Any, cast


class OutputLimit(BaseException):
    """The tool printed more than `output_bytes`."""


class Capture(io.RawIOBase):
    """A standard stream that keeps its bytes in memory and refuses more than the budget it shares."""

    def __init__(self, budget: list[int]) -> None:
        self.chunks: list[bytes] = []
        self._budget = budget

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        chunk = bytes(data)
        left = self._budget[0]
        self._budget[0] = left - len(chunk)
        if len(chunk) > left:
            self.chunks.append(chunk[: max(left, 0)])
            raise OutputLimit
        self.chunks.append(chunk)
        return len(chunk)

    def text(self) -> str:
        return b"".join(self.chunks).decode("utf-8", "replace")


class Streams:
    """The standard streams of a tool, in memory, with one budget of bytes for both outputs."""

    def __init__(self) -> None:
        self.stdin = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        self.budget = [0]
        self.out = Capture(self.budget)
        self._text_out = io.TextIOWrapper(
            cast(Any, self.out), encoding="utf-8", errors="backslashreplace", write_through=True
        )
        self._text_err = io.TextIOWrapper(
            cast(Any, Capture(self.budget)), encoding="utf-8", errors="backslashreplace", write_through=True
        )

    def install(self) -> None:
        """Make these the process's streams."""
        sys.stdin, sys.stdout, sys.stderr = self.stdin, self._text_out, self._text_err

    def begin(self, output_bytes: int) -> None:
        """Let a call print at most `output_bytes`."""
        self.budget[0] = output_bytes
