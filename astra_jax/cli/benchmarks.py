"""`astra evaluate setup | bfcl | tau2 | acebench | aime | report`: public benchmarks, and a report on runs."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, config_command, http_url, whole_number
from astra_jax.errors import UsageError
from synthesis.run.lock import run_lock
from synthesis.run.places import published

if TYPE_CHECKING:
    from astra_jax.benchmarks.benchmark import Benchmark
    from astra_jax.benchmarks.results import BenchmarkResults

_COMMANDS = {
    "bfcl": (
        "BFCL's multi-turn or single-turn categories, by the official package",
        "cases in total, split evenly by category",
    ),
    "tau2": ("τ²-bench's retail and telecom, by the official code", "tasks in total, split evenly by domain"),
    "acebench": ("ACEBench's agent split, by the official code", "cases in total, split evenly by category"),
    "aime": ("AIME problems from your own files, each sampled many times", "run the first N problems of each year"),
}
"""Help of each benchmark's command, and of its `--limit`, by the name of the benchmark."""


def add_benchmarks(evaluate: Commands) -> None:
    """Add the commands for benchmarks and for the report to `astra evaluate`."""
    setup = evaluate.add_parser(
        "setup",
        help="install the official harness of a benchmark in an environment of its own",
        description="Installs the harness once, in your cache (XDG_CACHE_HOME names another folder), by pip and its "
        "settings; no code of the harness runs outside its jail.",
    )
    setup.add_argument("name", choices=["bfcl", "tau2", "acebench"], metavar="NAME", help="bfcl, tau2 or acebench")
    setup.add_argument("--source", type=Path, metavar="DIR", help="a git checkout of tau2 or acebench")
    setup.set_defaults(run=_setup)

    for name, (text, limited) in _COMMANDS.items():
        command = config_command(evaluate, name, text, _evaluate)
        command.add_argument("--url", type=http_url, help="server with OpenAI's chat API; key in ASTRA_SERVE_KEY")
        command.add_argument("--limit", type=whole_number(1), metavar="N", help=limited)
        command.set_defaults(benchmark=name)

    report = evaluate.add_parser(
        "report",
        help="compare runs: environments side by side, benchmarks with the paper's tables; HTML and Markdown",
        description="Reads finished runs of environments, bfcl, tau2, acebench and aime. The first run of each kind is "
        "compared with the others, environment by environment or task by task: name the base model's run first.",
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the `out` folder of a run")
    report.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of report.html and report.md")
    report.set_defaults(run=_report)


def _setup(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.harnesses import HARNESSES
    from astra_jax.benchmarks.managed_environment import set_up

    harness = HARNESSES[options.name]
    if harness.source is None and options.source is not None:
        raise UsageError(f"{options.name} is installed as a package and has no checkout; leave out --source")
    environment, is_new = set_up(harness, options.source)
    document = environment.document
    found = "is made" if is_new else "was there"
    print(f"setup: {document.package} {document.version} {found} -> {environment.folder}")


def benchmark_kinds() -> dict[str, type[Benchmark]]:
    """Return the class of each benchmark by its name."""
    from astra_jax.benchmarks.acebench import ACEBench
    from astra_jax.benchmarks.aime import AIME
    from astra_jax.benchmarks.bfcl import BFCL
    from astra_jax.benchmarks.tau2 import Tau2

    return {kind.name: kind for kind in (BFCL, Tau2, ACEBench, AIME)}


def _evaluate(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.benchmark import evaluate_benchmark
    from astra_jax.config import load_config

    kind = benchmark_kinds()[options.benchmark]
    config = load_config(kind.config_type, options.config, options.overrides)
    with published(config.out), run_lock(config.out / ".lock"):
        results = evaluate_benchmark(kind(config, options.limit), url=options.url)
    _close(results, config.out, options)


def _report(options: argparse.Namespace) -> None:
    from astra_jax.report.benchmarks import write_benchmark_report

    print(f"report -> {write_benchmark_report(options.runs, options.out)}")


def _close(results: BenchmarkResults, out: Path, options: argparse.Namespace) -> None:
    """Print the closing line; a run that has lost answers ends with an error."""
    from astra_jax.benchmarks.results import BenchmarkFailed

    summary, run = results.summary, results.run
    if options.json:
        print(json.dumps({"benchmark": run.benchmark, "out": str(out), **summary.model_dump()}))
    else:
        low, high = summary.score.interval
        parts = ", ".join(f"{name} {100 * figure.value:.1f}" for name, figure in summary.by_category.items())
        failed = ", ".join(f"{count} {cause}" for cause, count in summary.failures.items() if count)
        print(
            f"{run.benchmark}: {100 * summary.score.value:.1f} % [{100 * low:.1f}, {100 * high:.1f}] of "
            f"{len(results.samples)} samples ({parts}); failed: {failed or 'none'} -> {out}/summary.json"
        )
    if lost := results.summary.failures["transport"]:
        first = next(sample for sample in results.samples if sample.failure == "transport")
        raise BenchmarkFailed(
            f"{lost} of {len(results.samples)} samples lost an answer ({first.id}: {first.detail}); run the same "
            "command again to repeat these"
        )
