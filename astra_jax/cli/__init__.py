"""The `astra` command. Every stage of the method is one subcommand; heavy imports happen inside the one that runs.

Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from synthesis.stage import StageReport
    from synthesis.teacher import Teacher
    from synthesis.teacher.cost_estimate import CostEstimate
    from synthesis.teacher.openai import OpenAITeacherConfig

EXIT_FAILED, EXIT_USAGE = 1, 2
_SANDBOX_HELP = "a running sandbox, its token in ASTRA_SANDBOX_TOKEN; without it one is started"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    options = _parser().parse_args(arguments)
    from astra_jax.cli.run_lock import AnotherRun
    from astra_jax.config import ConfigError
    from sandbox.client import SandboxUnavailable
    from synthesis.record_io import RecordDirectoryError
    from synthesis.teacher import TeacherUnavailable

    try:
        code = options.run(options)
    except (AnotherRun, ConfigError) as error:
        return _fail(error, EXIT_USAGE)
    except (SandboxUnavailable, TeacherUnavailable, RecordDirectoryError, OSError) as error:
        return _fail(error, EXIT_FAILED)
    except Exception as error:
        # Errors that a stage defines end in their one line; anything else is a bug and keeps its traceback.
        if type(error).__module__.split(".")[0] in ("astra_jax", "synthesis", "sandbox"):
            return _fail(error, EXIT_FAILED)
        raise
    return code or 0


def _fail(error: Exception, code: int) -> int:
    message = " ".join(str(error).split())
    print(f"astra: {type(error).__name__}: {message}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="astra",
        description="Train tool-using language-model agents: tool documents and knowledge in, HuggingFace weights out.",
        epilog="Start with `astra quickstart`; configs are TOML files in configs/, and key=value overrides their keys.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    quickstart = commands.add_parser("quickstart", help="the whole recipe with a tiny Qwen3 on this machine")
    quickstart.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="where everything is written")
    quickstart.add_argument("--seed", type=int, default=0, help="the same seed gives the same records and curves")
    quickstart.add_argument(
        "--tool-documents", type=Path, action="append", default=[], metavar="DIR", help="your own tool documents"
    )
    quickstart.set_defaults(run=_quickstart)

    synthesize = commands.add_parser("synthesize", help="make training data").add_subparsers(
        dest="track", required=True, metavar="TRACK"
    )
    tools = synthesize.add_parser("tools", help="read and normalise tool documents only")
    tools.add_argument("sources", nargs="+", type=Path, metavar="SRC", help="files or folders, in any known format")
    tools.add_argument("--out", type=Path, required=True)
    tools.add_argument("--json", action="store_true", help="end with one machine-readable line")
    tools.set_defaults(run=_synthesize_tools)
    conversations = _config_command(
        synthesize, "trajectories", "conversations with tools, scored on seven axes", _trajectories
    )
    environments = _config_command(
        synthesize, "environments", "questions whose sub-answers are proven by running tools", _environments
    )
    environments.add_argument("--sandbox", metavar="URL", help=_SANDBOX_HELP)
    for track in (conversations, environments):
        track.add_argument(
            "--estimate",
            action="store_true",
            help="only say how many calls and tokens a language model would be asked for, and what they cost: a small "
            "run with the embedded teacher, scaled up; its replies are short, retries and repairs are not counted",
        )

    records = commands.add_parser("records", help="look at, count, verify and export records").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    for action, run, text in (
        ("show", _records_show, "print the first records"),
        ("stats", _records_stats, "the paper's table of these records, beside the paper's figures"),
        ("verify", _records_verify, "re-run every gold answer in the sandbox"),
        ("export", _records_export, "write JSON lines for any other trainer"),
    ):
        command = records.add_parser(action, help=text)
        command.add_argument("directory", type=Path, metavar="DIR")
        command.set_defaults(run=run)
        if action == "stats":
            command.add_argument("--json", action="store_true", help="everything that is counted, on one line")
        if action == "show":
            command.add_argument("--count", type=int, default=1)
        if action == "verify":
            command.add_argument("--sandbox", metavar="URL", help=_SANDBOX_HELP)
        if action == "export":
            command.add_argument("--format", choices=["jsonl"], default="jsonl")
            command.add_argument("--out", type=Path, required=True, metavar="FILE")

    sandbox = commands.add_parser("sandbox", help="the service that runs model-written code").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    serve = sandbox.add_parser("serve", help="listen for tool calls")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8377)
    serve.add_argument("--workers", type=int, default=None, help="default: one per core")
    serve.add_argument("--tier", choices=["wasm"], help="run tools in WebAssembly; needs astra-jax[wasm]")
    serve.set_defaults(run=_sandbox_serve)

    _config_command(commands, "sft", "supervised fine-tuning on trajectories and gold episodes", _sft)
    rl = _config_command(commands, "rl", "multi-turn GRPO with the sandbox", _rl)
    rl.add_argument("--sandbox", metavar="URL", help=_SANDBOX_HELP)

    evaluate = commands.add_parser("evaluate", help="measure a policy").add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK"
    )
    held_out = _config_command(evaluate, "environments", "held-out environments", _evaluate_environments)
    held_out.add_argument("--sandbox", metavar="URL", help=_SANDBOX_HELP)

    convert = commands.add_parser("convert", help="checkpoints to and from HuggingFace").add_subparsers(
        dest="direction", required=True, metavar="DIRECTION"
    )
    for direction, run, kept in (
        ("hf-to-orbax", _hf_to_orbax, "float32, as training wants them"),
        ("orbax-to-hf", _orbax_to_hf, "as they are"),
    ):
        command = convert.add_parser(direction)
        command.add_argument("source", type=Path, metavar="SRC")
        command.add_argument("destination", type=Path, metavar="DST", help="new, or an earlier one to replace")
        command.add_argument("--dtype", choices=["float32", "bfloat16"], help=f"of the weights in DST; default: {kept}")
        command.set_defaults(run=run)

    plan = _config_command(commands, "plan", "memory, FLOPs and roofline of a pod that is not there", _plan)
    plan.add_argument("--topology", required=True, metavar="T", help="e.g. v5p:4x4x4, v5e:16x16, v6e:8x8")

    report = commands.add_parser(
        "report",
        help="one self-contained HTML page of a run or of a record directory",
        description="Writes one self-contained HTML page: of a run's folder into it, as report.html; of a record "
        "directory (trajectories or environments) beside it, as DIR.html, since its own files are check-summed.",
    )
    report.add_argument("folder", type=Path, metavar="DIR", help="the `out` folder of a run or of a synthesis")
    report.set_defaults(run=_report)
    return parser


def _config_command(commands, name: str, text: str, run) -> argparse.ArgumentParser:  # type: ignore[no-untyped-def]
    command: argparse.ArgumentParser = commands.add_parser(name, help=text)
    command.add_argument("config", type=Path, metavar="CONFIG", help="a TOML file, e.g. from configs/")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. seed=1 out=runs/mine")
    command.add_argument("--json", action="store_true", help="end with one machine-readable line")
    command.set_defaults(run=run)
    return command


def _quickstart(options: argparse.Namespace) -> None:
    with _lock_beside(options.out):
        from astra_jax.cli.quickstart import quickstart

        summary = quickstart(options.out, seed=options.seed, tool_documents=options.tool_documents)
    print(json.dumps(summary["heldout"], indent=2))
    minutes = summary["seconds"]["total"] / 60
    print(f"quickstart: done in {minutes:.1f} minutes -> {options.out}/report.html, {options.out}/summary.json")


def _synthesize_tools(options: argparse.Namespace) -> None:
    from synthesis.trajectories.pipeline import synthesize_tools

    with _lock_beside(options.out):
        report = asyncio.run(synthesize_tools(options.sources, options.out))
    print(report.json_line() if options.json else report.closing_line())


def _trajectories(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories

    config = load_config(TrajectoriesConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.trajectories.cost_estimate import estimate_costs

        _print_estimate(options, "trajectories", asyncio.run(estimate_costs(config)), config.teacher)
        return

    async def run() -> StageReport:
        async with _teacher(config.teacher) as teacher:
            return await synthesize_trajectories(config, teacher)

    with _lock_beside(config.out):
        report = asyncio.run(run())
    print(report.json_line() if options.json else report.closing_line())


def _environments(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments

    config = load_config(EnvironmentsConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.environments.cost_estimate import estimate_costs

        with _sandbox(options) as url:
            _print_estimate(options, "environments", asyncio.run(estimate_costs(config, url)), config.teacher)
        return

    async def run(url: str) -> StageReport:
        async with _teacher(config.teacher) as teacher:
            return await synthesize_environments(config, teacher, url)

    with _lock_beside(config.out), _sandbox(options) as url:
        report = asyncio.run(run(url))
    print(report.json_line() if options.json else report.closing_line())


def _print_estimate(
    options: argparse.Namespace, track: str, estimate: CostEstimate, prices: OpenAITeacherConfig | None
) -> None:
    print(estimate.json_line(track, prices) if options.json else estimate.table(prices))


@contextlib.asynccontextmanager
async def _teacher(config: OpenAITeacherConfig | None) -> AsyncIterator[Teacher]:
    """The endpoint that the config names, or the embedded teacher."""
    from synthesis.teacher.openai import OpenAITeacher
    from synthesis.teacher.procedural import ProceduralTeacher

    if config is None:
        yield ProceduralTeacher()
        return
    teacher = OpenAITeacher(config)
    try:
        yield teacher
    finally:
        await teacher.close()


def _records_show(options: argparse.Namespace) -> None:
    source = _record_source(options.directory)
    for index in range(min(options.count, len(source))):
        print(source[index].model_dump_json(indent=2))


def _records_stats(options: argparse.Namespace) -> None:
    from astra_jax.cli.data_sets import count_records, describe

    if options.json:
        print(count_records(options.directory).model_dump_json())
        return
    print(describe(options.directory).table())
    print(f"\nplots: astra report {options.directory}")


def _records_verify(options: argparse.Namespace) -> int | None:
    from synthesis.environments.verification import verify_environments
    from synthesis.record_io import check_shards, read_card

    card = read_card(options.directory)
    if card.kind != "environment":  # other kinds have no gold answers: their bytes and their schema are what can fail
        check_shards(options.directory)
        count = sum(1 for _ in _record_source(options.directory))
        print(f"verified {count}/{card.count}")
        return None
    with _sandbox(options) as url:
        verified = asyncio.run(verify_environments(options.directory, url))
    for name, reason in verified.failures:
        print(f"{name}: {reason}", file=sys.stderr)
    print(verified.closing_line())
    return EXIT_FAILED if verified.failures else None


def _records_export(options: argparse.Namespace) -> None:
    from synthesis.record_io import export_jsonl

    count = export_jsonl(options.directory, options.out)
    print(f"exported {count} records -> {options.out}")


def _record_source(directory: Path):  # type: ignore[no-untyped-def]
    from synthesis.record_io import RECORD_TYPES, RecordSource, read_card

    return RecordSource(directory, RECORD_TYPES[read_card(directory).kind])


def _sandbox_serve(options: argparse.Namespace) -> None:
    from sandbox.server import serve

    serve(host=options.host, port=options.port, workers=options.workers, wasm=options.tier == "wasm")


def _lock_beside(out: Path) -> contextlib.AbstractContextManager[None]:
    """The lock for a folder that is replaced as a whole: a file beside it."""
    from astra_jax.cli.run_lock import run_lock

    out = out.absolute()
    return run_lock(out.with_name(f"{out.name}.lock"))


def _sandbox(options: argparse.Namespace):  # type: ignore[no-untyped-def]
    from sandbox.local import local_sandbox

    return contextlib.nullcontext(options.sandbox) if options.sandbox else local_sandbox()


def _sft(options: argparse.Namespace) -> None:
    from astra_jax.cli.run_lock import run_lock
    from astra_jax.config import load_config
    from astra_jax.placement import host_folder, join_hosts
    from astra_jax.sft.train import SFTConfig, train_sft

    config = load_config(SFTConfig, options.config, options.overrides)
    if config.mesh is not None:
        join_hosts()
    with run_lock(host_folder(config.out) / ".lock"):  # on every host, so that every host of a second run is refused
        figures = train_sft(config)
    print(json.dumps({"stage": "sft", **figures}) if options.json else f"sft: {figures} -> {config.out}")


def _rl(options: argparse.Namespace) -> None:
    from astra_jax.cli.run_lock import run_lock
    from astra_jax.config import load_config
    from astra_jax.rl.train import RLConfig, train_rl
    from sandbox.client import AsyncSandboxClient

    config = load_config(RLConfig, options.config, options.overrides)

    async def run(url: str) -> dict:
        async with AsyncSandboxClient(url) as sandbox:
            return await train_rl(config, sandbox)

    with run_lock(config.out / ".lock"), _sandbox(options) as url:
        figures = asyncio.run(run(url))
    print(json.dumps({"stage": "rl", **figures}) if options.json else f"rl: {figures} -> {config.out}")


def _evaluate_environments(options: argparse.Namespace) -> None:
    import dataclasses

    from astra_jax.config import load_config
    from astra_jax.evaluate.environments import EvaluationConfig, HeldOutFigures, evaluate_environments
    from astra_jax.policy import load_policy
    from astra_jax.rollout.engine import RolloutEngine
    from sandbox.client import AsyncSandboxClient
    from synthesis.record_io import RecordSource
    from synthesis.records import Environment

    config = load_config(EvaluationConfig, options.config, options.overrides)
    policy = load_policy(config.policy)
    environments = list(RecordSource(config.environments, Environment))

    async def run(url: str) -> HeldOutFigures:
        async with AsyncSandboxClient(url) as sandbox:
            engine = RolloutEngine(policy.model, policy.tokenizer, sandbox, config.rollout)
            figures, _ = await evaluate_environments(engine, policy.params, environments, config, seed=config.seed)
            return figures

    with _sandbox(options) as url:
        figures = dataclasses.asdict(asyncio.run(run(url)))
    config.out.mkdir(parents=True, exist_ok=True)
    (config.out / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures) if options.json else f"evaluate: {figures} -> {config.out}/figures.json")


def _hf_to_orbax(options: argparse.Namespace) -> None:
    from astra_jax.convert import hf_to_orbax

    with _lock_beside(options.destination):
        model = hf_to_orbax(options.source, options.destination, param_dtype=options.dtype or "float32")
    print(f"convert: {model.num_parameters} parameters -> {options.destination}")


def _orbax_to_hf(options: argparse.Namespace) -> None:
    from astra_jax.convert import orbax_to_hf

    with _lock_beside(options.destination):
        model = orbax_to_hf(options.source, options.destination, dtype=options.dtype)
    print(f"convert: {model.num_parameters} parameters -> {options.destination}")


def _plan(options: argparse.Namespace) -> int | None:
    from astra_jax.plan import PLAN_ENVIRONMENT

    os.environ.update(PLAN_ENVIRONMENT)  # before JAX is imported
    from astra_jax.config import load_config
    from astra_jax.plan.plan import PlanConfig, plan

    planned = plan(load_config(PlanConfig, options.config, options.overrides), options.topology)
    print(json.dumps(planned.to_json()) if options.json else planned.render())
    return None if planned.fits else EXIT_FAILED


def _report(options: argparse.Namespace) -> None:
    from astra_jax.cli.data_sets import describe
    from astra_jax.report import write_report

    print(f"report -> {write_report(options.folder, describe)}")
