"""BFCL and AIME by a second harness, evalscope, whose results stand beside the first one's.

Of BFCL the loop over cases, the settings and the files are its own; data, conversation and verdict are those of BFCL's
package. Of AIME the prompt, and how answers are read and compared, are its own; the user brings the problems. Both are
run whole: what a command that was stopped has left is run again.

Decided: docs/decisions/benchmarks.md, “A second harness answers the same cases anew”.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from astra_jax.benchmarks.aime import AIMEConfig, Problem, read_problems
from astra_jax.benchmarks.bfcl import BFCLConfig, cases_of
from astra_jax.benchmarks.bfcl_files import category_of, tool_names
from astra_jax.benchmarks.endpoint import answering, named_model
from astra_jax.benchmarks.evalscope_files import read_reviews, sample_of
from astra_jax.benchmarks.harness_process import AGENT_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import EVALSCOPE
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkResults,
    RunDocument,
    Sample,
    begin,
    finish,
    read_results,
    require_benchmark,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.engine.http import Endpoint
from synthesis.destination import whole_file
from synthesis.fingerprint import digest_of_files, flattened

FOLDER: Final = "cross_check"
"""Of the second harness's run, in that of the first."""
_MODEL: Final = "model"
_Reader = Callable[[Path, Mapping[tuple[int, int], int]], Iterable[Sample]]
"""Reads the samples of a task from what evalscope has written, given which answers were cut off."""


@dataclass(frozen=True)
class _Task:
    """One data set of evalscope's, and what is asked of it."""

    dataset: str
    subsets: tuple[str, ...]
    arguments: dict[str, Any]
    limit: int
    """Cases of each subset, the first ones."""
    repeats: int = 1


@dataclass(frozen=True)
class _Asked:
    """How every request is sampled, whatever evalscope writes into it."""

    sampling: dict[str, float | int | None]
    at_once: int
    tools_of_bfcl: bool


def bfcl_by_evalscope(config: BFCLConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run the cases of a run of BFCL by evalscope, in a folder of that run; return the results.

    Raises:
        HarnessMissing, ConfigError, DestinationRefused, BenchmarkFailed, DecoderError: as `evaluate_bfcl`.
    """
    environment = managed_environment(EVALSCOPE)
    cases = cases_of(config, limit)
    subsets = tuple(cases)
    task = _Task("bfcl_v4", subsets, {"subset_list": list(subsets)}, limit=max(map(len, cases.values())))
    sampling = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    asked = [case for ids in cases.values() for case in ids]
    run = _run_document("bfcl", environment, config, url, sampling, asked, trials=1)

    def samples(work: Path, cut: Mapping[tuple[int, int], int]) -> Iterable[Sample]:
        for subset in subsets:
            for review in read_reviews(work, task.dataset, subset):
                case = str((review.sample_score.sample_metadata or {}).get("id"))
                yield sample_of(review, id_=case, category=category_of(case), turns="users", cut=cut)

    how = _Asked(sampling, config.requests_at_once, tools_of_bfcl=True)
    return _evaluated(config, environment, run, url, how, {"bfcl": task}, {"bfcl": samples}, asked)


def aime_by_evalscope(config: AIMEConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run the problems of a run of AIME by evalscope, in a folder of that run; return the results.

    Raises:
        HarnessMissing, ConfigError, DestinationRefused, BenchmarkFailed, DecoderError: as `evaluate_aime`.
    """
    environment = managed_environment(EVALSCOPE)
    problems = {year: read_problems(path)[:limit] for year, path in sorted(config.problems.items())}
    asked = [f"{year}/{each.id}" for year, each_s in problems.items() for each in each_s]
    sampling = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    run = _run_document("aime", environment, config, url, sampling, asked, trials=config.samples)
    begun = {f"problems of {year}": digest_of_files([path]) for year, path in sorted(config.problems.items())}
    run = run.model_copy(update={"made_with": {**run.made_with, **begun}})
    tasks: dict[str, _Task] = {}
    readers: dict[str, _Reader] = {}
    for year, of_year in problems.items():
        data = (config.out / FOLDER / "raw" / f"problems_{year}").resolve()
        arguments = {"dataset_id": str(data)}
        tasks[year] = _Task(f"aime{year[2:]}", ("default",), arguments, limit=len(of_year), repeats=config.samples)

        def samples(
            work: Path, cut: Mapping[tuple[int, int], int], year: str = year, of_year: Sequence[Problem] = of_year
        ) -> Iterable[Sample]:
            for review in read_reviews(work, tasks[year].dataset, "default"):
                id_ = f"{year}/{of_year[review.sample_score.group_id].id}"
                yield sample_of(review, id_=id_, category=year, turns="one", cut=cut)

        readers[year] = samples
    how = _Asked(sampling, config.requests_at_once, tools_of_bfcl=False)
    written = {
        f"problems_{year}/default_test.jsonl": [
            {"problem": each.problem, "answer": str(each.answer)} for each in of_year
        ]
        for year, of_year in problems.items()
    }
    return _evaluated(config, environment, run, url, how, tasks, readers, asked, written)


def _run_document(
    benchmark: Any,
    environment: ManagedEnvironment,
    config: BFCLConfig | AIMEConfig,
    url: str | None,
    sampling: dict[str, float | int | None],
    asked: Sequence[str],
    *,
    trials: int,
) -> RunDocument:
    model = named_model(config.policy, url)
    leave_out = {"policy", "out", "problems", "requests_at_once", "serving.rows"}
    return RunDocument(
        benchmark=benchmark,
        harness=environment.document,
        model=model,
        sampling=sampling,
        samples=len(asked),
        of_samples=None,
        trials=trials,
        seed=config.seed,
        made_with={
            **flattened(config.model_dump(mode="json"), leave_out=leave_out),
            **flattened({"harness": environment.document.model_dump()}),
            **flattened({"model": model.digest or model.name, "samples": len(asked)}),
        },
    )


def _evaluated(
    config: BFCLConfig | AIMEConfig,
    environment: ManagedEnvironment,
    run: RunDocument,
    url: str | None,
    how: _Asked,
    tasks: Mapping[str, _Task],
    readers: Mapping[str, _Reader],
    asked: Sequence[str],
    written: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
) -> BenchmarkResults:
    out, serving = config.out / FOLDER, config.serving
    if require_benchmark(out, run.made_with):
        return read_results(out)
    raw = (out / "raw").resolve()
    shutil.rmtree(raw, ignore_errors=True)  # of a command that was stopped
    begin(out, run)
    for name, lines in (written or {}).items():
        (raw / name).parent.mkdir()
        with whole_file(raw / name) as file:
            file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    started = time.monotonic()
    with answering(config.policy, url, serving, raw / "server.log") as endpoint:
        asyncio.run(_run(environment, endpoint, raw, how, tasks))
        most_tokens = endpoint.most_tokens
    requests = whole_lines(raw / "requests.jsonl")
    cut = Counter(
        (line["prompt_tokens"], line["completion_tokens"]) for line in requests if line.get("finish") == "length"
    )
    found = {(each.id, each.trial): each for name in tasks for each in readers[name](raw / name, cut)}
    expected = [(id_, trial) for id_ in asked for trial in range(run.trials)]
    if set(found) != set(expected):
        missing = sorted(set(expected) - set(found)) or sorted(set(found) - set(expected))
        raise BenchmarkFailed(
            f"expected {len(expected)} samples of evalscope in {raw}, found {len(found)}, which differ at "
            f"{missing[0][0]}; the same command runs it again"
        )
    samples = [found[key] for key in expected]
    counted = {
        "failed_requests": sum(line["status"] != 200 for line in requests),
        "renamed_calls": sum(line.get("renamed_calls", 0) for line in requests),
    }
    finish(
        out,
        run.ended(time.monotonic() - started, most_tokens),
        samples,
        sum_up(samples, requests=counted, seed=run.seed),
    )
    return read_results(out)


async def _run(
    environment: ManagedEnvironment, endpoint: Endpoint, raw: Path, how: _Asked, tasks: Mapping[str, _Task]
) -> None:
    names = tool_names(environment.packages()) if how.tools_of_bfcl else None
    relay = Relay(endpoint, settings={}, replaced=how.sampling, tool_names=names, log=raw / "requests.jsonl")
    async with relay:
        for name, task in tasks.items():
            await run_harness(
                _command(environment, task, raw / name, how.at_once),
                folder=raw,
                log=raw / "harness.log",
                variables={
                    "OPENAI_API_KEY": "none",
                    "BFCL_PROJECT_ROOT": str(raw),  # its package makes folders where it is imported
                    "EVALSCOPE_CACHE": str(raw / "home" / "evalscope"),
                    "MODELSCOPE_CACHE": str(raw / "home" / "modelscope"),
                    "MPLCONFIGDIR": str(raw / "home"),
                },
                readable=[environment.folder],
                relays={AGENT_PORT: relay},
            )


def _command(environment: ManagedEnvironment, task: _Task, work: Path, at_once: int) -> list[str]:
    command = [str(environment.program("evalscope")), "eval", "--model", _MODEL, "--eval-type", "openai_api"]
    command += ["--api-url", relay_url(AGENT_PORT), "--api-key", "none", "--datasets", task.dataset]
    command += ["--dataset-args", json.dumps({task.dataset: task.arguments})]
    command += ["--limit", str(task.limit), "--repeats", str(task.repeats), "--eval-batch-size", str(at_once)]
    return [*command, "--work-dir", str(work), "--no-timestamp"]
