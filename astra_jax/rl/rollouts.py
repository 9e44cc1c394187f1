"""The groups of an RL run: environments are rolled out until a batch has reward variance.

Groups that wait between two updates are part of the state of a run, so that a resumed one learns from the same groups.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jax
from jax.sharding import Mesh

from astra_jax.config import ConfigError
from astra_jax.engine.interface import Load
from astra_jax.episodes.figures import call_errors, num_sampled_tokens, service_errors
from astra_jax.episodes.finished import finished_episode
from astra_jax.episodes.log import episode_to_json, step_episodes_path, write_episodes
from astra_jax.episodes.rewards import earned
from astra_jax.episodes.rollout import Group, RolloutEngine, Start, none_can_run
from astra_jax.episodes.saved import restored_episode, saved_episode
from astra_jax.episodes.tool_mixing import mix_tools
from astra_jax.mesh.hosts import gather_bytes_from_hosts, stood_still_seconds
from astra_jax.mesh.layouts import laid_out_for_decoding
from astra_jax.mesh.placement import in_force
from astra_jax.model.config import Params
from astra_jax.rl.advantage import group_advantages
from astra_jax.rl.batch_filling import BatchFiller, BatchFillingStalled, GroupCounts, ScoredGroup
from astra_jax.rl.config import RLConfig
from astra_jax.rl.solved_rates import SolvedRates, curriculum_named
from astra_jax.training.run import Parts
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource, require_records
from synthesis.records import Environment, JsonObject


@dataclass
class Filling:
    """The rollouts for the batch of one step, and their figures."""

    num_rollouts: int = 0
    rolled_out: list[ScoredGroup[Group]] = field(default_factory=list)
    """Groups with rewards, valid or not."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of all calls by their origin and kind."""
    sampled_tokens: list[int] = field(default_factory=list)
    """Sampled tokens of each episode, also of groups that failed."""
    sampled_tokens_kept: list[int] = field(default_factory=list)
    """Sampled tokens of each episode of the valid groups."""
    tool_seconds: list[float] = field(default_factory=list)
    """Seconds that each episode of this host with a tool call waited for its tools."""
    loads: list[Load] = field(default_factory=list)
    """Load of the decoder in each rollout."""
    still_before: float = field(default_factory=stood_still_seconds)
    """Seconds for which this host had not run when the step began."""

    @property
    def decode_seconds(self) -> float:
        """Seconds in which a call of the decoder was under way, and no host missing."""
        return sum(load.call_seconds - load.waited_seconds for load in self.loads)

    @property
    def waited_seconds(self) -> float:
        """Seconds in which this host waited for others, before calls of the decoder or after its own last one."""
        return sum(load.waited_seconds + load.left_seconds for load in self.loads)

    @property
    def still_seconds(self) -> float:
        """Seconds of this step until now in which this host's process did not run."""
        return stood_still_seconds() - self.still_before

    @property
    def useful_row_steps(self) -> float:
        """Share of rows × tokens that the sampling programs computed and an episode used; 0 if none ran."""
        num_row_steps = sum(load.row_steps for load in self.loads)
        return sum(load.sampled_tokens for load in self.loads) / num_row_steps if num_row_steps else 0.0


class Rollouts:
    """Groups of episodes of the policy that learns: rolled out, scored, and waiting for their update."""

    def __init__(self, config: RLConfig, parts: Parts, sandbox: AsyncSandboxClient, mesh: Mesh | None):
        """Open the environments; nothing is rolled out yet. `mesh` is the mesh that episodes are decoded on."""
        self._config, self._parts, self._mesh = config, parts, mesh
        self._engine = RolloutEngine(parts.policy_config, parts.tokenizer, sandbox, config.rollout)
        self._environments = RecordSource(config.environments, Environment)
        require_records(self._environments)
        self.filler: BatchFiller[Group] = BatchFiller(
            config.groups_per_step, config.min_reward_std, config.max_staleness
        )
        self.num_drawn = 0
        """Number of environments drawn since the run began, repetitions included."""
        self.num_left_out = 0
        """Number of drawn environments that cannot be rolled out: too long a prompt, or nothing to solve."""
        self.num_passed_over = 0
        """Number of drawn environments that `curriculum` passed over."""
        self.solved_rates = SolvedRates()
        self._curriculum = None if config.curriculum is None else curriculum_named(config.curriculum)
        self.filling = Filling()
        """The rollouts for the newest batch."""

    def _draw(self) -> tuple[int, Environment]:
        """Return the epoch and the next environment, in seeded random order."""
        # The order follows from seed and epoch alone, so that a resumed run can begin at any index.
        epoch, place = divmod(self.num_drawn, len(self._environments))
        order = list(range(len(self._environments)))
        random.Random(f"{self._config.seed}/{epoch}").shuffle(order)
        self.num_drawn += 1
        return epoch, self._environments[order[place]]

    def _next_start(self) -> Start:
        """Draw the next environment that can be rolled out, with freshly mixed tools; count those left out."""
        config, num_passed_over = self._config, self.num_passed_over
        # An environment that is first in one epoch, sits the next one out and is last in the one after comes nearly
        # three epochs later.
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
                _say(
                    f"environment {environment.id} is left out: its prompt is over {config.rollout.max_prompt_tokens} "
                    "tokens, or there is nothing to solve; `environments_left_out` in metrics.jsonl counts them"
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

        After `max_rollouts_per_step` rollouts the batch is smaller, and one line says so.

        Raises:
            BatchFillingStalled: after that number of rollouts there is no group whose rewards vary.
            PromptTooLong: no environment can be rolled out.
        """
        filler, sandbox = self.filler, self._engine.sandbox
        filler.drop_stale(step)
        filling = self.filling = Filling()
        before, errors_before = dataclasses.replace(filler.counts), Counter(sandbox.service_errors)
        # Groups that have waited may fill a batch by themselves; then nothing is rolled out for it.
        if not filler.is_full:
            # These weights and the pages exist only here: the learner needs the memory.
            weights = laid_out_for_decoding(self._parts.model_config, self._mesh, params)
            with in_force(self._mesh):
                while not filler.is_full and filling.num_rollouts < self._config.max_rollouts_per_step:
                    await self._roll_out(weights, step)
        own_errors = service_errors(sandbox.service_errors, errors_before)
        for of_host in gather_bytes_from_hosts(json.dumps(own_errors).encode()):  # each has a client of its own
            filling.errors += Counter(json.loads(of_host))
        if not filler.buffer:
            raise self._stalled(before, step)
        if not filler.is_full:
            _say(
                f"step {step} learns from {len(filler.buffer)} of {filler.num_groups} groups: that many have "
                f"reward variance after max_rollouts_per_step = {filling.num_rollouts} rollouts; `groups_in_batch` in "
                "metrics.jsonl has the number of each step"
            )
        return filler.take_batch(), filling.rolled_out

    def _stalled(self, before: GroupCounts, step: int) -> BatchFillingStalled:
        """Return the error of a step without a valid group; `before` are the counts at its beginning."""
        now, num_rollouts = self.filler.counts, self.filling.num_rollouts
        if num_failed := now.failed - before.failed:
            what_to_do = f"{num_failed} met a broken tool: look at the sandbox, and at the environments' tools"
        else:
            what_to_do = (
                "the policy solves everything or nothing: change the environments, the temperature or "
                "min_reward_std, or stop here"
            )
        return BatchFillingStalled(
            f"step {step} needs {self.filler.num_groups} groups with reward variance and has 0 after {num_rollouts} "
            f"rollouts of {now.submitted - before.submitted} groups; {what_to_do}"
        )

    async def _roll_out(self, weights: Params, step: int) -> None:
        """Roll out the groups of one rollout, score them and take them in."""
        config, filler, filling = self._config, self.filler, self.filling
        # The seed follows from the number of groups before, which a checkpoint keeps: no generator is saved.
        groups = await self._engine.run(
            weights,
            [self._next_start() for _ in range(config.groups_per_rollout)],
            group_size=config.group_size,
            seed=random.Random(f"{config.seed}/rollout/{filler.counts.submitted}").getrandbits(31),
            policy_version=step,
            room_for=config.groups_per_rollout,
            groups_with_rows=config.groups_with_rows,
        )
        episodes = [episode for group in groups for episode in group]
        filling.errors += call_errors(episodes)
        usable = [group for group in groups if not any(episode.met_broken_tool for episode in group)]
        num_failed = len(groups) - len(usable)
        if num_failed and not filler.counts.failed:
            _say(
                f"{num_failed} groups are dropped: in each an episode called a tool whose process died or whose "
                "source is invalid, which says nothing of the policy; `groups_failed` in metrics.jsonl counts them"
            )
        # A group is whole or absent: the advantage of an episode is relative to all others of its group.
        assert all(len(group) == config.group_size for group in usable)
        scored = [
            ScoredGroup(
                group,
                tuple(earned(config.reward, finished_episode(episode, self._parts.tokenizer)) for episode in group),
                min(version for each in group for version in each.ledger.policy_versions if version >= 0),
            )
            for group in usable
        ]
        for each in scored:
            self.solved_rates.add(each.group, each.rewards)
        filler.add(scored, num_failed=num_failed)
        kept = [episode for each in scored if filler.is_valid(each) for episode in each.group]
        filling.sampled_tokens += map(num_sampled_tokens, episodes)
        filling.sampled_tokens_kept += map(num_sampled_tokens, kept)
        filling.tool_seconds += [episode.tool_seconds for episode in episodes if episode.tool_seconds > 0]
        filling.rolled_out += scored
        if self._engine.load is not None:
            filling.loads.append(self._engine.load)
        filling.num_rollouts += 1

    def is_logged(self, step: int) -> bool:
        """Say whether the step's episodes are logged: at every so many steps, and at the last one."""
        return step % self._config.log_episodes_every_steps == 0 or step + 1 == self._config.steps

    def log_episodes(
        self, step: int, groups: Sequence[ScoredGroup[Group]], learner_logprobs: Mapping[int, list[float]]
    ) -> None:
        """Write the first episode of each group, and the first valid group whole.

        `learner_logprobs` are those of the learner's batch, by the `id()` of an episode. A resumed run writes the same
        file again, but for the seconds.
        """
        if jax.process_index() == 0:  # every host has the same
            whole = next(filter(self.filler.is_valid, groups), None)
            lines = [
                episode_to_json(
                    group.group[place],
                    self._parts.tokenizer,
                    policy=f"step {step}",
                    reward=group.rewards[place],
                    split=self._config.environments.name,
                    advantage=float(group_advantages(group.rewards)[place]) if self.filler.is_valid(group) else None,
                    learner_logprobs=learner_logprobs.get(id(group.group[place]), ()),
                )
                for group in groups
                for place in range(len(group.group) if group is whole else 1)
            ]
            write_episodes(step_episodes_path(self._config.out, step), lines)

    # --- the state between two updates ---

    def position(self) -> JsonObject:
        """Return the state between two rollouts as JSON: the counts of groups and draws, and the groups that wait."""
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
        """Restore the state that `position` returned; an empty one is the beginning of a run."""
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
        for saved in waiting:
            group = [restored_episode(episode, found[episode["environment_id"]]) for episode in saved["episodes"]]
            self.filler.buffer.append(ScoredGroup(group, tuple(saved["rewards"]), saved["policy_version"]))


def _say(text: str) -> None:
    print(f"astra: {text}", file=sys.stderr)
