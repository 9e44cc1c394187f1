"""Counters of the service in the Prometheus text format."""

from __future__ import annotations

from collections import defaultdict


class Metrics:
    """Counts of calls and refusals, and sums of the calls' seconds.

    >>> metrics = Metrics()
    >>> metrics.count("ok", wall_seconds=0.5, cpu_seconds=0.25, queue_seconds=0.125)
    >>> print(metrics.render({}), end="")
    sandbox_call_wall_seconds_sum 0.5
    sandbox_call_cpu_seconds_sum 0.25
    sandbox_queue_seconds_sum 0.125
    sandbox_queue_seconds_count 1
    sandbox_calls_total{result="ok"} 1
    """

    def __init__(self) -> None:
        names = ("call_wall_seconds_sum", "call_cpu_seconds_sum", "queue_seconds_sum", "queue_seconds_count")
        self._values = defaultdict[str, float](int, {f"sandbox_{name}": 0 for name in names})

    def count(self, result: str, wall_seconds: float, cpu_seconds: float, queue_seconds: float) -> None:
        """Count one call."""
        self._values["sandbox_call_wall_seconds_sum"] += wall_seconds
        self._values["sandbox_call_cpu_seconds_sum"] += cpu_seconds
        self._values["sandbox_queue_seconds_sum"] += queue_seconds
        self._values["sandbox_queue_seconds_count"] += 1
        self._values[f'sandbox_calls_total{{result="{result}"}}'] += 1

    def count_refusal(self, code: str) -> None:
        """Count one refused request, by the code of the error."""
        self._values[f'sandbox_refusals_total{{reason="{code}"}}'] += 1

    def render(self, gauges: dict[str, float]) -> str:
        """Return the page, with values of this moment."""
        return "".join(f"{name} {value}\n" for name, value in (self._values | gauges).items())
