"""BFCL's multi-turn categories, by the official package: its own generation and its own evaluation.

It is asked to test the one entry of its table of models that speaks OpenAI's chat with tools; the relay asks the
endpoint's model instead.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from astra_jax.benchmarks.bfcl_files import (
    CASES_PER_CATEGORY,
    CATEGORIES,
    Category,
    case_ids,
    drop_lost_results,
    read_samples,
    tool_names,
)
from astra_jax.benchmarks.endpoint import ServingConfig, answering, named_model
from astra_jax.benchmarks.harness_process import AGENT_PORT, relay_url, run_harness
from astra_jax.benchmarks.harnesses import BFCL
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.relay import Relay
from astra_jax.benchmarks.results import (
    BenchmarkResults,
    ModelDocument,
    RunDocument,
    Sample,
    Summary,
    begin,
    finish,
    read_results,
    require_benchmark,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.config import ConfigError
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.destination import whole_file
from synthesis.run.fingerprint import Fingerprint, flattened

_MODEL: Final = "openbmb/MiniCPM-SALA-FC"
"""The entry of BFCL's table that its handler of OpenAI's chats with tools belongs to."""


class BFCLConfig(BaseModel):
    """Config of `astra evaluate bfcl`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: Path | None = None
    """Policy folder or HuggingFace folder, for which a server is started; or name a server by `--url`."""
    out: Path
    """Folder of the results."""
    categories: tuple[Category, ...] = Field(default=CATEGORIES, min_length=1)
    """Multi-turn categories to run."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature of the policy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability that tokens are drawn from; without it the server's default."""
    top_k: int | None = Field(default=None, ge=-1)
    """Number of likeliest ids that a token is drawn from; without it the server's default."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of the longest answer; without it as many as fit."""
    requests_at_once: int = Field(default=8, ge=1)
    """Requests under way at once."""
    seed: int = 0
    """Seed of the bootstrap."""
    serving: ServingConfig = ServingConfig()
    """Server of the policy."""


def evaluate_bfcl(config: BFCLConfig, *, url: str | None, limit: int | None) -> BenchmarkResults:
    """Run BFCL, or go on with a run, and return its results; one that is finished is only read.

    `limit` is how many cases are run in all, the same number of each category.

    Raises:
        HarnessMissing: its environment is not there.
        ConfigError: `limit` does not share out over the categories.
        DestinationRefused: `out` is something else, or a run begun with something else.
        BenchmarkFailed: the harness does not end well, or leaves what cannot be read.
        DecoderError: nobody answers.
    """
    environment = managed_environment(BFCL)
    cases = cases_of(config, limit)
    run = run_document(config, environment, named_model(config.policy, url), cases)
    if require_benchmark(config.out, run.made_with):
        return read_results(config.out)
    begin(config.out, run)
    started = time.monotonic()
    with answering(config.policy, url, config.serving, config.out / "raw" / "server.log") as endpoint:
        samples, summary = asyncio.run(_run(config, environment, endpoint, cases))
    finish(config.out, run.ended(time.monotonic() - started, endpoint.most_tokens), samples, summary)
    return read_results(config.out)


def cases_of(config: BFCLConfig, limit: int | None) -> dict[str, list[str]]:
    """Return the ids of each category, as BFCL's file of ids has them.

    Raises:
        ConfigError: `limit` does not share out over the categories.
    """
    of_each = CASES_PER_CATEGORY
    if limit is not None:
        of_each, rest = divmod(limit, len(config.categories))
        if rest or not 0 < of_each <= CASES_PER_CATEGORY:
            raise ConfigError(
                f"expected --limit to be a multiple of the {len(config.categories)} categories, up to "
                f"{CASES_PER_CATEGORY} cases of each, found {limit}"
            )
    return {f"multi_turn_{category}": case_ids(category, of_each) for category in config.categories}


def run_document(
    config: BFCLConfig, environment: ManagedEnvironment, model: ModelDocument, cases: dict[str, list[str]]
) -> RunDocument:
    """Return what a run by the harness of an environment is begun with."""
    sampling = {name: getattr(config, name) for name in ("temperature", "top_p", "top_k", "max_tokens")}
    asked = sum(map(len, cases.values()))
    made_with: Fingerprint = {
        **flattened(config.model_dump(mode="json"), leave_out={"policy", "out", "requests_at_once", "serving.rows"}),
        **flattened({"harness": environment.document.model_dump()}),
        # A server of a checkpoint is named by its path, which may change.
        **flattened({"model": model.digest or model.name, "samples": asked}),
    }
    return RunDocument(
        benchmark="bfcl",
        harness=environment.document,
        model=model,
        sampling=sampling,
        samples=asked,
        of_samples=CASES_PER_CATEGORY * len(CATEGORIES),
        trials=1,
        seed=config.seed,
        made_with=made_with,
    )


async def _run(
    config: BFCLConfig, environment: ManagedEnvironment, endpoint: Endpoint, cases: dict[str, list[str]]
) -> tuple[list[Sample], Summary]:
    raw = (config.out / "raw").resolve()
    requests, log = raw / "requests.jsonl", raw / "harness.log"
    with whole_file(raw / "test_case_ids_to_generate.json") as file:
        file.write_text(json.dumps(cases), encoding="utf-8")
    drop_lost_results(raw / "result")
    program, places = str(environment.program("bfcl")), ["--result-dir", "result"]
    settings = {"top_p": config.top_p, "top_k": config.top_k, "max_tokens": config.max_tokens}
    names = tool_names(environment.packages())
    async with Relay(endpoint, settings=settings, tool_names=names, log=requests) as relay:
        variables = {"OPENAI_BASE_URL": relay_url(AGENT_PORT), "OPENAI_API_KEY": "none", "BFCL_PROJECT_ROOT": str(raw)}
        generate = [program, "generate", "--model", _MODEL, "--run-ids", *places]
        generate += ["--temperature", str(config.temperature), "--num-threads", str(config.requests_at_once)]
        readable = [environment.folder]
        relays = {AGENT_PORT: relay}
        await run_harness(generate, folder=raw, log=log, variables=variables, readable=readable, relays=relays)
        evaluate = [program, "evaluate", "--model", _MODEL, "--partial-eval", *places, "--score-dir", "score"]
        evaluate += ["--test-category", ",".join(cases)]
        await run_harness(evaluate, folder=raw, log=log, variables=variables, readable=readable)
    lines = whole_lines(requests)
    # All requests of the run, also of a command that was stopped.
    counted = {
        "failed_requests": sum(line["status"] != 200 for line in lines),
        "renamed_calls": sum(line.get("renamed_calls", 0) for line in lines),
    }
    cut = Counter(
        (line["prompt_tokens"], line["completion_tokens"]) for line in lines if line.get("finish") == "length"
    )
    asked = [case for ids in cases.values() for case in ids]
    samples = read_samples(raw / "result", raw / "score", cut, asked)
    return samples, sum_up(samples, requests=counted, seed=config.seed)
