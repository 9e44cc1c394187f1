"""Every subcommand of `astra`: its options, their help, and the function that runs it."""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from astra_jax.cli.arguments import (
    MOST_SEED,
    Commands,
    Parser,
    add_devices,
    add_sandbox,
    config_command,
    group,
    whole_number,
)
from astra_jax.cli.benchmarks import add_benchmarks
from astra_jax.cli.config import KINDS
from astra_jax.cli.serve import add_serve
from astra_jax.errors import UsageError


def astra_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="astra",
        description="Train tool-using language-model agents: tool documents and knowledge in, HuggingFace weights out.",
        epilog="Start with `astra quickstart`; configs are TOML files in configs/, and key=value overrides their keys.",
    )
    parser.add_argument("--version", action="version", version=f"astra {_version()}")
    parser.set_defaults(after_signal="", patience_seconds=30.0, compiles=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_quickstart(commands)
    _add_init(commands)
    _add_synthesize(commands)
    _add_records(commands)
    _add_sandbox_service(commands)
    _add_training(commands)
    _add_evaluate(commands)
    add_serve(commands)
    _add_chat(commands)
    _add_replay(commands)
    _add_rescore(commands)
    _add_convert(commands)
    _add_plan(commands)
    _add_rehearse(commands)
    _add_launch(commands)
    _add_doctor(commands)
    _add_config(commands)
    _add_report(commands)
    _add_completion(commands)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version("astra-jax")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _add_quickstart(commands: Commands) -> None:
    quickstart = commands.add_parser("quickstart", help="the whole recipe with a tiny Qwen3 on this machine")
    add = quickstart.add_argument
    add("--out", type=Path, default=Path("runs/quickstart"), help="where everything is written")
    add("--seed", type=whole_number(0, MOST_SEED), default=0, help="the same seed gives the same records and curves")
    add("--tool-documents", type=Path, action="append", default=[], metavar="DIR", help="your own tool documents")
    add("--resume", action="store_true", help="go on with the stages that are not finished")
    text = "; with --resume it goes on from there"
    quickstart.set_defaults(run=_quickstart, after_signal=text, compiles=True)


def _quickstart(options: argparse.Namespace) -> int | None:
    from astra_jax.cli.surroundings import lock_beside
    from astra_jax.recipes.quickstart import how_to_talk, quickstart
    from astra_jax.recipes.quickstart_evaluation import closing_table
    from astra_jax.recipes.stages import QUICKSTART
    from astra_jax.training.termination import Terminated
    from synthesis.run.places import address_of

    if address := address_of(options.out):
        raise UsageError(
            f"--out: expected a folder of this machine, found {address}; the stages write there when they run alone"
        )
    out, documents = options.out, options.tool_documents
    with lock_beside(out, QUICKSTART, documents):
        try:
            summary = quickstart(out, seed=options.seed, tool_documents=documents, resume=options.resume)
        except Terminated as ended:  # the stage is saved, the recipe is not at its end
            return 128 + ended.signum
    print(closing_table(summary))
    minutes = summary["seconds"]["total"] / 60
    print(f"quickstart: done in {minutes:.1f} minutes -> {out}/report.html, {out}/summary.json")
    print(how_to_talk(out))
    return None


def _add_init(commands: Commands) -> None:
    text = "a project of your own: configs, a reward, functions and questions, and a tiny base to try them with"
    init = commands.add_parser("init", help=text)
    init.add_argument("folder", type=Path, metavar="DIR", help="a new or empty folder")
    init.set_defaults(run=_init, compiles=True)


def _init(options: argparse.Namespace) -> None:
    from astra_jax.recipes.project import begin_project

    print(f"init: {', '.join(begin_project(options.folder))} -> {options.folder}; its README.md has the next commands")


def _add_synthesize(commands: Commands) -> None:
    synthesize = group(commands, "synthesize", "make training data", "TRACK")
    tools = synthesize.add_parser("tools", help="read and normalise tool documents only")
    tools.add_argument("sources", nargs="+", type=Path, metavar="SRC", help="files or folders, in any known format")
    tools.add_argument("--out", type=Path, required=True)
    tools.add_argument("--json", action="store_true", help="end with one machine-readable line")
    tools.set_defaults(run="synthesize:tools")
    functions = synthesize.add_parser(
        "functions",
        help="environments of your own Python functions and questions",
        description="Runs each question's calls in the sandbox, takes their replies as its answers, and proves it as "
        "any other environment. docs/guides/own-functions.md shows both files.",
    )
    functions.add_argument("functions", type=Path, metavar="FUNCTIONS.py", help="functions with types and docstrings")
    text = "a question a line, with the calls that it needs"
    functions.add_argument("questions", type=Path, metavar="QUESTIONS.jsonl", help=text)
    functions.add_argument("--out", type=Path, required=True)
    functions.add_argument("--json", action="store_true", help="end with one machine-readable line")
    functions.set_defaults(run="synthesize:functions")
    add_sandbox(functions)
    text = "conversations with tools, scored on seven axes"
    trajectories = config_command(synthesize, "trajectories", text, "synthesize:trajectories")
    text = "questions whose sub-answers are proven by running tools"
    environments = config_command(synthesize, "environments", text, "synthesize:environments")
    add_sandbox(environments)
    for track in (trajectories, environments):
        track.set_defaults(after_signal="; finished work is kept, and the same command goes on from there")
        track.add_argument(
            "--estimate",
            action="store_true",
            help="only say how many calls and tokens a language model would be asked for, and what they cost: a small "
            "run with the embedded teacher, scaled up; its replies are short, retries and repairs are not counted",
        )


def _add_records(commands: Commands) -> None:
    records = group(commands, "records", "look at, count, verify, attack, audit and export records", "ACTION")
    show = records.add_parser("show", help="print the first records")
    show.add_argument("--count", type=whole_number(1), default=1, help="number of records")
    show.add_argument("--json", action="store_true", help="whole records, as JSON")
    stats = records.add_parser("stats", help="the paper's table of these records, beside the paper's figures")
    stats.add_argument("--json", action="store_true", help="everything that is counted, on one line")
    against = "benchmark files (JSON, JSON lines, text): also count what the records share with them"
    stats.add_argument("--against", nargs="+", type=Path, default=[], metavar="FILE", help=against)
    verify = records.add_parser("verify", help="run gold answers again in the sandbox, and compare the digests")
    add_sandbox(verify)
    attack = records.add_parser(
        "attack",
        help="run policies that must not succeed, and write the certificate of a set of environments",
        description="Lets policies without skill act in every environment, and the gold policy, which must have F1 1. "
        "DIR may be a file of JSON lines with the columns of ASTRA's published data, or the name of an environment "
        "that is installed: verifiers:MODULE or openenv:MODULE:FUNCTION, which runs confined. `records verify` "
        "computes the certificate again; max_attack_f1 in the config of an RL run bounds the F1 of the best attack.",
    )
    text = "folder for certificate.json and certificate.html; default: DIR, or ./certificate if DIR is no folder"
    attack.add_argument("--out", type=Path, metavar="FOLDER", help=text)
    attack.add_argument("--json", action="store_true", help="end with one machine-readable line")
    text = "interpreter that has a foreign environment; default: this one"
    attack.add_argument("--python", type=Path, default=Path(sys.executable), metavar="FILE", help=text)
    attack.add_argument("--count", type=whole_number(1), default=50, help="tasks of a foreign environment")
    add_sandbox(attack)
    audit = records.add_parser("audit", help="plant faults into trajectories, and print the share that passes")
    audit.add_argument("--count", type=whole_number(1), default=200, help="trajectories that are sampled")
    audit.add_argument("--seed", type=whole_number(0), default=0)
    audit.add_argument("--json", action="store_true", help="counts and AUC, on one line")
    export = records.add_parser("export", help="write rows for any other trainer, with a data card")
    formats = ["jsonl", "parquet", "tfds", "openai", "astra", "verl", "trl"]
    export.add_argument("--format", choices=formats, default="jsonl")
    export.add_argument("--split", type=_split, default="train", metavar="NAME", help="split in the data card")
    export.add_argument("--license", default="unknown", metavar="NAME", help="for the data card, e.g. apache-2.0")
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    against = "benchmark files: the data card says what the records share with them"
    export.add_argument("--against", nargs="+", type=Path, default=[], metavar="FILE", help=against)
    for command in (show, stats, verify, attack, audit, export):
        command.add_argument("directory", type=Path, metavar="DIR")
        command.set_defaults(run=f"records:{command.prog.split()[-1]}")


def _split(text: str) -> str:
    if not re.fullmatch(r"\w+", text):  # as the hub has it
        raise argparse.ArgumentTypeError(f"expected letters, digits and underscores, found {text!r}")
    return text


def _add_sandbox_service(commands: Commands) -> None:
    serve = group(commands, "sandbox", "the service that runs model-written code", "ACTION").add_parser(
        "serve",
        help="listen for tool calls",
        description="Tools may import the standard library, and the packages of one folder: `pip install --target "
        "FOLDER numpy`, then `astra sandbox serve --packages FOLDER`. `/health` shows the tier, the packages and the "
        "versions. docs/sandbox.md describes the protection.",
    )
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=whole_number(0, 65535), default=8377)
    serve.add_argument("--workers", type=whole_number(1), default=None, help="default: one per core")
    text = "a folder made by `pip install --target FOLDER NAME ...`, whose packages tools may import and read"
    serve.add_argument("--packages", type=Path, metavar="FOLDER", help=text)
    serve.set_defaults(run=_serve_sandbox, patience_seconds=None)  # uvicorn handles signals itself


def _serve_sandbox(options: argparse.Namespace) -> None:
    from sandbox.server import serve

    serve(host=options.host, port=options.port, workers=options.workers, packages=options.packages)


def _add_training(commands: Commands) -> None:
    sft = config_command(commands, "sft", "supervised fine-tuning on trajectories and gold episodes", "training:sft")
    sft.set_defaults(compiles=True)
    rl = config_command(commands, "rl", "multi-turn GRPO with the sandbox", "training:rl")
    rl.set_defaults(compiles=True)
    add_sandbox(rl)


def _add_evaluate(commands: Commands) -> None:
    evaluate = group(commands, "evaluate", "measure a policy", "BENCHMARK")
    environments = config_command(evaluate, "environments", "held-out environments", "episodes:evaluate")
    environments.description = (
        "Writes figures.json, with intervals over environments, environments.jsonl and episodes.jsonl. One policy at "
        "two temperatures is two runs: rollout.temperature=1, and rollout.temperature=0 (greedy) with another `out`."
    )
    text = "in the policy's place, a program that learns nothing: it matches the words of question and documents"
    environments.add_argument("--baseline", choices=["lexical"], help=text)
    environments.set_defaults(compiles=True)
    add_devices(environments)
    text = "copies of the policy, each of which runs a part of the episodes"
    environments.add_argument("--data-parallel-size", type=whole_number(1), default=1, metavar="N", help=text)
    add_sandbox(environments)
    text = evaluate.add_parser("text", help="loss per token on a public text, which shows what training has cost")
    text.add_argument("policy", type=Path, metavar="POLICY", help="a policy folder")
    text.add_argument("--file", type=Path, metavar="FILE", help="a text; default: the documentation of this Python")
    text.add_argument("--windows", type=whole_number(1), default=16, metavar="N", help="windows of 512 tokens to read")
    text.add_argument("--json", action="store_true", help="the loss of each window as well, on one line")
    text.set_defaults(run="episodes:evaluate_text", compiles=True)
    add_benchmarks(evaluate)


def _add_replay(commands: Commands) -> None:
    replay = commands.add_parser(
        "replay",
        help="sample logged episodes again and compare every token",
        description="Samples the messages of logged episodes again, each alone, from their seeds and slots, and "
        "compares every token, log-prob and call; the replies of tools are those of the log. Ends with 1 if one "
        "differs.",
    )
    add = replay.add_argument
    add("log", type=Path, metavar="EPISODES.jsonl")
    add("--policy", type=Path, required=True, metavar="DIR", help="the policy folder that spoke; of step 0 its `init`")
    add("--checkpoint", type=Path, metavar="DIR", help="weights that spoke: of step 16's log `checkpoints/00000016`")
    add("--named", metavar="NAME", help="only episodes of this policy, as the log names it")
    add("--count", type=whole_number(1), default=1, help="number of episodes, from the first one on")
    replay.set_defaults(run="episodes:replay_log", compiles=True)


def _add_rescore(commands: Commands) -> None:
    rescore = commands.add_parser(
        "rescore",
        help="other rewards for logged episodes, without a model",
        description="Reads the episode logs of a run (its episodes.jsonl, or those of its training steps) and prints "
        "the mean of each reward beside the one that the run had: f1 (the paper's), recall, precision, "
        "refusals, f1_and_answer (astra_jax/episodes/rewards.py), or MODULE:FUNCTION of your own file "
        "in the working directory.",
    )
    add = rescore.add_argument
    add("source", type=Path, metavar="RUN", help="a run's folder, or one log")
    add("--reward", action="append", metavar="NAME", help="only this reward; may be given several times")
    add("--out", type=Path, metavar="FILE.jsonl", help="write all episodes with that one reward")
    rescore.set_defaults(run="rescore:rescore")


def _add_convert(commands: Commands) -> None:
    convert = group(commands, "convert", "checkpoints to and from HuggingFace", "DIRECTION")
    for direction, text, dtype in (
        ("hf-to-orbax", "a HuggingFace folder to a checkpoint of ours", "float32"),
        ("orbax-to-hf", "a checkpoint of ours to a HuggingFace folder", None),
        ("gguf-to-hf", "a GGUF file to a HuggingFace folder", "float32"),
    ):
        command = convert.add_parser(direction, help=text)
        command.add_argument("source", type=Path, metavar="SRC")
        command.add_argument("destination", type=Path, metavar="DST", help="new, or an earlier one to replace")
        about = f"of the weights in DST; default: {dtype or 'as they are'}"
        command.add_argument("--dtype", choices=["float32", "bfloat16"], default=dtype, help=about)
        command.set_defaults(run=_convert, compiles=True)


def _convert(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.convert import CHECKPOINT, hf_to_orbax, orbax_to_hf
    from astra_jax.checkpoints.gguf_file import gguf_to_hf
    from astra_jax.checkpoints.hf import HF_FOLDER
    from astra_jax.cli.surroundings import lock_beside

    source, destination, direction = options.source, options.destination, options.direction
    convert = {"hf-to-orbax": hf_to_orbax, "orbax-to-hf": orbax_to_hf, "gguf-to-hf": gguf_to_hf}[direction]
    with lock_beside(destination, CHECKPOINT if direction == "hf-to-orbax" else HF_FOLDER, [source]):
        model = convert(source, destination, dtype=options.dtype)
    print(f"convert: {model.num_parameters} parameters -> {destination}")


def _add_plan(commands: Commands) -> None:
    text = "memory, FLOPs and roofline of a run on a pod that is not there"
    plan = config_command(commands, "plan", text, _plan)
    plan.description = (
        "Compiles every step of `astra sft CONFIG` or `astra rl CONFIG` for a pod; exit 1 where one does not fit."
    )
    plan.set_defaults(patience_seconds=0.5)  # it holds nothing, and compilers hear no signal
    plan.add_argument("--topology", required=True, metavar="T", help="e.g. v5p:4x4x4, 2*v5p:4x4x4, v5e:2x4, h100:8")
    plan.add_argument(
        "--fit",
        type=Path,
        metavar="FILE",
        help="write the config with the layout that is quickest there, and plan that",
    )
    plan.add_argument(
        "--time-line",
        nargs="?",
        const="",
        metavar="RUN",
        help="simulate an update instead, with the paper's turns or the episodes of a recorded run, and what-ifs",
    )
    plan.add_argument("--chip-hour", type=float, metavar="PRICE", help="price of a chip for an hour, for the time line")


def _plan(options: argparse.Namespace) -> int | None:
    from astra_jax.plan import PLAN_ENVIRONMENT

    os.environ.update(PLAN_ENVIRONMENT)  # before JAX is imported
    from astra_jax.plan.plan import load_run_config, plan

    config = load_run_config(options.config, options.overrides)
    if options.fit is not None:
        from astra_jax.plan.fit import fitted, written

        before = options.config.read_text(encoding="utf-8")
        written(before, config, options.topology)  # raises before minutes of compiling what would be raised after them
        config, tried = fitted(config, options.topology)
        text = written(before, config, options.topology)
        options.fit.write_text(text, encoding="utf-8")
        print("\n".join([*tried, f"fit -> {options.fit}"]), file=sys.stderr if options.json else sys.stdout)
    if options.time_line is not None:
        _time_line(config, options)
        return None
    planned = plan(config, options.topology)
    print(json.dumps(planned.to_json()) if options.json else planned.render())
    return None if planned.fits else 1


def _time_line(config: object, options: argparse.Namespace) -> None:
    from astra_jax.plan.what_ifs import time_lines
    from astra_jax.plan.workload import paper_workload, recorded_workload
    from astra_jax.rl.config import RLConfig

    if not isinstance(config, RLConfig):
        raise UsageError("--time-line is of runs of `astra rl`; name a config with [rollout]")
    workload = recorded_workload(Path(options.time_line)) if options.time_line else paper_workload()
    found, table = time_lines(config, workload, options.topology, options.chip_hour)
    print(json.dumps({words: dataclasses.asdict(line) for words, line in found.items()}) if options.json else table)


def _add_rehearse(commands: Commands) -> None:
    text = "the life of a pod with a run's config, on this machine"
    rehearse = config_command(commands, "rehearse", text, _rehearse)
    rehearse.description = (
        "Runs a config, made small, on hosts that are processes of this machine and share an emulated bucket. Kills "
        "one, preempts one, moves to other hosts, takes the sandbox and the bucket away, and compares the losses with "
        "those of an undisturbed run. Exit 1 if a row of its table does not hold."
    )
    add = rehearse.add_argument
    add("--hosts", type=int, choices=(2, 4, 8), default=4, help="processes that are hosts")
    add("--out", type=Path, metavar="DIR", help="a new folder for the logs; without it they are kept if a row fails")
    add("--outage", type=whole_number(1), default=60, metavar="SECONDS", help="for which the bucket fails")
    rehearse.set_defaults(compiles=True)


def _rehearse(options: argparse.Namespace) -> int | None:
    os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported
    if importlib.util.find_spec("gcp_storage_emulator") is None:
        raise UsageError('astra rehearse needs an emulated bucket: pip install "astra-jax[rehearse]"')
    from astra_jax.rehearse.rehearsal import rehearse

    out = options.out or Path(tempfile.mkdtemp(prefix="astra_rehearsal_"))
    out.mkdir(parents=True, exist_ok=True)
    if any(out.iterdir()):
        raise UsageError(f"--out: expected a new or an empty folder, found files in {out}")
    rows = rehearse(options.config, options.overrides, hosts=options.hosts, out=out, outage_seconds=options.outage)
    if options.json:
        print(json.dumps({"rows": [row._asdict() for row in rows]}))
    held = all(row.held for row in rows)
    if held and options.out is None:
        shutil.rmtree(out)
    return None if held else 1


def _add_launch(commands: Commands) -> None:
    launch = config_command(commands, "launch", "print what starts a run on a TPU pod", _launch)
    launch.description = (
        "Prints a JobSet for `kubectl apply -f -`, or a script of `gcloud`, that runs `astra sft CONFIG` or "
        "`astra rl CONFIG` on every host of a TPU slice. It sends nothing, and holds no secret."
    )
    add = launch.add_argument
    add("--topology", required=True, metavar="T", help="a slice, e.g. v5p:4x4x4, v5e:4x8, v6e:2x4")
    add("--slices", type=whole_number(1, 256), default=1, help="so many of them; mesh.data is then a multiple")
    add("--image", required=True, help="a container image with this package, e.g. of our Dockerfile")
    add("--on", choices=("gke", "compute-engine"), default="gke", help="the cluster's kind")
    add("--name", help="of the job; by default that of the config's file")
    add_sandbox(launch)


def _launch(options: argparse.Namespace) -> None:
    from astra_jax.launch.launch import launch_text
    from astra_jax.plan.plan import load_run_config

    text = launch_text(
        load_run_config(options.config, options.overrides),
        options.config.read_text(encoding="utf-8"),
        options.overrides,
        place=options.on,
        topology=options.topology,
        slices=options.slices,
        image=options.image,
        name=options.name or options.config.stem.lower().replace("_", "-"),
        sandbox=options.sandbox,
    )
    print(text, end="")


def _add_chat(commands: Commands) -> None:
    chat = commands.add_parser(
        "chat",
        help="talk to a policy in the terminal, with the tools of an environment",
        description="Talks to a policy folder or a HuggingFace folder. With --environment the policy has the tools of "
        "one environment, which run in the sandbox; each call and its response are shown.",
    )
    add = chat.add_argument
    add("checkpoint", type=Path, metavar="CHECKPOINT", help="a policy folder or a HuggingFace folder")
    add("--environment", type=Path, metavar="DIR", help="a record directory of environments")
    add("--number", type=whole_number(0), default=0, metavar="N", help="which of them, from 0 on")
    add("--temperature", type=float, default=0.0, help="0 says the likeliest; 1 samples as in training")
    add("--seed", type=whole_number(0, MOST_SEED), default=0, help="of the draws, above temperature 0")
    add("--max-tokens", type=whole_number(1), default=512, metavar="N", help="longest message")
    add("--max-model-len", type=whole_number(4), metavar="N", help="longest sequence; default: the context, up to 8192")
    add(
        "--no-thinking",
        action="store_true",
        help="begin each message behind empty thoughts, as Qwen3's template has it",
    )
    add("--dtype", choices=["float32", "bfloat16"], help="type of weights and matrix products; default: as stored")
    add_sandbox(chat)
    chat.set_defaults(run="chat:chat", compiles=True)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="what this machine has, what is missing, and how to get it",
        description="Looks at versions, memory, devices, the sandbox (which it starts and attacks), extras and keys. "
        "Exit 1 if something is missing that the quickstart needs. A key is never shown, only whether it is set.",
    )
    doctor.add_argument("--json", action="store_true", help="one line for programs")
    doctor.set_defaults(run="doctor:examine")


def _add_config(commands: Commands) -> None:
    config = commands.add_parser(
        "config",
        help="every key of a config, with its default and one line",
        description="Prints every key that a config may set: its path, as in key=value, its default, and one line. "
        "`synthesis` prints both tracks, `evaluation` that of environments and those of the benchmarks.",
    )
    config.add_argument("kind", choices=KINDS)
    config.set_defaults(run="config:print_keys")


def _add_report(commands: Commands) -> None:
    report = commands.add_parser(
        "report",
        help="one self-contained HTML page of a run or of a record directory",
        description="Writes one self-contained HTML page: that of a run's folder into it, as report.html; that of a "
        "record directory (trajectories or environments) beside it, as DIR.html, because its own files are "
        "check-summed; that of several runs, side by side, beside the first, as DIR_OTHER.html.",
    )
    report.add_argument("folder", type=Path, metavar="DIR", help="the `out` folder of a run or of a synthesis")
    report.add_argument("beside", type=Path, nargs="*", metavar="OTHER", help="further runs to show beside it")
    report.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> None:
    from astra_jax.recipes.data_sets import describe
    from astra_jax.report import page_path, write_report
    from synthesis.run.places import published

    # The page of a record directory, or of several runs, lies outside of the folder.
    with published(page_path(options.folder, *options.beside)):
        print(f"report -> {write_report(options.folder, describe, beside=options.beside)}")


def _add_completion(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="what makes a shell complete commands, options and files",
        description='Prints a script for your shell: eval "$(astra completion bash)" in ~/.bashrc, or '
        "astra completion zsh > ~/.zfunc/_astra for zsh.",
    )
    completion.add_argument("shell", choices=("bash", "zsh", "tcsh"))
    completion.set_defaults(run="completion:print_script")
