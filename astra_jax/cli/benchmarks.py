"""`astra evaluate setup | bfcl | tau2 | acebench | aime | report`: benchmarks of others, runs beside one another."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, config_command, http_url, whole_number
from astra_jax.errors import UsageError
from synthesis.run.lock import run_lock

if TYPE_CHECKING:
    from astra_jax.benchmarks.results import BenchmarkResults


def add_benchmarks(evaluate: Commands) -> None:
    """Add what `astra evaluate` has beside our own environments."""
    setup = evaluate.add_parser(
        "setup",
        help="the official harness of a benchmark, in an environment of its own",
        description="Makes the environment of a harness in the user's cache (XDG_CACHE_HOME is heeded), once. pip gets "
        "proxies, certificates and PIP_INDEX_URL, not the settings in your home; PIP_CONFIG_FILE names those.",
    )
    setup.add_argument(
        "name",
        choices=["bfcl", "tau2", "acebench"],
        metavar="NAME",
        help="bfcl; tau2 or acebench of a --source",
    )
    setup.add_argument(
        "--source", type=Path, metavar="DIR", help="a checkout of a harness that no package index has: tau2, acebench"
    )
    setup.set_defaults(run=_setup)

    bfcl = config_command(evaluate, "bfcl", "BFCL's multi-turn categories, by the official package", _bfcl)
    _add_url(bfcl)
    bfcl.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="cases in all, the first ones of each category alike"
    )

    tau2 = config_command(evaluate, "tau2", "τ²-bench's retail and telecom, by the official code", _tau2)
    _add_url(tau2)
    tau2.add_argument("--limit", type=whole_number(1), metavar="N", help="tasks in all, the first of each domain alike")

    acebench = config_command(evaluate, "acebench", "ACEBench's agent split, by the official code", _acebench)
    _add_url(acebench)
    acebench.add_argument(
        "--limit", type=whole_number(1), metavar="N", help="cases in all, the first of each category alike"
    )

    aime = config_command(evaluate, "aime", "AIME of files that you bring, sampled many times over", _aime)
    _add_url(aime)
    aime.add_argument("--limit", type=whole_number(1), metavar="N", help="problems of each year, the first ones")

    report = evaluate.add_parser(
        "report",
        help="runs of environments side by side, of benchmarks beside the paper's tables; HTML and Markdown",
        description="Reads finished runs of environments, bfcl, tau2, acebench and aime; the first of each is what the "
        "others are compared with, environment by environment or task by task: name the base model first. Runs in "
        "environments whose names tell a step, such as step_20, are drawn over steps.",
    )
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="the `out` folder of a run")
    report.add_argument("--out", type=Path, required=True, metavar="DIR", help="for report.html and report.md")
    report.set_defaults(run=_report)


def _add_url(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--url",
        type=http_url,
        help="of a server of OpenAI's chat, its key in ASTRA_SERVE_KEY; without it one is started for `policy`",
    )


def _setup(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.harnesses import HARNESSES
    from astra_jax.benchmarks.managed_environment import set_up

    harness = HARNESSES[options.name]
    if harness.source is None and options.source is not None:
        raise UsageError(f"expected no --source for {options.name}, which is installed as a package, found one")
    environment, is_new = set_up(harness, options.source)
    document = environment.document
    print(
        f"setup: {document.package} {document.version} {'is made' if is_new else 'was there'} -> {environment.folder}"
    )


def _bfcl(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.bfcl import BFCLConfig, evaluate_bfcl
    from astra_jax.config import load_config

    config = load_config(BFCLConfig, options.config, options.overrides)
    with run_lock(config.out / ".lock"):
        results = evaluate_bfcl(config, url=options.url, limit=options.limit)
    _close(results, config.out, options)


def _tau2(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.tau2 import Tau2Config, evaluate_tau2
    from astra_jax.config import load_config

    config = load_config(Tau2Config, options.config, options.overrides)
    with run_lock(config.out / ".lock"):
        results = evaluate_tau2(config, url=options.url, limit=options.limit)
    _close(results, config.out, options)


def _acebench(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.acebench import ACEBenchConfig, evaluate_acebench
    from astra_jax.config import load_config

    config = load_config(ACEBenchConfig, options.config, options.overrides)
    with run_lock(config.out / ".lock"):
        results = evaluate_acebench(config, url=options.url, limit=options.limit)
    _close(results, config.out, options)


def _aime(options: argparse.Namespace) -> None:
    from astra_jax.benchmarks.aime import AIMEConfig, evaluate_aime
    from astra_jax.config import load_config

    config = load_config(AIMEConfig, options.config, options.overrides)
    with run_lock(config.out / ".lock"):
        results = evaluate_aime(config, url=options.url, limit=options.limit)
    _close(results, config.out, options)


def _report(options: argparse.Namespace) -> None:
    from astra_jax.report.benchmarks import write_benchmark_report

    print(f"report -> {write_benchmark_report(options.runs, options.out)}")


def _close(results: BenchmarkResults, out: Path, options: argparse.Namespace) -> None:
    """Print the closing line.

    Raises:
        AnswersLost: some were.
    """
    from astra_jax.benchmarks.results import AnswersLost

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
        raise AnswersLost(
            f"expected an answer to every request, found {lost} of {len(results.samples)} samples with a lost one "
            f"({first.id}: {first.detail}); the same command runs these again"
        )
