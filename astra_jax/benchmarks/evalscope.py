"""BFCL and AIME by a second harness, evalscope, whose results stand beside the first one's.

Of BFCL the loop over cases, the settings and the files are its own; data, conversation and verdict are those of BFCL's
package. Of AIME the prompt, and how answers are read and compared, are its own; the user brings the problems. Both are
run whole: what a command that was stopped has left is run again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from astra_jax.benchmarks import aime, bfcl
from astra_jax.benchmarks.aime import AIMEConfig, Problem, read_problems
from astra_jax.benchmarks.bfcl import BFCLConfig, cases_of
from astra_jax.benchmarks.bfcl_files import category_of, tool_names
from astra_jax.benchmarks.endpoint import named_model
from astra_jax.benchmarks.evalscope_files import read_reviews, sample_of
from astra_jax.benchmarks.harness_process import AGENT_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import EVALSCOPE
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import BenchmarkResults, RunDocument, Sample, Summary, whole_lines
from astra_jax.benchmarks.scores import sum_up
from astra_jax.benchmarks.second_harness import FOLDER, second_run
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.destination import whole_file
from synthesis.run.fingerprint import flattened

_MODEL: Final = "model"
_Reader = Callable[[Path, Collection[tuple[int, int]]], Iterable[Sample]]
"""Reads the samples of a task from what evalscope has written, given which answers were cut off."""


@dataclass(frozen=True)
class _Task:
    """One data set of evalscope's, and what is asked of it."""

    dataset: str
    arguments: dict[str, Any]
    limit: int
    """Cases of each subset, the first ones."""
    repeats: int = 1


def bfcl_by_evalscope(config: BFCLConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run the cases of a run of BFCL by evalscope, in a folder of that run; return the results.

    Raises:
        HarnessMissing, ConfigError, DestinationRefused, BenchmarkFailed, DecoderError: as `evaluate_bfcl`.
    """
    environment = managed_environment(EVALSCOPE)
    cases = cases_of(config, limit)
    run = bfcl.run_document(config, environment, named_model(config.policy, url), cases)
    subsets = tuple(cases)
    task = _Task("bfcl_v4", {"subset_list": list(subsets)}, limit=max(map(len, cases.values())))

    def samples(work: Path, cut: Collection[tuple[int, int]]) -> Iterable[Sample]:
        for subset in subsets:
            for review in read_reviews(work, task.dataset, subset):
                case = str((review.sample_score.sample_metadata or {}).get("id"))
                yield sample_of(review, id_=case, category=category_of(case), turns="users", cut=cut)

    asked = [case for ids in cases.values() for case in ids]
    tools = tool_names(environment.packages())
    return _evaluated(config, environment, run, url, tools, {"bfcl": task}, {"bfcl": samples}, asked)


def aime_by_evalscope(config: AIMEConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run the problems of a run of AIME by evalscope, in a folder of that run; return the results.

    Raises:
        HarnessMissing, ConfigError, DestinationRefused, BenchmarkFailed, DecoderError: as `evaluate_aime`.
    """
    environment = managed_environment(EVALSCOPE)
    every = {year: read_problems(path) for year, path in sorted(config.problems.items())}
    problems = {year: of_year[:limit] for year, of_year in every.items()}
    asked = [f"{year}/{problem.id}" for year, of_year in problems.items() for problem in of_year]
    run = aime.run_document(
        config,
        environment.document,
        flattened({"harness": environment.document.model_dump()}),
        named_model(config.policy, url),
        len(asked),
        sum(map(len, every.values())),
    )
    tasks: dict[str, _Task] = {}
    readers: dict[str, _Reader] = {}
    for year, of_year in problems.items():
        data = (config.out / FOLDER / "raw" / f"problems_{year}").resolve()
        tasks[year] = _Task(f"aime{year[2:]}", {"dataset_id": str(data)}, limit=len(of_year), repeats=config.samples)

        def samples(
            work: Path, cut: Collection[tuple[int, int]], year: str = year, of_year: Sequence[Problem] = of_year
        ) -> Iterable[Sample]:
            for review in read_reviews(work, tasks[year].dataset, "default"):
                number = review.sample_score.group_id
                id_ = of_year[number].id if 0 <= number < len(of_year) else f"problem number {number}"
                yield sample_of(review, id_=f"{year}/{id_}", category=year, turns="one", cut=cut)

        readers[year] = samples
    written = {
        f"problems_{year}/default_test.jsonl": [
            {"problem": each.problem, "answer": str(each.answer)} for each in of_year
        ]
        for year, of_year in problems.items()
    }
    return _evaluated(config, environment, run, url, None, tasks, readers, asked, written)


def _evaluated(
    config: BFCLConfig | AIMEConfig,
    environment: ManagedEnvironment,
    run: RunDocument,
    url: str | None,
    tools: Collection[str] | None,
    tasks: Mapping[str, _Task],
    readers: Mapping[str, _Reader],
    asked: Sequence[str],
    written: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
) -> BenchmarkResults:
    def ask(endpoint: Endpoint, raw: Path) -> None:
        for name, lines in (written or {}).items():
            (raw / name).parent.mkdir()
            with whole_file(raw / name) as file:
                file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        relay = Relay(endpoint, settings={}, replaced=run.sampling, tool_names=tools, log=raw / "requests.jsonl")
        asyncio.run(_run(environment, relay, raw, tasks, config.requests_at_once))

    def read(raw: Path) -> Iterable[Sample]:
        cut = {
            (line["prompt_tokens"], line["completion_tokens"])
            for line in whole_lines(raw / "requests.jsonl")
            if line.get("finish") == "length"
        }
        return (sample for name in tasks for sample in readers[name](raw / name, cut))

    def summed_up(raw: Path, samples: Sequence[Sample]) -> Summary:
        requests = whole_lines(raw / "requests.jsonl")
        counted = {
            "failed_requests": sum(line["status"] != 200 for line in requests),
            "renamed_calls": sum(line.get("renamed_calls", 0) for line in requests),
        }
        return sum_up(samples, requests=counted, seed=run.seed)

    return second_run(
        run,
        asked,
        first=config.out,
        policy=config.policy,
        url=url,
        serving=config.serving,
        ask=ask,
        read=read,
        sum_up=summed_up,
    )


async def _run(
    environment: ManagedEnvironment, relay: Relay, raw: Path, tasks: Mapping[str, _Task], at_once: int
) -> None:
    async with relay:
        for name, task in tasks.items():
            await run_harness(
                _command(environment, task, raw / name, at_once),
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
