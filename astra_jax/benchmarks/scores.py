"""Samples summed up: figures by category and their mean, with intervals, and failures by cause.

With one trial a task the interval is Wilson's. Several trials are not independent, so the bootstrap draws tasks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from astra_jax.benchmarks.results import FAILURES, Figure, Sample, Summary
from astra_jax.evaluate.intervals import clustered_interval, interval_of_mean, wilson_interval


def sum_up(samples: Sequence[Sample], *, requests: Mapping[str, int], seed: int) -> Summary:
    """Sum up the samples of a run; `seed` draws the bootstrap, `requests` has counts of the relay.

    Raises:
        ValueError: there are none.
    """
    tasks = tasks_by_category(samples)
    by_category = {name: _figure(scores, seed=seed) for name, scores in tasks.items()}
    figures = list(by_category.values())
    score = Figure(
        value=sum(figure.value for figure in figures) / len(figures),
        count=len(samples),
        interval=interval_of_mean([figure.value for figure in figures], [figure.interval for figure in figures]),
    )
    failures = Counter(sample.failure for sample in samples)
    turns, steps = sum(sample.turns for sample in samples), sum(sample.steps for sample in samples)
    tokens = sum(sample.completion_tokens for sample in samples)
    return Summary(
        score=score,
        by_category=by_category,
        failures={kind: failures[kind] for kind in FAILURES},
        answers={
            "all": steps,
            "cut": sum(sample.cut_answers for sample in samples),
            "empty": sum(sample.empty_answers for sample in samples),
            **requests,
        },
        effort={
            "turns_per_sample": turns / len(samples),
            "calls_per_sample": sum(sample.tool_calls for sample in samples) / len(samples),
            "steps_per_turn": steps / max(1, turns),
            "tokens_per_step": tokens / max(1, steps),
            "tokens_per_turn": tokens / max(1, turns),
        },
    )


def tasks_by_category(samples: Sequence[Sample]) -> dict[str, dict[str, list[float]]]:
    """Return the scores of every task's trials, by category."""
    found: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        found.setdefault(sample.category, {}).setdefault(sample.id, []).append(sample.score)
    return found


def _figure(tasks: Mapping[str, Sequence[float]], *, seed: int) -> Figure:
    scores = [score for trials in tasks.values() for score in trials]
    if len(scores) == len(tasks) and set(scores) <= {0.0, 1.0}:
        interval = wilson_interval(round(sum(scores)), len(scores))
    else:
        interval = clustered_interval([sum(each) for each in tasks.values()], list(map(len, tasks.values())), seed=seed)
    return Figure(value=sum(scores) / len(scores), count=len(scores), interval=interval)
