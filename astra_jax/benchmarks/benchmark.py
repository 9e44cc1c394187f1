"""The protocol of a benchmark, and `evaluate_benchmark`, which runs all of them.

A subclass of `Benchmark` has its own config and cases, runs its harness, and reads the files of that.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

from pydantic import Field

from astra_jax.benchmarks.endpoint import ServingConfig, SimulatedUser, answering, named_model
from astra_jax.benchmarks.harnesses import Harness
from astra_jax.benchmarks.managed_environment import ManagedEnvironment, managed_environment
from astra_jax.benchmarks.results import (
    BenchmarkFailed,
    BenchmarkName,
    BenchmarkResults,
    HarnessDocument,
    RunDocument,
    Sample,
    Summary,
    begin,
    finish,
    finished_results,
    read_results,
    whole_lines,
)
from astra_jax.benchmarks.scores import sum_up
from astra_jax.config import ConfigError, Frozen
from astra_jax.evaluate.endpoint import Endpoint
from synthesis.run.fingerprint import Fingerprint, flattened
from synthesis.run.places import Place, claim

Item = TypeVar("Item")
_LEFT_OUT: Final = frozenset({"policy", "out", "problems", "requests_at_once", "serving.rows", "user.url"})
"""Keys of a config that do not decide the figures. Models, problems and users are compared by other names."""


class BenchmarkConfig(Frozen):
    """The part that the configs of all benchmarks have."""

    policy: Place | None = None
    """Policy folder or HuggingFace folder for which a server is started; or name a server by `--url`."""
    out: Place
    """Folder of the results."""
    temperature: float = Field(default=0.6, ge=0)
    """Sampling temperature of the policy."""
    top_p: float | None = Field(default=None, gt=0, le=1)
    """Share of probability that tokens are drawn from; without it the server's default."""
    top_k: int | None = Field(default=None, ge=-1)
    """Number of likeliest ids that a token is drawn from; without it the server's default."""
    requests_at_once: int = Field(default=8, ge=1)
    """Requests, or conversations with one request each, that are under way at a time."""
    seed: int = 0
    """Seed of the bootstrap, and of the requests of benchmarks that send one."""
    serving: ServingConfig = ServingConfig()
    """Server of the policy."""


class ConversationsConfig(BenchmarkConfig):
    """The part that the configs of benchmarks with a simulated user have."""

    user: SimulatedUser
    """Model that plays the user."""
    trials: int = Field(default=4, ge=1)
    """Trials of each case."""


class Benchmark(ABC):
    """One benchmark with the cases that one command asks for; `evaluate_benchmark` calls the methods in their order.

    Args:
      config: of the type `config_type`.
      limit: cases that are run; None runs all.

    Raises:
        ConfigError: the limit cannot be kept.
    """

    name: ClassVar[BenchmarkName]
    config_type: ClassVar[type[BenchmarkConfig]]
    harness: ClassVar[Harness | None] = None
    """The official harness; None for a benchmark that this package scores itself."""
    sampling: ClassVar[tuple[str, ...]] = ("temperature", "top_p", "top_k", "max_tokens")
    """Keys of the config that each request asks for."""
    config: BenchmarkConfig
    environment: ManagedEnvironment
    """Environment of the harness, from the begin of the run on."""
    num_cases: int
    """Cases that are run, each of them `trials` times."""
    of_cases: int
    """Cases that the benchmark has."""
    made_with: Fingerprint
    """Facts beside config, harness and model that decide the figures, such as the number of cases."""
    trials: int = 1
    user: SimulatedUser | None = None

    def __init__(self, config: Any, limit: int | None):
        self.config = config
        self.choose(limit)

    @abstractmethod
    def choose(self, limit: int | None) -> None:
        """Choose the cases and set the attributes above."""

    def scored_by(self) -> HarnessDocument:
        """Return the name and version of the code that scores."""
        return self.environment.document

    @abstractmethod
    async def run(self, endpoint: Endpoint, raw: Path) -> None:
        """Run the cases that have no result yet; everything that is written goes into `raw`."""

    @abstractmethod
    def read(self, raw: Path) -> list[Sample]:
        """Read the samples of all cases and trials from `raw`.

        Raises:
            BenchmarkFailed: a sample is missing or damaged.
        """

    def requests(self, samples: Sequence[Sample], raw: Path) -> dict[str, int]:
        """Return counts of requests that stand beside the counts of answers."""
        return {"failed_requests": sum(sample.failure == "transport" for sample in samples)}

    def score(self, samples: Sequence[Sample], raw: Path) -> Summary:
        """Sum the samples up."""
        return sum_up(samples, requests=self.requests(samples, raw), seed=self.config.seed)


def evaluate_benchmark(benchmark: Benchmark, *, url: str | None) -> BenchmarkResults:
    """Run a benchmark, or go on with an earlier run, and return its results; a finished run is only read.

    Raises:
        HarnessMissing: the environment of its harness is not there.
        ConfigError: no model is named, or two are.
        DestinationRefused: `out` is something else, or a run that was begun with something else.
        BenchmarkFailed: the harness does not end well, cannot be confined, or leaves files that cannot be read.
        DecoderError: no server answers.
    """
    config = benchmark.config
    if benchmark.harness is not None:
        benchmark.environment = managed_environment(benchmark.harness)
    harness, model = benchmark.scored_by(), named_model(config.policy, url)
    run = RunDocument(
        benchmark=benchmark.name,
        harness=harness,
        model=model,
        sampling={name: getattr(config, name) for name in benchmark.sampling},
        samples=benchmark.num_cases,
        of_samples=benchmark.of_cases,
        trials=benchmark.trials,
        seed=config.seed,
        user_simulator=benchmark.user.model if benchmark.user else None,
        made_with={
            **flattened(config.model_dump(mode="json"), leave_out=_LEFT_OUT),
            **flattened({"harness": harness.model_dump()} if benchmark.harness else {}),
            # A server of a checkpoint is named by its path, which may change.
            **flattened({"model": model.digest or model.name}),
            **benchmark.made_with,
        },
    )
    if (finished := finished_results(config.out, run.made_with)) is not None:
        return finished
    claim(config.out)  # only now: a command that is refused ends no other
    begin(config.out, run)
    raw, started = (config.out / "raw").resolve(), time.monotonic()
    with answering(config.policy, url, config.serving, raw / "server.log") as endpoint:
        asyncio.run(benchmark.run(endpoint, raw))
    samples = benchmark.read(raw)
    run = run.ended(time.monotonic() - started, endpoint.most_tokens)
    finish(config.out, run, samples, benchmark.score(samples, raw))
    return read_results(config.out)


def cases_of_each(limit: int | None, kinds: Sequence[str], what: str, most: int) -> int:
    """Return the number of cases of each kind, at most `most`, if `limit` cases are asked for in all.

    >>> cases_of_each(8, ["base", "miss_func"], "categories", 200), cases_of_each(None, ["base"], "categories", 200)
    (4, 200)

    Raises:
        ConfigError: `limit` cannot be shared out.
    """
    if limit is None:
        return most
    of_each, rest = divmod(limit, len(kinds))
    if rest or not 0 < of_each <= most:
        raise ConfigError(
            f"expected --limit to be a multiple of the {len(kinds)} {what}, up to {most} cases of each, found {limit}"
        )
    return of_each


def request_seed(*names: object) -> int:
    """Return the seed, below 2³¹, of the requests that these names belong to.

    >>> request_seed(0, "a", 1) == request_seed(0, "a", 1) != request_seed(0, "a", 2)
    True
    """
    return int.from_bytes(sha256("/".join(map(str, names)).encode()).digest()[:4]) >> 1


async def work_through(items: Iterable[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int) -> None:
    """Do the work on every item, on some at a time; the first that fails ends all.

    Raises:
        BenchmarkFailed: the work on an item raised it.
    """
    free = asyncio.Semaphore(at_once)

    async def work_on(item: Item) -> None:
        async with free:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for item in items:
                group.create_task(work_on(item))
    except ExceptionGroup as failed:
        if isinstance(first := failed.exceptions[0], BenchmarkFailed):
            raise first from None
        raise


def request_log(raw: Path, who: str) -> Path:
    """Return where a relay writes its lines, in a folder of a harness."""
    return raw / f"requests_of_{who}.jsonl"


def failed_requests(folders: Sequence[Path]) -> dict[str, int]:
    """Count the failed requests of agent and user in the folders of a harness."""
    failed = {"failed_requests": "agent", "failed_requests_of_user": "user"}
    return {
        name: sum(line["status"] != 200 for folder in folders for line in whole_lines(request_log(folder, who)))
        for name, who in failed.items()
    }
