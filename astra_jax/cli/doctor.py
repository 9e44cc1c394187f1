"""`astra doctor`: the causes of a log-prob mismatch (`mismatch`), and of an RL step that was not applied."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import MOST_SEED, Commands, add_sandbox, whole_number
from astra_jax.cli.surroundings import with_sandbox
from astra_jax.errors import UsageError

if TYPE_CHECKING:
    from astra_jax.evaluate.mismatch import Split
    from astra_jax.evaluate.scoring import Spoken
    from sandbox.client import AsyncSandboxClient


def add_doctor(commands: Commands) -> None:
    """Add the command."""
    doctor = commands.add_parser("doctor", help="find out what is wrong").add_subparsers(
        dest="examination", required=True, metavar="EXAMINATION"
    )
    mismatch = doctor.add_parser(
        "mismatch",
        help="why the log-probs of sampler and learner differ",
        description="Scores sampled tokens with the learner's program, first at the sampler's settings and then at the "
        "learner's, and prints the part of each cause: weight version, program, dtype, temperature, kept ids. The "
        "parts of a token add up to its difference. Runs on one device. Without --config: groups of 4, temperature 1, "
        "and at most half the context each for prompt and response.",
    )
    add = mismatch.add_argument
    add("policy", type=Path, metavar="POLICY", help="the policy folder that speaks, or spoke")
    add("overrides", nargs="*", metavar="key=value", help="of the config, e.g. rollout.top_k=8")
    episodes = mismatch.add_mutually_exclusive_group(required=True)
    episodes.add_argument("--environments", type=Path, metavar="DIR", help="records in which groups are rolled out")
    episodes.add_argument("--episodes", type=Path, nargs="+", metavar="LOG.jsonl", help="logs such as OUT/episodes/*")
    add("--count", type=whole_number(1), help="groups to roll out (4), or logged episodes to read (all)")
    add("--config", type=Path, metavar="RL.toml", help="the settings of the run")
    add("--sampler-dtype", choices=["float32", "bfloat16"], help="type of the sampler; default: the learner's")
    add(
        "--policy-version",
        type=whole_number(0),
        metavar="N",
        help="updates of the policy; default: the newest of a log",
    )
    add("--seed", type=whole_number(0, MOST_SEED), default=0, help="of the rollout; 0")
    add("--json", action="store_true", help="print one machine-readable line instead")
    add_sandbox(mismatch)
    mismatch.set_defaults(run=_mismatch)
    step = doctor.add_parser(
        "not-finite",
        help="why an RL step was not applied",
        description="Computes the loss of a step in OUT/not_finite/ again, and prints one JSON line: the loss, the "
        "arrays whose gradient is not finite, the first tokens whose loss is not, and how many updates lie between the "
        "weights that it used and the step's own.",
    )
    step.add_argument("config", type=Path, metavar="CONFIG", help="the config that the run was started with")
    step.add_argument("step", type=whole_number(0), metavar="STEP", help="as in OUT/not_finite/step-000123.npz")
    step.add_argument("overrides", nargs="*", metavar="key=value", help="as the run had them, e.g. out=runs/mine/rl")
    step.set_defaults(run=_not_finite)


def _not_finite(options: argparse.Namespace) -> None:
    from astra_jax.config import load_config
    from astra_jax.rl.config import RLConfig
    from astra_jax.rl.unapplied_step import explain_step

    print(json.dumps(explain_step(load_config(RLConfig, options.config, options.overrides), options.step)))


def _mismatch(options: argparse.Namespace) -> None:
    from astra_jax.checkpoints.policy import load_policy
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.config import load_config
    from astra_jax.episodes.log import read_episodes
    from astra_jax.evaluate.mismatch import rolled_out, split
    from astra_jax.evaluate.scoring import logged_as_spoken
    from astra_jax.model.config import ModelOverrides
    from astra_jax.rl.config import RLConfig
    from synthesis.record_io import RecordSource, require_records
    from synthesis.records import Environment

    if options.overrides and options.config is None:
        raise UsageError(f"expected --config beside {options.overrides[0]}; see astra doctor mismatch --help")
    config = None if options.config is None else load_config(RLConfig, options.config, options.overrides)
    keep_compiled_programs()
    if options.episodes is None:
        source = RecordSource(options.environments, Environment)
        require_records(source)
    else:
        logged = [each for log in options.episodes for each in read_episodes(log)][: options.count]
        episodes = [logged_as_spoken(each) for each in logged]
    policy = load_policy(options.policy, overrides=ModelOverrides() if config is None else config.model_overrides)
    if options.episodes is None:
        count, seed, dtype = options.count or 4, options.seed, options.sampler_dtype

        async def roll_out(sandbox: AsyncSandboxClient) -> list[Spoken]:
            environments = list(source)
            return await rolled_out(
                policy, environments, sandbox, config, num_groups=count, seed=seed, sampler_dtype=dtype
            )

        episodes = with_sandbox(options, source.card.packages, roll_out)
    found = split(
        policy,
        episodes,
        None if config is None else config.rollout,
        sampler_dtype=options.sampler_dtype,
        policy_version=options.policy_version if options.episodes else 0,
    )
    print(json.dumps(found.to_json()) if options.json else _table(found, len(episodes)))


def _table(found: Split, num_episodes: int) -> str:
    """Return the figures of every cause as lines of text, and the remedy for the largest."""
    from astra_jax.evaluate.mismatch import advice

    sampler, learner = found.sampler, found.learner
    lines = [
        f"sampler: {found.sampler_dtype}, temperature {sampler.temperature:.4g}; "
        f"learner: {found.learner_dtype}, temperature {learner.temperature:.4g}; "
        f"{len(found.total_N)} sampled tokens of {num_episodes} episodes",
        "  ".join(["cause".ljust(14), " tokens", *(name.rjust(8) for name in ("mean |Δ|", "p95", "max"))]),
    ]
    for name, each in found.figures().items():
        sizes = [f"{size:.2e}" for size in (each.mean, each.p95, each.max)]
        lines.append("  ".join([name.ljust(14), f"{each.tokens:7d}", *sizes]))
    return "\n".join([*lines, f"doctor: {found.largest} is the largest cause: {advice(found)}"])
