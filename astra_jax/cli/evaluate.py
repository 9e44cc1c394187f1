"""`astra evaluate environments`: held-out figures of a policy, and its episodes."""

from __future__ import annotations

import argparse
import asyncio
import json

from astra_jax.cli.arguments import Commands, add_sandbox, config_command
from astra_jax.cli.surroundings import sandbox_for


def add_evaluate(commands: Commands) -> None:
    """Add the command."""
    evaluate = commands.add_parser("evaluate", help="measure a policy").add_subparsers(
        dest="benchmark", required=True, metavar="BENCHMARK"
    )
    environments = config_command(evaluate, "environments", "held-out environments", _environments)
    environments.add_argument(
        "--baseline",
        choices=["lexical", "every_tool"],
        help="in the policy's place, a program that learns nothing: one matches the words of question and documents, "
        "one calls every tool that it can fill in",
    )
    add_sandbox(environments)


def _environments(options: argparse.Namespace) -> None:
    from astra_jax.chat.template import require_chat_template
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.episodes.log import write_episodes
    from astra_jax.episodes.rollout import RolloutEngine
    from astra_jax.evaluate.baselines import evaluate_baseline
    from astra_jax.evaluate.environments import (
        EvaluationConfig,
        evaluate_environments,
        logged_episodes,
        open_evaluation,
    )
    from astra_jax.training.run_record import EVALUATION
    from sandbox.client import AsyncSandboxClient
    from synthesis.destination import require_destination, whole_file
    from synthesis.record_io import RecordSource, require_records
    from synthesis.records import Environment, JsonObject

    config = load_config(EvaluationConfig, options.config, options.overrides)
    keep_compiled_programs()
    require_destination(config.out, EVALUATION)
    record = open_evaluation(config, baseline=options.baseline)
    if record.figures is not None:
        print(
            json.dumps(record.figures) if options.json else f"evaluate: already complete -> {config.out}/figures.json"
        )
        return
    source = RecordSource(config.environments, Environment)
    require_records(source)
    environments = list(source)

    # Before a sandbox is looked for; a baseline has no policy.
    policy = load_policy(config.policy) if options.baseline is None else None
    if policy is not None:
        require_chat_template(config.policy, policy.tokenizer)

    async def run(url: str) -> tuple[JsonObject, list[JsonObject]]:
        async with AsyncSandboxClient(url) as sandbox:
            if policy is None:
                evaluation = await evaluate_baseline(options.baseline, environments, config, sandbox)
                return {"policy": options.baseline, **evaluation.to_json()}, []  # no tokens, so no line of the log
            engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
            evaluation = await evaluate_environments(engine, policy.params, environments, config, seed=config.seed)
        name = config.policy.parent.name if config.policy.name == "policy" else config.policy.name
        figures = {"policy": name, "temperature": config.rollout.temperature, **evaluation.to_json()}
        return figures, logged_episodes(
            evaluation.groups, policy.tokenizer, policy=name, per_environment=config.log_episodes_per_environment
        )

    with sandbox_for(options) as url:
        figures, lines = asyncio.run(run(url))
    record.begin()
    write_episodes(config.out / "episodes.jsonl", lines)
    with whole_file(config.out / "figures.json") as file:
        file.write_text(json.dumps(figures, indent=2) + "\n")
    record.finish(figures)
    print(json.dumps(figures) if options.json else f"evaluate: {figures} -> {config.out}/figures.json")
