"""Counters of the service in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_BUCKETS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts of durations up to fixed bounds.

    >>> histogram = Histogram("h_seconds", "help")
    >>> histogram.observe(0.003); histogram.lines()[4]
    'h_seconds_bucket{le="0.005"} 1'
    """

    def __init__(self, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._counts = [0] * (len(_BUCKETS_SECONDS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._sum += seconds
        for index, bound in enumerate(_BUCKETS_SECONDS):
            if seconds <= bound:
                self._counts[index] += 1
                return
        self._counts[-1] += 1

    def lines(self) -> list[str]:
        """Return the metric as Prometheus reads it: cumulative buckets, sum and count."""
        lines = [f"# HELP {self._name} {self._text}", f"# TYPE {self._name} histogram"]
        total = 0
        for bound, count in zip((*map(str, _BUCKETS_SECONDS), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{self._name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{self._name}_sum {self._sum:.6f}", f"{self._name}_count {total}"]


class Metrics:
    """What the service counts about its calls."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.wall = Histogram("sandbox_call_wall_seconds", "Wall time of calls in their process.")
        self.cpu = Histogram("sandbox_call_cpu_seconds", "CPU time of calls.")
        self.queue = Histogram("sandbox_queue_seconds", "Time calls waited for a slot.")

    def render(self, gauges: Mapping[str, tuple[str, float]], counters: Mapping[str, tuple[str, float]]) -> str:
        """Return the page, with values that are known only now: name to (help, value)."""
        lines = [
            "# HELP sandbox_calls_total Calls that were answered, by result.",
            "# TYPE sandbox_calls_total counter",
        ]
        lines += [f'sandbox_calls_total{{result="{kind}"}} {count}' for kind, count in sorted(self.calls.items())]
        lines += [
            "# HELP sandbox_refusals_total Requests that got no reply, by reason.",
            "# TYPE sandbox_refusals_total counter",
        ]
        lines += [f'sandbox_refusals_total{{reason="{why}"}} {count}' for why, count in sorted(self.refusals.items())]
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, (text, value) in values.items():
                lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value:g}"]
        for histogram in (self.wall, self.cpu, self.queue):
            lines += histogram.lines()
        return "\n".join(lines) + "\n"
