"""Which environments an RL run rolls out, with which tools and seeds, and which groups wait for how long."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.episodes.rollout import PromptTooLong
from astra_jax.rl import rollouts as rollouts_module
from astra_jax.rl.batch_filling import BatchFillingStalled
from astra_jax.rl.config import RLConfig
from astra_jax.rl.metrics import filling_metrics
from astra_jax.rl.rollouts import Rollouts
from astra_jax.testing import InProcessSandbox, tiny_environment
from astra_jax.training.run import Parts
from synthesis.record_io import write_records
from tests.astra_jax.distractors import with_distractors

NUM_ENVIRONMENTS = 5
LIMITS = {"max_prompt_tokens": 256, "max_response_tokens": 160, "max_turns": 6}
DULL = tiny_environment(rent=0).id
"""In this environment no episode solves anything, so its groups do not vary."""


class FakeEngine:
    """Remembers its starts; of each group the last episode alone solves its environment."""

    def __init__(self, refused=(), broken=()):
        self.starts, self.seeds, self.rooms = [], [], []
        self.refused, self.broken = refused, broken
        self.sandbox, self.load = InProcessSandbox(), None

    def can_run(self, start):
        return start.environment.id not in self.refused

    async def run(self, params, starts, *, group_size, seed, policy_version, room_for, groups_with_rows):
        self.starts += starts
        self.seeds.append(seed)
        self.rooms.append((room_for, groups_with_rows))
        return [
            [self._episode(start, i == group_size - 1, policy_version) for i in range(group_size)] for start in starts
        ]

    def _episode(self, start, solves, policy_version):
        solved = [
            ToolOutcome(task.call.name, task.call.arguments, None, task.answer, "", irrelevant=False)
            for task in start.environment.sub_tasks
            if solves and start.environment.id != DULL
        ]
        ledger, num_tokens = TokenLedger(), 1 if start.environment.id == DULL else 3
        versions = [policy_version] * num_tokens
        ledger.append_sampled([3] * num_tokens, [-0.5] * num_tokens, turn=1, policy_versions=versions)
        is_broken = solves and len(self.starts) in self.broken
        last = ToolOutcome("x", {}, "crashed" if is_broken else "unknown_tool", None, "", irrelevant=False)
        return Episode(start.environment, start.tools, ledger, outcomes=[*solved, last], stop_reason="no_tool_call")


@pytest.fixture
def make(tmp_path, monkeypatch, untrained):
    """Make rollouts of five environments, and the engine that they ask."""
    environments = [with_distractors(tiny_environment(rent=rent), per_band=2) for rent in range(NUM_ENVIRONMENTS)]
    write_records(tmp_path / "environments", environments, kind="environment")

    def made(refused=(), broken=(), **changes):
        values = {
            "seed": 3,
            "steps": 9,
            "out": tmp_path / "run",
            "init": tmp_path / "init",
            "environments": tmp_path / "environments",
            "rollout": LIMITS,
            "optimizer": {"learning_rate": 1e-4},
            "group_size": 2,
            "groups_per_step": 1,
            "groups_per_rollout": 1,
        }
        engine = FakeEngine(refused, broken)
        monkeypatch.setattr(rollouts_module, "RolloutEngine", lambda *_: engine)
        config = RLConfig.model_validate(values | changes)
        return Rollouts(config, Parts(None, untrained.model_config, untrained.tokenizer), None, None), engine

    return made


async def batches(rollouts, steps):
    """The batch of each step, with all groups that came for it."""
    return [await rollouts.batch({}, step=step) for step in steps]


async def assert_resumes_alike(rollouts, engine, made, steps):
    """From the position of `rollouts`, those that were `made` go on with the same groups, environments and seeds."""
    resumed, other_engine = made
    position = json.loads(json.dumps(rollouts.position()))
    resumed.go_on_from(position)
    assert resumed.position() == position
    del engine.starts[:], engine.seeds[:]
    for step in steps:
        assert await batches(resumed, [step]) == await batches(rollouts, [step])
        assert resumed.position() == rollouts.position()
    assert (other_engine.starts, other_engine.seeds) == (engine.starts, engine.seeds)


@pytest.fixture(autouse=True)
def no_weights(monkeypatch):
    monkeypatch.setattr(rollouts_module, "laid_out_for_decoding", lambda _config, _mesh, params: params)


async def roll_out_all(rollouts, num_groups):
    for step in range(num_groups):
        if rollouts.filler.counts.submitted >= num_groups:
            break
        await batches(rollouts, [step])


async def test_every_epoch_has_every_environment_once_in_an_order_and_with_tools_of_its_own(make):
    rollouts, engine = make(irrelevant_per_band={"high": 1, "medium": 1})
    await roll_out_all(rollouts, 3 * NUM_ENVIRONMENTS)
    epochs = [engine.starts[first : first + NUM_ENVIRONMENTS] for first in (0, NUM_ENVIRONMENTS, 2 * NUM_ENVIRONMENTS)]
    orders = [[start.environment.id for start in epoch] for epoch in epochs]
    assert all(len(set(order)) == NUM_ENVIRONMENTS for order in orders)
    assert len(set(map(tuple, orders))) == 3
    shown = [
        {start.environment.id: tuple(tool.document.name for tool in start.tools) for start in epoch} for epoch in epochs
    ]
    assert shown[0] != shown[1] != shown[2]
    assert len(set(engine.seeds)) == len(engine.seeds), "no two rollouts draw the same random numbers"


@pytest.mark.parametrize(("max_staleness", "is_used"), [(0, False), (1, True)])
async def test_a_group_that_has_waited_too_long_is_dropped_and_not_learnt_from(make, max_staleness, is_used):
    rollouts, engine = make(groups_per_rollout=NUM_ENVIRONMENTS, groups_per_step=2, max_staleness=max_staleness)
    [(first, rolled_out)] = await batches(rollouts, [0])
    assert (len(first), len(rolled_out), len(rollouts.filler.buffer)) == (2, NUM_ENVIRONMENTS, 2)
    [(second, rolled_out)] = await batches(rollouts, [1])
    assert {group.policy_version for group in second} == {0 if is_used else 1}
    versions = [version for group in second for each in group.group for version in each.ledger.policy_versions]
    assert set(versions) == {0 if is_used else 1}
    assert bool(rolled_out) != is_used
    assert rollouts.filler.counts.stale == (0 if is_used else 2)
    assert filling_metrics(second, rollouts, step=1)["group_age_max"] == is_used
    assert set(engine.rooms) == {(NUM_ENVIRONMENTS, 2)}, "pages for all, rows for those of a step"


async def test_a_run_that_resumes_goes_on_with_the_groups_that_wait_and_the_environments_that_follow(make):
    """One or two of the three groups of a rollout wait; epochs end inside of rollouts."""
    changes = {"groups_per_rollout": 3, "irrelevant_per_band": {"medium": 1}}
    rollouts, engine = make(**changes)
    await batches(rollouts, [0])
    assert rollouts.position()["waiting"]
    await assert_resumes_alike(rollouts, engine, make(**changes), range(1, 6))
    assert engine.starts
    assert rollouts.filler.counts.degenerate > 0


async def test_environments_that_cannot_be_rolled_out_are_counted_and_left_out_also_after_a_resume(make):
    refused = [tiny_environment(rent=rent).id for rent in (1, 3)]
    rollouts, engine = make(refused)
    await batches(rollouts, range(4))
    assert rollouts.num_left_out >= 2
    assert {start.environment.id for start in engine.starts}.isdisjoint(refused)
    assert len({start.environment.id for start in engine.starts}) == NUM_ENVIRONMENTS - 2
    await assert_resumes_alike(rollouts, engine, make(refused), range(4, 9))
    assert rollouts.num_left_out > 2


async def test_one_environment_that_can_be_rolled_out_is_enough_for_any_number_of_epochs(make, capsys):
    rollouts, engine = make([tiny_environment(rent=rent).id for rent in range(NUM_ENVIRONMENTS) if rent != 2])
    await batches(rollouts, range(20))
    assert {start.environment.id for start in engine.starts} == {tiny_environment(rent=2).id}
    assert capsys.readouterr().err.count(" is left out: its prompt is over 256 tokens, or there is nothing to ") == 1


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"refused": [tiny_environment(rent=rent).id for rent in range(NUM_ENVIRONMENTS)]},
            PromptTooLong,
            r"none of 5 environments .* at most 256 tokens; raise rollout\.max_prompt_tokens",
        ),
        (
            {"broken": range(99), "max_rollouts_per_step": 3},
            BatchFillingStalled,
            r"^step 0 needs 1 groups with reward variance and has 0 after 3 rollouts of 3 groups; 3 met a broken tool",
        ),
    ],
    ids=["no prompt fits", "all tools are broken"],
)
async def test_a_step_without_a_group_ends_in_one_line_that_says_why(make, changes, error, message):
    rollouts, _ = make(**changes)
    with pytest.raises(error, match=message):
        await batches(rollouts, [0])


@pytest.fixture
def scored(monkeypatch):
    """The episodes that were rewarded."""
    episodes = []
    monkeypatch.setattr(rollouts_module, "earned", lambda _, each: episodes.append(each) or len(episodes) % 2)
    return episodes


async def test_a_group_that_met_a_broken_tool_is_dropped_and_counted_and_never_rewarded(make, scored, capsys):
    rollouts, _ = make(broken=(1, 2, 3))
    [((group,), rolled_out)] = await batches(rollouts, [0])
    counts = rollouts.filler.counts
    assert (counts.submitted, counts.failed, counts.valid, counts.learnt) == (4, 3, 1, 1)
    assert rolled_out == [group]
    assert len(scored) == 2
    assert rollouts.filling.errors["tool_errors_crashed"] == 3
    told = capsys.readouterr().err
    assert told.count("in each an episode called a tool whose process died") == 1


async def test_after_so_many_rollouts_a_step_learns_from_the_groups_that_are_there_and_says_so(make, capsys):
    changes = {"groups_per_step": 4, "groups_per_rollout": 2, "max_rollouts_per_step": 1}
    rollouts, engine = make(**changes)
    [(batch, rolled_out)] = await batches(rollouts, [0])
    assert 1 <= len(batch) <= 2
    assert batch == [group for group in rolled_out if max(group.rewards) > 0]
    assert len(engine.starts) == 2
    error = capsys.readouterr().err
    assert f"astra: step 0 learns from {len(batch)} of 4 groups: that many have reward variance after max_roll" in error
    assert error.count("\n") == 1
    figures = filling_metrics(batch, rollouts, step=0)
    assert figures["groups_in_batch"] == figures["groups_learnt"] == len(batch)
    assert figures["groups_waiting"] == 0
    await assert_resumes_alike(rollouts, engine, make(**changes), [1])


@pytest.mark.parametrize("groups_per_rollout", [1, 3])
async def test_with_a_curriculum_an_unsolved_environment_sits_every_other_epoch_out(make, groups_per_rollout):
    changes = {"groups_per_rollout": groups_per_rollout, "curriculum": "examples.curriculum:sometimes_solved"}
    rollouts, engine = make(**changes)
    await batches(rollouts, range(20))
    others = [start.environment.id for start in engine.starts if start.environment.id != DULL]
    num_dull = len(engine.starts) - len(others)
    num_epochs = rollouts.num_drawn / NUM_ENVIRONMENTS
    assert num_epochs / 2 - 1 <= num_dull <= num_epochs / 2 + 1
    assert abs(rollouts.num_passed_over - num_dull) <= 1
    assert max(Counter(others).values()) - min(Counter(others).values()) <= 1
    assert rollouts.num_drawn == len(engine.starts) + rollouts.num_passed_over
    await assert_resumes_alike(rollouts, engine, make(**changes), range(20, 30))


async def test_a_curriculum_that_passes_everything_over_ends_in_one_line(make):
    rollouts, _ = make(curriculum="tests.astra_jax.rl.curricula:nothing_twice")
    await batches(rollouts, range(NUM_ENVIRONMENTS - 1))  # all but the dull one leave a group
    message = r"^the curriculum \S+:nothing_twice passed over all environments for three ep"
    with pytest.raises(ConfigError, match=message):
        await batches(rollouts, [NUM_ENVIRONMENTS])


@pytest.mark.parametrize(("reward", "expected"), [("recall", 1.0), ("precision", 2 / 3)])
async def test_a_group_is_scored_by_the_reward_that_the_config_names(make, reward, expected):
    """The episode that solves both sub-tasks has also called an unknown tool: recall 1, precision 2/3."""
    rollouts, _ = make(reward=reward)
    [((group,), _)] = await batches(rollouts, [0])
    assert group.rewards == (0.0, pytest.approx(expected, abs=1e-5))
