"""What a server has done, in Prometheus' text form: `GET /metrics`."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator
from typing import Final

_FIRST_TOKEN_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP: Final = {
    "prompt_tokens": "Tokens of the prompts.",
    "cached_prompt_tokens": "Of these, found in the pages and not computed.",
    "completion_tokens": "Sampled tokens that a reply is made of.",
    "empty_replies": "Messages of chat with neither text nor call.",
    "unreadable_calls": "Messages of chat that hold a call which could not be read.",
    "client_disconnects": "Requests whose client left before the reply was whole.",
    "reloads": "Times that other weights were taken.",
}


class ServerMetrics:
    """Counts; all of the event loop's thread."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        """By the names of `_HELP`."""
        self._replies: Counter[tuple[str, int]] = Counter()
        self._first_tokens = [0] * (len(_FIRST_TOKEN_SECONDS) + 1)
        self._first_token_seconds = 0.0

    def count_reply(self, path: str, status: int) -> None:
        """Count one request by its path and the status of its reply."""
        self._replies[path, status] += 1

    def count_first_token(self, seconds: float) -> None:
        """Count how long a request waited for its first token."""
        self._first_tokens[bisect.bisect_left(_FIRST_TOKEN_SECONDS, seconds)] += 1
        self._first_token_seconds += seconds

    def text(self, gauges: dict[str, float]) -> str:
        """Return everything, and what is so just now, as Prometheus reads it."""
        return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: dict[str, float]) -> Iterator[str]:
        yield "# HELP astra_serve_requests_total Requests that have a reply, by path and status."
        yield "# TYPE astra_serve_requests_total counter"
        for (path, status), count in sorted(self._replies.items()):
            yield f'astra_serve_requests_total{{path="{path}",status="{status}"}} {count}'
        for name, about in _HELP.items():
            yield f"# HELP astra_serve_{name}_total {about}"
            yield f"# TYPE astra_serve_{name}_total counter"
            yield f"astra_serve_{name}_total {self.totals[name]}"
        yield "# HELP astra_serve_first_token_seconds From the request to its first token."
        yield "# TYPE astra_serve_first_token_seconds histogram"
        upto = 0
        for bound, count in zip((*map(str, _FIRST_TOKEN_SECONDS), "+Inf"), self._first_tokens, strict=True):
            upto += count
            yield f'astra_serve_first_token_seconds_bucket{{le="{bound}"}} {upto}'
        yield f"astra_serve_first_token_seconds_sum {self._first_token_seconds:.6f}"
        yield f"astra_serve_first_token_seconds_count {upto}"
        for name, value in gauges.items():
            yield f"# TYPE astra_serve_{name} gauge"
            yield f"astra_serve_{name} {value:g}"
