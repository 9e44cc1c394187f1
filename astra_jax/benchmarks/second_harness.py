"""A second harness's run of a benchmark, in the folder of the first one's: whole, or begun again.

It asks the endpoint anew, and its results have the form of every benchmark, so that `cross_check` can join the two.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from astra_jax.benchmarks.endpoint import ServingConfig, answering
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkResults,
    RunDocument,
    Sample,
    Summary,
    begin,
    finish,
    read_results,
    require_benchmark,
)
from astra_jax.evaluate.endpoint import Endpoint

FOLDER: Final = "cross_check"
"""Of the second harness's run, in that of the first."""


def second_run(
    run: RunDocument,
    cases: Sequence[str],
    *,
    first: Path,
    policy: Path | None,
    url: str | None,
    serving: ServingConfig,
    ask: Callable[[Endpoint, Path], None],
    read: Callable[[Path], Iterable[Sample]],
    sum_up: Callable[[Path, Sequence[Sample]], Summary],
) -> BenchmarkResults:
    """Run `cases`, by their ids, in every trial of `run`, and return the results; a finished run is only read.

    `first` is the folder of the first harness's run. `ask` drives the harness against an endpoint, `read` reads the
    samples that it has left and `sum_up` sums them up, each in the folder of what the harness writes.

    Raises:
        DestinationRefused: the folder holds a run that was begun with something else.
        BenchmarkFailed: the samples are not those of the cases and trials.
        DecoderError: nobody answers.
    """
    out = first / FOLDER
    if require_benchmark(out, run.made_with):
        return read_results(out)
    raw = (out / "raw").resolve()
    shutil.rmtree(raw, ignore_errors=True)  # of a command that was stopped
    begin(out, run)
    started = time.monotonic()
    with answering(policy, url, serving, raw / "server.log") as endpoint:
        ask(endpoint, raw)
    samples = _in_order(list(read(raw)), cases, run, raw)
    finish(out, run.ended(time.monotonic() - started, endpoint.most_tokens), samples, sum_up(raw, samples))
    return read_results(out)


def _in_order(found: Sequence[Sample], cases: Sequence[str], run: RunDocument, raw: Path) -> list[Sample]:
    """Return the samples, by cases and trials.

    Raises:
        BenchmarkFailed: one is missing, there twice, or of none of the cases.
    """
    expected = [(case, trial) for case in cases for trial in range(run.trials)]
    each, keys = {(sample.id, sample.trial): sample for sample in found}, Counter(expected)
    keys.subtract((sample.id, sample.trial) for sample in found)
    if differing := sorted(key for key, count in keys.items() if count):
        raise BenchmarkFailed(
            f"expected {len(expected)} samples of {run.harness.package} in {raw}, found {len(found)}, which differ at "
            f"{differing[0][0]} trial {differing[0][1]}; the same command runs it again"
        )
    return [each[key] for key in expected]
