"""The groups of an RL run: environments in seeded order, rolled out until a batch of groups has reward variance.

Groups that wait between two updates are part of the state of a run, so that a resumed one learns from the same groups.

Decided: docs/decisions/rl.md, “Training logs one episode a group, every ten steps”.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.episodes.figures import call_errors, service_errors
from astra_jax.episodes.log import episode_to_json, step_episodes_path, write_episodes
from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Group, RolloutEngine, Start, finished, none_can_run
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.mesh.placement import in_force
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from astra_jax.rl.batch_filling import BatchFiller, BatchFillingStalled, ScoredGroup
from astra_jax.rl.config import RLConfig
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource, require_records
from synthesis.records import Environment, JsonObject


class Rollouts:
    """Groups of episodes of the policy that learns: rolled out, scored, and waiting for their update."""

    def __init__(
        self,
        config: RLConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        sandbox: AsyncSandboxClient,
        mesh: Mesh | None,
    ):
        """Open the environments; nothing is rolled out yet. `mesh` is that of decoding.

        Raises:
            RecordDirectoryError: there are no environments, or their directory is missing or damaged.
            ConfigError: the limits allow episodes beyond the model's context.
        """
        self._config, self._tokenizer = config, tokenizer
        self._engine = RolloutEngine(model_config, tokenizer, sandbox, config.rollout)
        self._model_config, self._mesh = model_config, mesh
        self._environments = RecordSource(config.environments, Environment)
        require_records(self._environments)
        self.filler: BatchFiller[Group] = BatchFiller(
            config.groups_per_step, config.min_reward_std, config.max_staleness
        )
        self.num_submitted = 0
        """Groups rolled out since the run began."""
        self.num_left_out = 0
        """Environments drawn since then that no policy can be rolled out in: a prompt too long, nothing to solve."""
        self.num_unfinished = 0
        """Groups since then of which `max_tool_seconds` cut an episode off: dropped whole."""
        self.errors: Counter[str] = Counter()
        """Of the calls that were made for the last batch, by whose they were and their kind."""
        self._starts = self._starts_from(0)

    def _starts_from(self, first: int) -> Iterator[Start]:
        """Environments in seeded random order, epoch after epoch, each with freshly mixed tools."""
        index, environments, config = first, self._environments, self._config
        while True:
            # The order is a function of seed and epoch alone, so that a resumed run can begin at any index.
            epoch, place = divmod(index, len(environments))
            order = list(range(len(environments)))
            random.Random(f"{config.seed}/{epoch}").shuffle(order)
            environment = environments[order[place]]
            seed = config.seed + epoch
            yield Start(environment, mix_tools(environment, irrelevant_per_band=config.irrelevant_per_band, seed=seed))
            index += 1

    def _next_start(self) -> Start:
        """Draw the next environment that can be rolled out; what is left out is counted.

        Raises:
            PromptTooLong: there is none.
        """
        # Each epoch has an order of its own: what is first in one and last in the next comes nearly two epochs later.
        for _ in range(2 * len(self._environments)):
            start = next(self._starts)
            if self._engine.can_run(start):
                return start
            if self.num_left_out == 0:
                print(
                    f"astra: environment {start.environment.id} is left out: its prompt is over "
                    f"{self._config.rollout.max_prompt_tokens} tokens, or there is nothing to solve; "
                    "`environments_left_out` in metrics.jsonl counts them",
                    file=sys.stderr,
                )
            self.num_left_out += 1
        raise none_can_run(self._config.rollout, len(self._environments))

    async def batch(self, params: Params, *, step: int) -> tuple[list[ScoredGroup[Group]], list[ScoredGroup[Group]]]:
        """Roll groups out until a batch is full; return the batch, and all groups that were rolled out for it.

        Raises:
            BatchFillingStalled: after `max_rollouts_per_step` rollouts there are still too few whose rewards vary.
            PromptTooLong: no environment can be rolled out.
            SandboxUnavailable: the sandbox is down.
            HostFailed: another host has failed.
        """
        self.filler.drop_stale(step)
        rolled_out: list[ScoredGroup[Group]] = []
        num_rollouts, unfinished_before = 0, self.num_unfinished
        self.errors, errors_before = Counter(), Counter(self._engine.sandbox.service_errors)
        # Groups that have waited may fill a batch by themselves; then nothing is rolled out for it.
        if not self.filler.is_full:
            # Only here: while the learner learns, these weights and the pages are gone.
            decoding_params = laid_out_for_decoding(self._model_config, self._mesh, params)
        with in_force(self._mesh):
            while not self.filler.is_full:
                self._require_progress(num_rollouts, self.num_unfinished - unfinished_before, step)
                groups = await self._roll_out(decoding_params, policy_version=step)
                num_rollouts += 1
                self.filler.add(groups)
                rolled_out += groups
        self.errors += service_errors(self._engine.sandbox.service_errors, errors_before)
        return self.filler.take_batch(), rolled_out

    def _require_progress(self, num_rollouts: int, num_unfinished: int, step: int) -> None:
        if num_rollouts == self._config.max_rollouts_per_step:
            what_to_do = (
                f"{num_unfinished} groups were cut off: raise rollout.max_tool_seconds, or look at the sandbox"
                if num_unfinished
                else "the policy solves everything or nothing: change the environments, the temperature or "
                "min_reward_std, or stop here"
            )
            raise BatchFillingStalled(
                f"expected {self._config.groups_per_step} groups with reward variance at step {step}, found "
                f"{len(self.filler.buffer)} after {num_rollouts} rollouts; {what_to_do}"
            )

    async def _roll_out(self, params: Params, *, policy_version: int) -> list[ScoredGroup[Group]]:
        count = self._config.groups_per_rollout
        # The seed follows from how many groups came before, which a checkpoint keeps: no generator is saved.
        groups = await self._engine.run(
            params,
            [self._next_start() for _ in range(count)],
            group_size=self._config.group_size,
            seed=random.Random(f"{self._config.seed}/rollout/{self.num_submitted}").getrandbits(31),
            policy_version=policy_version,
        )
        self.num_submitted += count
        self.errors += call_errors(episode for group in groups for episode in group)
        whole = finished(groups)
        self._count_unfinished(len(groups) - len(whole))
        # A group is whole or not there: what a reward is worth, it is worth beside the others of its group.
        assert all(len(group) == self._config.group_size for group in whole)
        return [
            ScoredGroup(group, tuple(episode_reward(episode, self._config.reward) for episode in group), policy_version)
            for group in whole
        ]

    def _count_unfinished(self, count: int) -> None:
        if count and not self.num_unfinished:
            print(
                f"astra: {count} groups are dropped: in each an episode waited for its tools beyond "
                f"rollout.max_tool_seconds = {self._config.rollout.max_tool_seconds:g}; from here on this run does "
                "not follow from its seed alone; `groups_unfinished` in metrics.jsonl counts them",
                file=sys.stderr,
            )
        self.num_unfinished += count

    def log_episodes(self, step: int, groups: Sequence[ScoredGroup[Group]]) -> None:
        """Write the first episode of each group, where it is time; a resumed run writes the same file again."""
        if jax.process_index() > 0:  # every host has the same
            return
        if step % self._config.log_episodes_every_steps == 0 or step + 1 == self._config.steps:
            lines = [
                episode_to_json(group.group[0], self._tokenizer, policy=f"step {step}", reward=group.rewards[0])
                for group in groups
            ]
            write_episodes(step_episodes_path(self._config.out, step), lines)

    # --- the state between two updates ---

    def position(self) -> JsonObject:
        """Return where the rollouts stand, as JSON: what has been submitted, counted, and what waits."""
        filler = self.filler
        return {
            "groups_submitted": self.num_submitted,
            "environments_left_out": self.num_left_out,
            "groups_unfinished": self.num_unfinished,
            "counts": {"valid": filler.num_valid, "degenerate": filler.num_degenerate, "stale": filler.num_stale},
            "waiting": [
                {
                    "episodes": [saved_episode(episode) for episode in group.group],
                    "rewards": list(group.rewards),
                    "policy_version": group.policy_version,
                }
                for group in filler.buffer
            ],
        }

    def go_on_from(self, position: JsonObject) -> None:
        """Go on from where `position` says; an empty one is the beginning of a run."""
        if not position:
            return
        self.num_submitted = position["groups_submitted"]
        self.num_left_out = position["environments_left_out"]
        self.num_unfinished = position["groups_unfinished"]
        self._starts = self._starts_from(self.num_submitted + self.num_left_out)
        counts, waiting = position["counts"], position["waiting"]
        self.filler.num_valid, self.filler.num_degenerate = counts["valid"], counts["degenerate"]
        self.filler.num_stale = counts["stale"]
        # A saved episode names its environment; the record directory, which the run was begun with, still has it.
        wanted = {episode["environment_id"] for group in waiting for episode in group["episodes"]}
        found = {environment.id: environment for environment in self._environments if environment.id in wanted}
        self.filler.buffer.extend(_restored(group, found) for group in waiting)


def _restored(saved: dict[str, Any], environments: dict[str, Environment]) -> ScoredGroup[Group]:
    group = [restored_episode(episode, environments[episode["environment_id"]]) for episode in saved["episodes"]]
    return ScoredGroup(group, tuple(saved["rewards"]), saved["policy_version"])
