"""The `astra` command. Every stage of the method is one subcommand; heavy imports happen inside the one that runs.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 ended by Ctrl-C, 143 ended by SIGTERM (0 where training has saved).
Errors that a package defines (its `errors.py` draws them) end in one line; anything else is a bug.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.metadata
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urlsplit

from astra_jax.config import require_local_paths
from astra_jax.errors import AstraError, UsageError
from astra_jax.training.termination import Interruption, Terminated, name_of
from sandbox.errors import SandboxError
from synthesis.errors import SynthesisError

if TYPE_CHECKING:
    from synthesis.cost.estimate import CostEstimate
    from synthesis.destination import Result
    from synthesis.stage import StageReport
    from synthesis.teacher.openai import OpenAITeacherConfig
    from synthesis.teacher.protocol import Teacher

EXIT_FAILED, EXIT_USAGE = 1, 2
_GOES_ON = "; what is finished is kept, and the same command goes on from there"
_MOST_SEED = 2**31 - 1
_SANDBOX_HELP = "a running sandbox, its token in ASTRA_SANDBOX_TOKEN; without it one is started"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code."""
    parser = _parser()
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments:
        parser.print_help()
        return 0
    try:
        options = _parsed(parser, arguments)
    except UsageError as error:
        return _fail(error, EXIT_USAGE)
    with Interruption(patience_seconds=options.patience_seconds) as interruption:
        try:
            require_local_paths(vars(options), where="the command line")
            code = options.run(options)
            sys.stdout.flush()
        except Terminated as ended:
            return int(ended.code or 0)
        except (KeyboardInterrupt, asyncio.CancelledError):
            return _interrupted(interruption.signum, options.after_signal)
        except BrokenPipeError as error:
            _let_go_of_output()
            return _fail(error, EXIT_FAILED, "whoever read the output stopped reading")
        except Exception as error:
            if interruption.signum is not None:  # what broke, broke because of it
                return _interrupted(interruption.signum, options.after_signal)
            failure = _exit_code(error)
            if failure is None:
                raise  # a bug keeps its traceback
            _let_go_of_output()
            return _fail(error, failure)
    return code or 0


def _exit_code(error: Exception) -> int | None:
    """2 where the command line or a config is at fault by itself, 1 for what was met on the way, None for a bug."""
    if isinstance(error, AstraError | SynthesisError):
        return EXIT_USAGE if error.is_usage else EXIT_FAILED
    if isinstance(error, SandboxError | OSError | sqlite3.Error):  # the two last: disk full, no permission, no network
        return EXIT_FAILED
    return None


def _fail(error: Exception, code: int, message: str | None = None) -> int:
    line = " ".join((message or str(error)).split())
    print(f"astra: {type(error).__name__}: {line}", file=sys.stderr)
    return code


def _interrupted(signum: int | None, after_signal: str) -> int:
    signum = signum or signal.SIGINT
    print(f"astra: ended on {name_of(signum)}{after_signal}", file=sys.stderr)
    return 128 + signum


def _let_go_of_output() -> None:
    """Send what is still to be written to standard output nowhere where nobody takes it: Python writes at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def _parsed(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; `key=value` may stand before, between and after options.

    Raises:
        UsageError: it is not one of this command.
    """
    options, rest = parser.parse_known_args(arguments)
    if hasattr(options, "overrides"):
        options.overrides += [argument for argument in rest if not argument.startswith("-")]
        rest = [argument for argument in rest if argument.startswith("-")]
    if rest:
        raise UsageError(f"unknown: {' '.join(rest)}; see {parser.prog} {options.command} --help")
    return options


def _whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """What reads an option that is a whole number from `least` on."""
    allowed = f"from {least} on" if most is None else f"from {least} to {most}"

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"expected a whole number {allowed}, found {text!r}")
        return number

    return read


def _http_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        is_one = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
    except ValueError:  # a port that is no number, an address with half a bracket
        is_one = False
    if not is_one:
        raise argparse.ArgumentTypeError(f"expected an address such as http://127.0.0.1:8377, found {text!r}")
    return text


def _version() -> str:
    try:
        return importlib.metadata.version("astra-jax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="astra",
        description="Train tool-using language-model agents: tool documents and knowledge in, HuggingFace weights out.",
        epilog="Start with `astra quickstart`; configs are TOML files in configs/, and key=value overrides their keys.",
    )
    parser.add_argument("--version", action="version", version=f"astra {_version()}")
    parser.set_defaults(after_signal="", patience_seconds=30.0)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    quickstart = commands.add_parser("quickstart", help="the whole recipe with a tiny Qwen3 on this machine")
    quickstart.add_argument("--out", type=Path, default=Path("runs/quickstart"), help="where everything is written")
    quickstart.add_argument(
        "--seed", type=_whole(0, _MOST_SEED), default=0, help="the same seed gives the same records and curves"
    )
    quickstart.add_argument(
        "--tool-documents", type=Path, action="append", default=[], metavar="DIR", help="your own tool documents"
    )
    quickstart.add_argument("--resume", action="store_true", help="go on with the stages that are not finished")
    quickstart.set_defaults(run=_quickstart, after_signal="; with --resume it goes on from there")

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
    _add_sandbox(environments)
    for track in (conversations, environments):
        track.set_defaults(after_signal=_GOES_ON)
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
            command.add_argument("--count", type=_whole(1), default=1, help="how many")
        if action == "verify":
            _add_sandbox(command)
        if action == "export":
            command.add_argument("--format", choices=["jsonl"], default="jsonl")
            command.add_argument("--out", type=Path, required=True, metavar="FILE")

    sandbox = commands.add_parser("sandbox", help="the service that runs model-written code").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    serve = sandbox.add_parser("serve", help="listen for tool calls")
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=_whole(0, 65535), default=8377)
    serve.add_argument("--workers", type=_whole(1), default=None, help="default: one per core")
    serve.add_argument("--tier", choices=["wasm"], help="run tools in WebAssembly; needs astra-jax[wasm]")
    serve.set_defaults(run=_sandbox_serve, patience_seconds=None)  # uvicorn has a rule of its own

    _config_command(commands, "sft", "supervised fine-tuning on trajectories and gold episodes", _sft)
    rl = _config_command(commands, "rl", "multi-turn GRPO with the sandbox", _rl)
    _add_sandbox(rl)

    evaluate = commands.add_parser("evaluate", help="measure a policy").add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK"
    )
    held_out = _config_command(evaluate, "environments", "held-out environments", _evaluate_environments)
    _add_sandbox(held_out)

    convert = commands.add_parser("convert", help="checkpoints to and from HuggingFace").add_subparsers(
        dest="direction", required=True, metavar="DIRECTION"
    )
    for direction, run, kept, text in (
        (
            "hf-to-orbax",
            _hf_to_orbax,
            "float32, as training wants them",
            "a HuggingFace folder to a checkpoint of ours",
        ),
        ("orbax-to-hf", _orbax_to_hf, "as they are", "a checkpoint of ours to a HuggingFace folder"),
    ):
        command = convert.add_parser(direction, help=text)
        command.add_argument("source", type=Path, metavar="SRC")
        command.add_argument("destination", type=Path, metavar="DST", help="new, or an earlier one to replace")
        command.add_argument("--dtype", choices=["float32", "bfloat16"], help=f"of the weights in DST; default: {kept}")
        command.set_defaults(run=run)

    plan = _config_command(commands, "plan", "memory, FLOPs and roofline of a pod that is not there", _plan)
    plan.set_defaults(patience_seconds=0.5)  # it holds nothing, and compilers hear no signal
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


def _add_sandbox(command: argparse.ArgumentParser) -> None:
    command.add_argument("--sandbox", type=_http_url, metavar="URL", help=_SANDBOX_HELP)


def _quickstart(options: argparse.Namespace) -> int | None:
    from astra_jax.recipes.stages import QUICKSTART

    with _lock_beside(options.out, QUICKSTART, options.tool_documents):
        from astra_jax.cli.compile_cache import keep_compiled_programs
        from astra_jax.recipes.quickstart import quickstart
        from astra_jax.recipes.quickstart_evaluation import closing_table

        keep_compiled_programs()
        try:
            summary = quickstart(
                options.out, seed=options.seed, tool_documents=options.tool_documents, resume=options.resume
            )
        except Terminated as ended:  # the stage is saved, the recipe is not at its end
            return 128 + ended.signum
    print(closing_table(summary))
    minutes = summary["seconds"]["total"] / 60
    print(f"quickstart: done in {minutes:.1f} minutes -> {options.out}/report.html, {options.out}/summary.json")
    return None


def _synthesize_tools(options: argparse.Namespace) -> None:
    from synthesis.tools.ingestion import TOOL_DOCUMENTS
    from synthesis.trajectories.pipeline import synthesize_tools

    with _lock_beside(options.out, TOOL_DOCUMENTS, options.sources):
        report = asyncio.run(synthesize_tools(options.sources, options.out))
    print(report.json_line() if options.json else report.closing_line())


def _trajectories(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.trajectories.pipeline import TRAJECTORIES, TrajectoriesConfig, synthesize_trajectories

    config = load_config(TrajectoriesConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.cost.trajectories import estimate_costs

        _print_estimate(options, "trajectories", asyncio.run(estimate_costs(config)), config.teacher)
        return

    async def run() -> StageReport:
        async with _teacher(config.teacher) as teacher:
            return await synthesize_trajectories(config, teacher)

    with _lock_beside(config.out, TRAJECTORIES, config.tool_documents):
        report = asyncio.run(run())
    print(report.json_line() if options.json else report.closing_line())


def _environments(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from synthesis.environments.pipeline import ENVIRONMENTS, EnvironmentsConfig, synthesize_environments

    config = load_config(EnvironmentsConfig, options.config, options.overrides)
    if options.estimate:
        from synthesis.cost.environments import estimate_costs

        with _sandbox(options) as url:
            _print_estimate(options, "environments", asyncio.run(estimate_costs(config, url)), config.teacher)
        return

    async def run(url: str) -> StageReport:
        async with _teacher(config.teacher) as teacher:
            return await synthesize_environments(config, teacher, url)

    sources = (*config.knowledge, *config.disjoint_from)
    with _lock_beside(config.out, ENVIRONMENTS, sources), _sandbox(options) as url:
        report = asyncio.run(run(url))
    print(report.json_line() if options.json else report.closing_line())


def _print_estimate(
    options: argparse.Namespace, track: str, estimate: CostEstimate, prices: OpenAITeacherConfig | None
) -> None:
    print(estimate.json_line(track, prices) if options.json else estimate.table(prices))


@contextlib.asynccontextmanager
async def _teacher(config: OpenAITeacherConfig | None) -> AsyncIterator[Teacher]:
    """The endpoint that the config names, or the embedded teacher."""
    from synthesis.procedural.teacher import ProceduralTeacher
    from synthesis.teacher.openai import OpenAITeacher

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
    from astra_jax.recipes.data_sets import count_records, describe

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


def _lock_beside(out: Path, result: Result, sources: Iterable[Path] = ()) -> contextlib.AbstractContextManager[None]:
    """The lock for a folder that is replaced as a whole: a file beside it; refused where that would lose something."""
    from astra_jax.training.run_lock import run_lock
    from synthesis.destination import require_destination

    require_destination(out, result, sources=sources)
    out = out.resolve()
    return run_lock(out.with_name(f"{out.name}.lock"))


@contextlib.contextmanager
def _sandbox(options: argparse.Namespace) -> Iterator[str]:
    """The sandbox that --sandbox names, when it answers, or one of our own."""
    from sandbox.client import first_contact
    from sandbox.local import local_sandbox

    if options.sandbox is None:
        with local_sandbox() as url:
            yield url
    else:
        first_contact(options.sandbox)
        yield options.sandbox


def _sft(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.mesh.hosts import are_hosts_announced, host_folder, join_hosts, require_shared_folder
    from astra_jax.sft.config import SFTConfig
    from astra_jax.sft.train import train_sft
    from astra_jax.training.run_lock import run_lock
    from astra_jax.training.run_record import SFT_RUN
    from synthesis.destination import require_destination

    config = load_config(SFTConfig, options.config, options.overrides)
    require_destination(config.out, SFT_RUN)
    keep_compiled_programs()
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    require_shared_folder(config.out)
    with run_lock(host_folder(config.out) / ".lock"):  # on every host, so that every host of a second run is refused
        figures = train_sft(config)
    _print_figures(options, "sft", figures, config.out)


def _rl(options: argparse.Namespace) -> None:
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.mesh.hosts import are_hosts_announced, join_hosts
    from astra_jax.rl.config import RLConfig
    from astra_jax.rl.start import require_one_host
    from astra_jax.rl.train import train_rl
    from astra_jax.training.run_lock import run_lock
    from astra_jax.training.run_record import RL_RUN
    from astra_jax.training.wandb_run import require_wandb
    from sandbox.client import AsyncSandboxClient
    from synthesis.destination import require_destination

    config = load_config(RLConfig, options.config, options.overrides)
    require_destination(config.out, RL_RUN)
    keep_compiled_programs()
    if config.mesh is not None or are_hosts_announced():
        join_hosts()
    require_one_host()
    require_wandb(config.wandb)  # before a sandbox is looked for

    async def run(url: str) -> dict:
        async with AsyncSandboxClient(url) as sandbox:
            return await train_rl(config, sandbox)

    with run_lock(config.out / ".lock"), _sandbox(options) as url:
        figures = asyncio.run(run(url))
    _print_figures(options, "rl", figures, config.out)


def _print_figures(options: argparse.Namespace, stage: str, figures: dict, out: Path) -> None:
    """End a run with its closing figures; those of an earlier command are said to be that."""
    shown = {name: value for name, value in figures.items() if name != "already_complete"}
    complete = "already complete, " if shown != figures else ""
    print(json.dumps({"stage": stage, **figures}) if options.json else f"{stage}: {complete}{shown} -> {out}")


def _evaluate_environments(options: argparse.Namespace) -> None:
    from astra_jax.chat.template import require_chat_template
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.episodes.log import write_episodes
    from astra_jax.episodes.rollout import RolloutEngine
    from astra_jax.evaluate.environments import (
        Evaluation,
        EvaluationConfig,
        evaluate_environments,
        logged_episodes,
        open_evaluation,
    )
    from astra_jax.training.run_record import EVALUATION
    from sandbox.client import AsyncSandboxClient
    from synthesis.destination import require_destination, whole_file
    from synthesis.record_io import RecordSource, require_records
    from synthesis.records import Environment

    config = load_config(EvaluationConfig, options.config, options.overrides)
    keep_compiled_programs()
    require_destination(config.out, EVALUATION)
    record = open_evaluation(config)
    if record.figures is not None:
        print(
            json.dumps(record.figures) if options.json else f"evaluate: already complete -> {config.out}/figures.json"
        )
        return
    policy = load_policy(config.policy)
    require_chat_template(config.policy, policy.tokenizer)
    source = RecordSource(config.environments, Environment)
    require_records(source)
    environments = list(source)

    async def run(url: str) -> Evaluation:
        async with AsyncSandboxClient(url) as sandbox:
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
            return await evaluate_environments(engine, policy.params, environments, config, seed=config.seed)

    with _sandbox(options) as url:
        evaluation = asyncio.run(run(url))
    name = config.policy.parent.name if config.policy.name == "policy" else config.policy.name
    figures = {"policy": name, "temperature": config.rollout.temperature, **evaluation.to_json()}
    record.begin()
    lines = logged_episodes(
        evaluation.groups,
        policy.tokenizer,
        policy=name,
        per_environment=config.log_episodes_per_environment,
    )
    write_episodes(config.out / "episodes.jsonl", lines)
    with whole_file(config.out / "figures.json") as file:
        file.write_text(json.dumps(figures, indent=2) + "\n")
    record.finish(figures)
    print(json.dumps(figures) if options.json else f"evaluate: {figures} -> {config.out}/figures.json")


def _hf_to_orbax(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import CHECKPOINT, hf_to_orbax
    from astra_jax.cli.compile_cache import keep_compiled_programs

    keep_compiled_programs()
    with _lock_beside(options.destination, CHECKPOINT, [options.source]):
        model = hf_to_orbax(options.source, options.destination, param_dtype=options.dtype or "float32")
    print(f"convert: {model.num_parameters} parameters -> {options.destination}")


def _orbax_to_hf(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import orbax_to_hf
    from astra_jax.checkpoints.hf import HF_FOLDER
    from astra_jax.cli.compile_cache import keep_compiled_programs

    keep_compiled_programs()
    with _lock_beside(options.destination, HF_FOLDER, [options.source]):
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
    from astra_jax.recipes.data_sets import describe
    from astra_jax.report import write_report

    print(f"report -> {write_report(options.folder, describe)}")
