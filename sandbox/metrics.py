"""Counters of the service in the Prometheus text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_SECONDS = {
    "sandbox_call_wall_seconds": "Wall time of calls in their process.",
    "sandbox_call_cpu_seconds": "CPU time of calls.",
    "sandbox_queue_seconds": "Time that calls waited for a slot.",
}


class Metrics:
    """Counts of calls and refusals, and sums of the calls' seconds.

    >>> metrics = Metrics()
    >>> metrics.count("ok", wall_seconds=0.5, cpu_seconds=0.25, queue_seconds=0.125)
    >>> print("\\n".join(line for line in metrics.render({}).splitlines() if line[0] != "#"))
    sandbox_calls_total{result="ok"} 1
    sandbox_call_wall_seconds_sum 0.5
    sandbox_call_wall_seconds_count 1
    sandbox_call_cpu_seconds_sum 0.25
    sandbox_call_cpu_seconds_count 1
    sandbox_queue_seconds_sum 0.125
    sandbox_queue_seconds_count 1
    """

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Number of calls, by result."""
        self.refusals: Counter[str] = Counter()
        """Number of refused requests, by the code of the error."""
        self._seconds = dict.fromkeys(_SECONDS, 0.0)

    def count(self, result: str, wall_seconds: float, cpu_seconds: float, queue_seconds: float) -> None:
        """Count one call."""
        self.calls[result] += 1
        for name, seconds in zip(_SECONDS, (wall_seconds, cpu_seconds, queue_seconds), strict=True):
            self._seconds[name] += seconds

    def render(self, gauges: Mapping[str, tuple[str, float]]) -> str:
        """Return the page, with values of this moment: name to (help, value)."""
        lines = ["# TYPE sandbox_calls_total counter"]
        lines += [f'sandbox_calls_total{{result="{kind}"}} {count}' for kind, count in sorted(self.calls.items())]
        lines.append("# TYPE sandbox_refusals_total counter")
        lines += [f'sandbox_refusals_total{{reason="{why}"}} {count}' for why, count in sorted(self.refusals.items())]
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        for name, text in _SECONDS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} summary", f"{name}_sum {self._seconds[name]:.6g}"]
            lines.append(f"{name}_count {self.calls.total()}")
        return "\n".join(lines) + "\n"
