"""`astra replay`: runs logged episodes again, and compares every token."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from astra_jax.cli.arguments import Commands, add_sandbox, whole_number
from astra_jax.cli.surroundings import with_sandbox

if TYPE_CHECKING:
    from astra_jax.checkpoints.policy import Policy
    from astra_jax.episodes.log import LoggedEpisode
    from astra_jax.evaluate.replay import Replay
    from sandbox.client import AsyncSandboxClient


def add_replay(commands: Commands) -> None:
    """Add the command."""
    replay = commands.add_parser(
        "replay",
        help="run logged episodes again and compare every token",
        description="Runs episodes of a log again, each alone, from their seeds and slots, and compares every token, "
        "log-prob and call. With --environments their tools run in the sandbox, and replies and endings are compared "
        "too; without it, the replies of tools are those of the log. Ends with 1 if one differs.",
    )
    add = replay.add_argument
    add("log", type=Path, metavar="EPISODES.jsonl")
    add("--policy", type=Path, required=True, metavar="DIR", help="the policy folder that spoke; of step 0 its `init`")
    add("--checkpoint", type=Path, metavar="DIR", help="weights that spoke: of step 16's log `checkpoints/00000016`")
    add("--environments", type=Path, metavar="DIR", help="the records of the episodes; their tools run again")
    add("--named", metavar="NAME", help="only episodes of this policy, as the log names it")
    add("--count", type=whole_number(1), default=1, help="number of episodes, from the first one on")
    add_sandbox(replay)
    replay.set_defaults(run=_replay)


def _replay(options: argparse.Namespace) -> int | None:
    from astra_jax.checkpoints.checkpoint import load_params
    from astra_jax.checkpoints.policy import Policy, load_policy
    from astra_jax.cli.compile_cache import keep_compiled_programs
    from astra_jax.episodes.log import EpisodeLogError, read_episodes

    if options.sandbox is not None and options.environments is None:
        raise EpisodeLogError("expected --environments beside --sandbox, found none: only with it are tools run again")
    keep_compiled_programs()
    chosen = [each for each in read_episodes(options.log) if options.named in (None, each.policy)][: options.count]
    if not chosen:
        raise EpisodeLogError(f"expected an episode of {options.named or 'a policy'} in {options.log}, found none")
    policy = load_policy(options.policy)
    if options.checkpoint is not None:
        _require_version(chosen, options.checkpoint)
        policy = Policy(*load_params(options.checkpoint), policy.tokenizer)
    replay_each = _replay_records if options.environments is None else _replay_in_environments
    replayed = list(zip(chosen, replay_each(chosen, policy, options), strict=True))
    for logged, found in replayed:
        print(f"{logged.environment_id} ({logged.policy}): {found.difference or 'the same'}")
    num_same = sum(not found.difference for _, found in replayed)
    tokens, calls = sum(found.num_tokens for _, found in replayed), sum(found.num_calls for _, found in replayed)
    apart = max(found.largest_logprob_difference for _, found in replayed)
    print(
        f"replay: {num_same} of {len(replayed)} episodes the same, of {tokens} tokens and {calls} calls; log-probs "
        f"apart by {apart:.1e} at most"
    )
    return 1 if num_same < len(replayed) else None


def _require_version(chosen: Sequence[LoggedEpisode], checkpoint: Path) -> None:
    from astra_jax.episodes.log import EpisodeLogError

    versions = sorted({each.policy_version for each in chosen if each.policy_version is not None})
    if checkpoint.name.isdecimal() and versions not in ([], [int(checkpoint.name)]):
        raise EpisodeLogError(
            f"expected episodes that the weights of {checkpoint} spoke, of policy version {int(checkpoint.name)}, "
            f"found versions {versions}; groups that had waited, or were rolled out during an update, have older ones"
        )


def _replay_records(chosen: Sequence[LoggedEpisode], policy: Policy, options: argparse.Namespace) -> list[Replay]:
    from astra_jax.evaluate.replay import replay_record

    async def replay_all() -> list[Replay]:
        return [await replay_record(each, policy) for each in chosen]

    return asyncio.run(replay_all())


def _replay_in_environments(
    chosen: Sequence[LoggedEpisode], policy: Policy, options: argparse.Namespace
) -> list[Replay]:
    from astra_jax.episodes.log import EpisodeLogError
    from astra_jax.evaluate.replay import replay
    from synthesis.record_io import RecordSource
    from synthesis.records import Environment

    source, wanted = RecordSource(options.environments, Environment), {each.environment_id for each in chosen}
    environments = {each.id: each for each in source if each.id in wanted}
    if missing := wanted - environments.keys():
        raise EpisodeLogError(
            f"expected the environments of {options.log} in {options.environments}, found none of {sorted(missing)[:3]}"
        )

    async def replay_all(sandbox: AsyncSandboxClient) -> list[Replay]:
        return [await replay(each, environments[each.environment_id], policy, sandbox) for each in chosen]

    return with_sandbox(options, source.card.packages, replay_all)
