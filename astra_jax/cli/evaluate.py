"""`astra evaluate`: held-out figures of a policy, and its episodes; public benchmarks are in `benchmarks.py`."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, add_sandbox, config_command
from astra_jax.cli.benchmarks import add_benchmarks
from astra_jax.cli.surroundings import ending_judge_for, with_sandbox

if TYPE_CHECKING:
    from sandbox.client import AsyncSandboxClient


def add_evaluate(commands: Commands) -> None:
    """Add the command."""
    evaluate = commands.add_parser("evaluate", help="measure a policy").add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK"
    )
    environments = config_command(evaluate, "environments", "held-out environments", _environments)
    environments.description = (
        "Writes figures.json, with intervals over environments, environments.jsonl and episodes.jsonl. One policy at "
        "two temperatures is two runs: rollout.temperature=1, and rollout.temperature=0 (greedy) with another `out`. "
        "The baseline learns nothing: it matches the words of question and documents."
    )
    environments.add_argument(
        "--baseline",
        choices=["lexical"],
        help="in the policy's place, a program that learns nothing: it matches the words of question and documents",
    )
    add_sandbox(environments)
    add_benchmarks(evaluate)


def _environments(options: argparse.Namespace) -> None:
    from astra_jax.chat.template import require_chat_template
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.episodes.rollout import RolloutEngine
    from astra_jax.evaluate.baselines import evaluate_program, lexical
    from astra_jax.evaluate.environments import (
        Evaluation,
        EvaluationConfig,
        evaluate_environments,
        logged_episodes,
        open_evaluation,
        write_evaluation,
    )
    from astra_jax.evaluate.slices import evaluated
    from astra_jax.training.run_record import EVALUATION
    from synthesis.record_io import RecordSource, require_records
    from synthesis.records import Environment, JsonObject
    from synthesis.run.destination import require_destination

    config = load_config(EvaluationConfig, options.config, options.overrides)
    keep_compiled_programs()
    require_destination(config.out, EVALUATION)
    record = open_evaluation(config, baseline=options.baseline)
    if record.figures is not None:
        closing_line = f"evaluate: already complete -> {config.out}/figures.json"
        print(json.dumps(record.figures) if options.json else closing_line)
        return
    source = RecordSource(config.environments, Environment)
    require_records(source)
    environments = list(source)

    # Before a sandbox is looked for; a baseline has no policy.
    if options.baseline is None:
        policy = load_policy(config.policy)
        require_chat_template(config.policy, policy.tokenizer)

    async def run(sandbox: AsyncSandboxClient) -> Evaluation:
        if options.baseline is not None:
            return await evaluate_program(lexical, environments, config, sandbox)
        async with ending_judge_for(config.ending_judge, config.out) as judge:
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout, judge=judge)
            return await evaluate_environments(engine, policy.params, environments, config, seed=config.seed)

    evaluation = with_sandbox(options, source.card.packages, run)
    by_environment = list(map(evaluated, evaluation.groups))
    figures: JsonObject = {"policy": options.baseline}
    lines: list[JsonObject] = []
    if options.baseline is None:  # a program samples no tokens, so it has no temperature and no log
        name = config.policy.parent.name if config.policy.name == "policy" else config.policy.name
        figures = {"policy": name, "temperature": config.rollout.temperature}
        most = config.log_episodes_per_environment
        lines = logged_episodes(evaluation.groups, policy.tokenizer, policy=name, per_environment=most)
    figures |= evaluation.in_full(by_environment, seed=config.seed)
    write_evaluation(record, figures, by_environment, lines)
    shown = {name: value for name, value in figures.items() if name != "slices"}
    print(json.dumps(figures) if options.json else f"evaluate: {shown} -> {config.out}/figures.json")
