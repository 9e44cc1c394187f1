"""`astra evaluate environments | text` and `astra replay`: a policy speaks, anew or as it has spoken, or reads."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from astra_jax.chat.template import require_chat_template
from astra_jax.checkpoints.checkpoint import load_params
from astra_jax.checkpoints.policy import Policy, load_for_sampling, load_policy
from astra_jax.cli.surroundings import with_sandbox
from astra_jax.config import load_config
from astra_jax.episodes.log import LoggedEpisode, read_episodes
from astra_jax.episodes.rollout import RolloutEngine
from astra_jax.errors import RunUnreadable, UsageError
from astra_jax.evaluate.baselines import evaluate_program, lexical
from astra_jax.evaluate.environments import (
    Evaluation,
    EvaluationConfig,
    evaluate_environments,
    logged_episodes,
    open_evaluation,
    write_evaluation,
)
from astra_jax.evaluate.replay import Replay, replay
from astra_jax.evaluate.slices import evaluated
from astra_jax.evaluate.text_loss import public_text, text_loss, windows_of
from astra_jax.mesh.layouts import sampling_mesh
from astra_jax.mesh.placement import in_force
from astra_jax.training.run_record import EVALUATION
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource, require_records
from synthesis.records import Environment, JsonObject
from synthesis.run.destination import require_destination
from synthesis.run.places import claim, published


def evaluate(options: argparse.Namespace) -> None:
    """Evaluate a policy, or a program that learns nothing, in held-out environments."""
    config = load_config(EvaluationConfig, options.config, options.overrides)
    with published(config.out):
        _evaluate(options, config)


def _evaluate(options: argparse.Namespace, config: EvaluationConfig) -> None:
    require_destination(config.out, EVALUATION)
    mesh = sampling_mesh(options.data_parallel_size, options.tensor_parallel_size)
    record = open_evaluation(config, baseline=options.baseline, dtype=options.dtype)
    if record.figures is not None:
        closing_line = f"evaluate: already complete -> {config.out}/figures.json"
        print(json.dumps(record.figures) if options.json else closing_line)
        return
    source = RecordSource(config.environments, Environment)
    require_records(source)
    environments = list(source)

    # Before a sandbox is looked for; a baseline has no policy.
    if options.baseline is None:
        policy = load_for_sampling(config.policy, mesh=mesh, dtype=options.dtype)
        require_chat_template(config.policy, policy.tokenizer)

    claim(config.out)  # only now: a command that is refused ends no other
    say = partial(print, file=sys.stderr, flush=True)

    async def run(sandbox: AsyncSandboxClient) -> Evaluation:
        if options.baseline is not None:
            return await evaluate_program(lexical, environments, config, sandbox)
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
        return await evaluate_environments(engine, policy.params, environments, config, seed=config.seed, say=say)

    with in_force(mesh):
        evaluation = with_sandbox(options, source.card.packages, run)
    by_environment = list(map(evaluated, evaluation.groups))
    figures: JsonObject = {"policy": options.baseline}
    lines: list[JsonObject] = []
    if options.baseline is None:  # a program samples no tokens, so it has no temperature and no log
        name = config.policy.parent.name if config.policy.name == "policy" else config.policy.name
        figures = {"policy": name, "temperature": config.rollout.temperature}
        most = config.log_episodes_per_environment
        split = config.environments.name
        lines = logged_episodes(evaluation.groups, policy.tokenizer, policy=name, split=split, per_environment=most)
    figures |= evaluation.in_full(by_environment, seed=config.seed)
    write_evaluation(record, figures, by_environment, lines)
    shown = {name: value for name, value in figures.items() if name != "slices"}
    print(json.dumps(figures) if options.json else f"evaluate: {shown} -> {config.out}/figures.json")


def evaluate_text(options: argparse.Namespace) -> None:
    """Print the loss of a policy on a text."""
    try:
        text = public_text() if options.file is None else options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--file {options.file} cannot be read: {error}; name a text in UTF-8") from error
    policy = load_policy(options.policy)
    windows = windows_of(text, policy.tokenizer, count=options.windows)
    losses = text_loss(policy, windows)
    named = str(options.file or f"the documentation of Python {platform.python_version()}")
    loss, tokens = sum(losses) / len(losses), windows.size - len(windows)
    found: JsonObject = {"loss": round(loss, 4), "tokens": tokens, "text": named, "windows": list(losses)}
    print(json.dumps(found) if options.json else f"text: loss {loss:.4f} a token over {tokens:,} tokens of {named}")


def replay_log(options: argparse.Namespace) -> int | None:
    """Replay the first episodes of a log; return 1 if one differs."""
    chosen = [each for each in read_episodes(options.log) if options.named in (None, each.policy)][: options.count]
    if not chosen:
        raise RunUnreadable(f"{options.log} has no episode of {options.named or 'a policy'}; name another log")
    policy = load_policy(options.policy)
    if options.checkpoint is not None:
        _require_version(chosen, options.checkpoint)
        policy = Policy(*load_params(options.checkpoint), policy.tokenizer)

    async def replay_all() -> list[Replay]:
        return [await replay(each, policy) for each in chosen]

    replayed = asyncio.run(replay_all())
    for logged, found in zip(chosen, replayed, strict=True):
        print(f"{logged.environment_id} ({logged.policy}): {found.difference or 'the same'}")
    num_same = sum(not found.difference for found in replayed)
    print(
        f"replay: {num_same} of {len(chosen)} episodes the same, of {sum(len(each.tokens) for each in chosen)} tokens "
        f"and {sum(found.num_calls for found in replayed)} calls; log-probs apart by "
        f"{max(found.largest_logprob_difference for found in replayed):.1e} at most"
    )
    return 1 if num_same < len(chosen) else None


def _require_version(chosen: Sequence[LoggedEpisode], checkpoint: Path) -> None:
    versions = sorted({each.policy_version for each in chosen if each.policy_version is not None})
    if checkpoint.name.isdecimal() and versions not in ([], [int(checkpoint.name)]):
        raise RunUnreadable(
            f"{checkpoint} has the weights of policy version {int(checkpoint.name)}, but the episodes are of versions "
            f"{versions}; groups that had waited, or were rolled out during an update, have older ones"
        )
