"""The groups of an RL run: environments in seeded order, rolled out until a batch of groups has reward variance.

Groups that wait between two updates are part of the state of a run, so that a resumed one learns from the same groups.
"""

from __future__ import annotations

import dataclasses
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import Mesh

from astra_jax.chat.tokenizer import Tokenizer
from astra_jax.config import ConfigError
from astra_jax.engine.interface import Load
from astra_jax.episodes.endings import EndingJudge, by_lexicon
from astra_jax.episodes.figures import call_errors, num_sampled_tokens, service_errors
from astra_jax.episodes.finished import finished_episode
from astra_jax.episodes.log import episode_to_json, step_episodes_path, write_episodes
from astra_jax.episodes.rewards import earned
from astra_jax.episodes.rollout import Group, RolloutEngine, Start, finished, none_can_run
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.mesh.placement import in_force
from astra_jax.model.config import ModelConfig
from astra_jax.model.qwen3 import Params
from astra_jax.rl.batch_filling import BatchFiller, BatchFillingStalled, GroupCounts, ScoredGroup
from astra_jax.rl.config import RLConfig
from astra_jax.rl.solved_rates import SolvedRates, curriculum_named
from sandbox.client import AsyncSandboxClient, ServiceError
from synthesis.record_io import RecordSource, require_records
from synthesis.records import Environment, JsonObject


@dataclass
class _Filling:
    """The rollouts for the batch of one step, and what they were."""

    step: int
    counts_before: GroupCounts
    service_errors_before: Counter[ServiceError]
    decode_seconds_before: float
    num_rollouts: int = 0
    rolled_out: list[ScoredGroup[Group]] = field(default_factory=list)
    """Groups with rewards, valid or not."""
    errors: Counter[str] = field(default_factory=Counter)
    sampled_tokens: dict[str, list[int]] = field(default_factory=lambda: {"rolled_out": [], "kept": []})
    tool_seconds: list[float] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    decode_seconds: float = 0.0


class Rollouts:
    """Groups of episodes of the policy that learns: rolled out, scored, and waiting for their update."""

    def __init__(
        self,
        config: RLConfig,
        model_config: ModelConfig,
        tokenizer: Tokenizer,
        sandbox: AsyncSandboxClient,
        mesh: Mesh | None,
        judge: EndingJudge = by_lexicon,
    ):
        """Open the environments; nothing is rolled out yet. `mesh` is that of decoding.

        Raises:
            RecordDirectoryError: there are no environments, or their directory is missing or damaged.
            ConfigError: the limits allow episodes beyond the model's context.
        """
        self._config, self._tokenizer = config, tokenizer
        self._engine = RolloutEngine(model_config, tokenizer, sandbox, config.rollout, judge=judge)
        self._model_config, self._mesh = model_config, mesh
        self._environments = RecordSource(config.environments, Environment)
        require_records(self._environments)
        self.filler: BatchFiller[Group] = BatchFiller(
            config.groups_per_step, config.min_reward_std, config.max_staleness
        )
        self.num_drawn = 0
        """Environments since the run began; some of them more often than once."""
        self.num_left_out = 0
        """Of these, such that no policy can be rolled out in: a prompt too long, nothing to solve."""
        self.num_passed_over = 0
        """Draws of environments that `curriculum` passed over."""
        self.solved_rates = SolvedRates()
        self._curriculum = None if config.curriculum is None else curriculum_named(config.curriculum)
        self.errors: Counter[str] = Counter()
        """Of the calls that were made for the last batch, by whose they were and their kind."""
        self.sampled_tokens: dict[str, list[int]] = {"rolled_out": [], "kept": []}
        """Of each episode that was rolled out for the last batch, and of those among them whose group was valid."""
        self.tool_seconds: list[float] = []
        """That each of them waited for its tools, if this host ran it and it called one."""
        self.useful_row_steps = 0.0
        """Share of rows × tokens that programs which sample ran for, of which someone got a token; 0 where none ran."""
        self.decode_seconds = 0.0
        """For how long a decoder's call was under way for the last batch."""

    def _draw(self) -> tuple[int, Environment]:
        """Return the next environment, in seeded random order, epoch after epoch, and its epoch."""
        # The order is a function of seed and epoch alone, so that a resumed run can begin at any index.
        epoch, place = divmod(self.num_drawn, len(self._environments))
        order = list(range(len(self._environments)))
        random.Random(f"{self._config.seed}/{epoch}").shuffle(order)
        self.num_drawn += 1
        return epoch, self._environments[order[place]]

    def _next_start(self) -> Start:
        """Draw the next environment that can be rolled out, with freshly mixed tools; what is left out is counted.

        Raises:
            PromptTooLong: there is none.
            ConfigError: the curriculum passes all of them over.
        """
        config, num_passed_over = self._config, self.num_passed_over
        # Each epoch has an order of its own: an environment that is first in one, sits the next one out and is last in
        # the one after comes nearly three epochs later.
        for _ in range(3 * len(self._environments)):
            epoch, environment = self._draw()
            if self.solved_rates.sits_out(environment.id, epoch, self._curriculum):
                self.num_passed_over += 1
                continue
            seed = config.seed + epoch
            start = Start(
                environment, mix_tools(environment, irrelevant_per_band=config.irrelevant_per_band, seed=seed)
            )
            if self._engine.can_run(start):
                self.solved_rates.note_draw(environment.id, epoch)
                return start
            if self.num_left_out == 0:
                print(
                    f"astra: environment {environment.id} is left out: its prompt is over "
                    f"{config.rollout.max_prompt_tokens} tokens, or there is nothing to solve; "
                    "`environments_left_out` in metrics.jsonl counts them",
                    file=sys.stderr,
                )
            self.num_left_out += 1
        if self.num_passed_over > num_passed_over:
            raise ConfigError(
                f"the curriculum {config.curriculum} passed over all environments for three epochs; let it return True "
                "for some of them"
            )
        raise none_can_run(config.rollout, len(self._environments))

    async def batch(self, params: Params, *, step: int) -> tuple[list[ScoredGroup[Group]], list[ScoredGroup[Group]]]:
        """Roll groups out until a batch is full; return the batch, and all groups with rewards that came for it.

        After `max_rollouts_per_step` rollouts the batch is what is there, and one line says so.

        Raises:
            BatchFillingStalled: after so many rollouts there is no group whose rewards vary.
            PromptTooLong: no environment can be rolled out.
            SandboxUnavailable: the sandbox is down.
            HostFailed: another host has failed.
            HostsEnd: a signal at one of several hosts ends all.
        """
        self.filler.drop_stale(step)
        filling = _Filling(
            step,
            dataclasses.replace(self.filler.counts),
            Counter(self._engine.sandbox.service_errors),
            self._engine.call_clock.seconds,
        )
        # Groups that have waited may fill a batch by themselves; then nothing is rolled out for it.
        if not self.filler.is_full:
            # Decoded with only here: while the learner learns, these weights and the pages are gone.
            weights = laid_out_for_decoding(self._model_config, self._mesh, params)
            with in_force(self._mesh):
                while not self.filler.is_full and filling.num_rollouts < self._config.max_rollouts_per_step:
                    await self._roll_out(filling, weights)
                    filling.loads += self._engine.loads
                    filling.num_rollouts += 1
        filling.errors += service_errors(self._engine.sandbox.service_errors, filling.service_errors_before)
        filling.decode_seconds = self._engine.call_clock.seconds - filling.decode_seconds_before
        return self._taken(filling)

    def _taken(self, filling: _Filling) -> tuple[list[ScoredGroup[Group]], list[ScoredGroup[Group]]]:
        """Return a batch that has been filled, and all groups with rewards that came for it; its figures are ours.

        Raises:
            BatchFillingStalled: as `batch`.
        """
        filler, step = self.filler, filling.step
        self.errors, self.sampled_tokens = filling.errors, filling.sampled_tokens
        self.tool_seconds, self.decode_seconds = filling.tool_seconds, filling.decode_seconds
        num_row_steps = sum(load.row_steps for load in filling.loads)
        num_useful = sum(load.sampled_tokens for load in filling.loads)
        self.useful_row_steps = num_useful / num_row_steps if num_row_steps else 0.0
        if filler.is_full:
            return filler.take_batch(), filling.rolled_out
        self._require_a_group(filling)
        groups = filler.take_smaller_batch()
        print(
            f"astra: step {step} learns from {len(groups)} of {filler.num_groups} groups: that many have reward "
            f"variance after max_rollouts_per_step = {filling.num_rollouts} rollouts; `groups_in_batch` in "
            "metrics.jsonl has the number of each step",
            file=sys.stderr,
        )
        return groups, filling.rolled_out

    def _require_a_group(self, filling: _Filling) -> None:
        if self.filler.buffer:
            return
        now, before = self.filler.counts, filling.counts_before
        num_failed, num_cancelled = now.failed - before.failed, now.cancelled - before.cancelled
        if num_cancelled:
            what_to_do = f"{num_cancelled} were cut off: raise rollout.max_tool_seconds, or look at the sandbox"
        elif num_failed:
            what_to_do = f"{num_failed} met a broken tool: look at the sandbox, and at the environments' tools"
        else:
            what_to_do = (
                "the policy solves everything or nothing: change the environments, the temperature or "
                "min_reward_std, or stop here"
            )
        raise BatchFillingStalled(
            f"expected at least one of {self.filler.num_groups} groups with reward variance at step {filling.step}, "
            f"found 0 after {filling.num_rollouts} rollouts of {now.submitted - before.submitted} groups; {what_to_do}"
        )

    async def _roll_out(self, filling: _Filling, weights: Params) -> None:
        """Roll out as many groups as the next rollout has, and take them in."""
        config, filler = self._config, self.filler
        # The seed follows from how many groups came before, which a checkpoint keeps: no generator is saved.
        groups = await self._engine.run(
            weights,
            [self._next_start() for _ in range(config.groups_per_rollout)],
            group_size=config.group_size,
            seed=random.Random(f"{config.seed}/rollout/{filler.counts.submitted}").getrandbits(31),
            policy_version=filling.step,
            room_for=config.groups_per_rollout,
        )
        filling.errors += call_errors(episode for group in groups for episode in group)
        whole = finished(groups)
        usable = [group for group in whole if not any(episode.met_broken_tool for episode in group)]
        self._tell_of_dropped(len(groups) - len(whole), len(whole) - len(usable))
        # A group is whole or not there: what a reward is worth, it is worth beside the others of its group.
        assert all(len(group) == config.group_size for group in usable)
        scored = [
            ScoredGroup(
                group,
                tuple(earned(config.reward, finished_episode(episode, self._tokenizer)) for episode in group),
                oldest_version(group),
            )
            for group in usable
        ]
        for each in scored:
            self.solved_rates.add(each.group, each.rewards)
        filler.add(scored, num_failed=len(whole) - len(usable), num_cancelled=len(groups) - len(whole))
        filling.sampled_tokens["rolled_out"] += [num_sampled_tokens(episode) for group in groups for episode in group]
        waited = [episode.tool_seconds for group in groups for episode in group]
        filling.tool_seconds += [seconds for seconds in waited if seconds > 0]
        filling.sampled_tokens["kept"] += [
            num_sampled_tokens(episode) for each in scored if filler.is_valid(each) for episode in each.group
        ]
        filling.rolled_out += scored

    def _tell_of_dropped(self, num_cancelled: int, num_failed: int) -> None:
        """Say the first time that groups are dropped whole, and why."""
        counts = self.filler.counts
        if num_cancelled and not counts.cancelled:
            print(
                f"astra: {num_cancelled} groups are dropped: in each an episode waited for its tools beyond "
                f"rollout.max_tool_seconds = {self._config.rollout.max_tool_seconds:g}; from here on this run does "
                "not follow from its seed alone; `groups_cancelled` in metrics.jsonl counts them",
                file=sys.stderr,
            )
        if num_failed and not counts.failed:
            print(
                f"astra: {num_failed} groups are dropped: in each an episode called a tool whose process died or whose "
                "source is invalid, which says nothing of the policy; `groups_failed` in metrics.jsonl counts them",
                file=sys.stderr,
            )

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
        """Return where the rollouts stand, as JSON: what has been submitted, counted, and what waits.

        A rollout that is under way has not begun, as far as this goes: whoever goes on from here begins it anew.
        """
        filler = self.filler
        return {
            "groups": dataclasses.asdict(filler.counts),
            "environments": {
                "drawn": self.num_drawn,
                "left_out": self.num_left_out,
                "passed_over": self.num_passed_over,
            },
            "solved_rates": self.solved_rates.position(),
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
        self.filler.counts, environments = GroupCounts(**position["groups"]), position["environments"]
        self.num_drawn, self.num_left_out = environments["drawn"], environments["left_out"]
        self.num_passed_over = environments["passed_over"]
        self.solved_rates = SolvedRates.at(position["solved_rates"])
        waiting = position["waiting"]
        # A saved episode names its environment; the record directory, which the run was begun with, still has it.
        wanted = {episode["environment_id"] for group in waiting for episode in group["episodes"]}
        found = {environment.id: environment for environment in self._environments if environment.id in wanted}
        self.filler.buffer.extend(_restored(group, found) for group in waiting)


def oldest_version(group: Group) -> int:
    """Return how many updates the oldest weights had seen that a token of a group was sampled with."""
    return min(version for each in group for version in each.ledger.policy_versions if version >= 0)


def _restored(saved: dict[str, Any], environments: dict[str, Environment]) -> ScoredGroup[Group]:
    group = [restored_episode(episode, environments[episode["environment_id"]]) for episode in saved["episodes"]]
    return ScoredGroup(group, tuple(saved["rewards"]), saved["policy_version"])
