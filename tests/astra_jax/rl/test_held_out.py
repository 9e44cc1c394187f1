"""A run is evaluated on environments that it does not learn from, and keeps the policy that did best there."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest

from astra_jax.checkpoints.checkpoint import TrainState
from astra_jax.checkpoints.provenance import read_provenance
from astra_jax.config import ConfigError
from astra_jax.episodes.episode import Episode, ToolOutcome
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.recipes.data_sets import describe
from astra_jax.report import write_report
from astra_jax.rl import held_out as held_out_module
from astra_jax.rl.config import HeldOutConfig, RLConfig
from astra_jax.rl.held_out import BestPolicy, HeldOut, held_out_environments
from astra_jax.rl.stage import run_rl
from astra_jax.testing import InProcessSandbox, tiny_environment
from astra_jax.training.run import Parts
from astra_jax.training.termination import Terminated
from synthesis.record_io import write_records
from synthesis.run.destination import DestinationRefused
from tests.astra_jax.curves import curve, weights
from tests.astra_jax.distractors import with_distractors
from tests.astra_jax.rl.configs import tiny_rl_config
from tests.astra_jax.taught import taught_policy

STEPS = 3


@pytest.fixture(scope="module")
def config(tokenizer, tmp_path_factory) -> RLConfig:
    """The policy solves one of four held-out environments, greedily, since it was taught for longer than others.

    Every second step, and the last of three, is evaluated, one environment at a time: that compiles fewest programs.
    """
    folder = tmp_path_factory.mktemp("held_out")
    others = [tiny_environment(owner=owner, rent=rent) for owner, rent in (("B", 300), ("C", 400), ("D", 500))]
    solvable = tiny_environment(rent=2150).model_copy(update={"id": "solvable"})
    write_records(folder / "held_out", [solvable, *others], kind="environment")
    held_out = HeldOutConfig(environments=folder / "held_out", every_steps=2, environments_at_once=1)
    config = tiny_rl_config(folder, taught_policy(tokenizer, steps=60), steps=STEPS, checkpoint_every_steps=1)
    return config.model_copy(update={"held_out": held_out})


async def test_environments_that_are_learnt_from_are_refused_in_one_line_and_nothing_is_written(config, tmp_path):
    one = [tiny_environment(rent=7), tiny_environment(rent=100)]
    write_records(tmp_path / "shared", one, kind="environment")
    for directory, message in (
        (config.environments, "3 of 3 held-out .*, such as tiny-"),
        (tmp_path / "shared", f"1 of 2 held-out .*, such as {one[1].id};"),
    ):
        held_out = config.held_out.model_copy(update={"environments": directory})
        with pytest.raises(ConfigError, match=f"^the run learns from {message}.*$"):
            await run_rl(config.model_copy(update={"out": tmp_path / "run", "held_out": held_out}), InProcessSandbox())
        assert not (tmp_path / "run").exists()


def test_so_many_of_them_are_drawn_by_the_seed_and_never_more_than_there_are(config):
    def ids(num_environments, seed=0):
        held_out = config.held_out.model_copy(update={"num_environments": num_environments})
        return [each.id for each in held_out_environments(held_out, config.environments, seed)]

    assert ids(num_environments=None) == ids(num_environments=4)
    assert len(ids(num_environments=2)) == 2
    assert len({tuple(ids(num_environments=2, seed=seed)) for seed in range(9)}) > 2
    with pytest.raises(ConfigError, match="has 4 held-out environments, and 5 are needed"):
        ids(num_environments=5)


class FakeEngine:
    """Remembers its starts; an episode solves everything or nothing, as `become` says by environment."""

    def __init__(self, become):
        self.lots, self.become = [], become

    def can_run(self, start):
        return start.environment.id != "too-long"

    async def run(self, params, starts, *, group_size, seed, policy_version, room_for):
        tools = [[tool.document.name for tool in start.tools] for start in starts]
        self.lots.append((tools, group_size, seed, policy_version, room_for))
        return [[self._episode(start)] for start in starts]

    def _episode(self, start):
        reason, ledger = self.become[start.environment.id], TokenLedger()
        solved = [
            ToolOutcome(task.call.name, task.call.arguments, None, task.answer, "", irrelevant=False)
            for task in start.environment.sub_tasks
            if reason == "no_tool_call"
        ]
        return Episode(start.environment, start.tools, ledger, num_turns=1, outcomes=solved, stop_reason=reason)


async def test_every_evaluation_has_the_same_tools_and_draws_and_counts_left_out_episodes(
    config, taught, tmp_path, monkeypatch
):
    solved, failed = "no_tool_call", "max_turns"
    names = dict(zip("abcd", (solved, failed, solved, solved), strict=True))
    environment = with_distractors(tiny_environment(), per_band=2)
    named = [environment.model_copy(update={"id": name}) for name in (*names, "too-long")]
    write_records(tmp_path / "held_out", named, kind="environment")
    engine = FakeEngine(names)
    monkeypatch.setattr(held_out_module, "RolloutEngine", lambda *_: engine)
    changes = {"environments": tmp_path / "held_out", "environments_at_once": 3}
    held_out = config.held_out.model_copy(update=changes)
    shown = config.model_copy(update={"irrelevant_per_band": {"high": 1}, "out": tmp_path})
    kept = []
    best = BestPolicy(tmp_path, lambda folder, _: (folder.mkdir(), kept.append(folder.name)))
    parts = Parts(None, taught.model_config, taught.tokenizer)
    evaluated = HeldOut(shown, held_out, parts, InProcessSandbox(), None, best)
    assert [step for step in range(1, STEPS + 1) if evaluated.is_due(step)] == [2, 3]
    figures = [await evaluated.evaluate(TrainState(step, taught.params, None, {})) for step in (2, 3)]
    for each in figures:
        assert each["held_out_f1"] == pytest.approx(0.75, abs=1e-5)
        assert each["held_out_solved_fraction"] == 0.75
        assert (each["held_out_environments"], each["held_out_left_out"]) == (4, 1)
    assert kept == ["best_00000002"], "the first of equals"
    assert [(size, room) for _, size, _, _, room in engine.lots] == [(1, 3)] * 4
    assert [version for _, _, _, version, _ in engine.lots] == [2, 2, 3, 3]
    draws = [(tools, seed) for tools, _, seed, _, _ in engine.lots]
    assert draws[:2] == draws[2:]
    assert draws[0][1] != draws[1][1], "a slot draws other numbers in every lot"


@pytest.mark.slow
async def test_a_run_is_evaluated_every_second_step_and_keeps_its_best_policy(config, tmp_path):
    run = config.model_copy(update={"out": tmp_path / "run"})
    figures = await run_rl(run, InProcessSandbox())
    lines = curve(run.out)
    assert [line["step"] for line in lines if "held_out_f1" in line] == [1, 2], "after 2 and 3 updates"
    evaluated = {line["step"] + 1: line["held_out_f1"] for line in lines if "held_out_f1" in line}
    assert all(line["held_out_environments"] == 4 for line in lines if "held_out_f1" in line)
    assert 0 < max(evaluated.values()) < 1
    best = max(evaluated, key=lambda step: (evaluated[step], -step))
    assert (figures["best_step"], figures["best_held_out_f1"]) == (best, evaluated[best])
    assert json.loads((run.out / "best" / "held_out.json").read_text()) == {"step": best, "f1": evaluated[best]}
    assert (run.out / "best").readlink().name == f"best_{best:08d}"
    assert weights(run.out / "best") == weights(run.out / "checkpoints" / f"{best:08d}")
    assert [stage.name for stage in read_provenance(run.out / "best").stages][-1:] == ["RL"]
    assert str(tmp_path) not in (run.out / "best" / "provenance.json").read_text()
    rates = [json.loads(line) for line in (run.out / "solved_rates.jsonl").read_text().splitlines()]
    assert sum(line["episodes"] for line in rates) == run.group_size * lines[-1]["groups_submitted"]
    assert "On held-out environments" in write_report(run.out, describe).read_text()

    changed = run.model_copy(update={"held_out": run.held_out.model_copy(update={"every_steps": 3})})
    with pytest.raises(DestinationRefused, match=r"held_out\.every_steps"):
        await run_rl(changed, InProcessSandbox())


@pytest.mark.slow
async def test_learning_does_not_depend_on_evaluation(config, tmp_path):
    """Nor on where the moments wait meanwhile."""
    plain = config.model_copy(update={"out": tmp_path / "plain", "held_out": None})
    watched = config.model_copy(update={"out": tmp_path / "watched", "optimizer_waits_on_host": True})
    for run in (plain, watched):
        await run_rl(run, InProcessSandbox())
    found = [{name: value for name, value in line.items() if "held_out" not in name} for line in curve(watched.out)]
    assert found == curve(plain.out)
    assert weights(watched.out / "policy") == weights(plain.out / "policy")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("evaluation", "changes"),
    [(1, {"optimizer_waits_on_host": True, "checkpoint_every_steps": 3}), (2, {})],
    ids=["after two updates", "after the last"],
)
async def test_a_signal_inside_an_evaluation_ends_the_run_and_it_goes_on_to_the_same_figures(
    config, tmp_path, monkeypatch, capsys, evaluation, changes
):
    whole, run = (config.model_copy(update={"out": tmp_path / name, **changes}) for name in ("whole", "run"))
    await run_rl(whole, InProcessSandbox())
    started, evaluate = 0, HeldOut.evaluate

    def counted(held_out, state):
        nonlocal started
        started += 1
        return evaluate(held_out, state)

    class Stuck(InProcessSandbox):
        async def execute(self, *arguments, **options):
            if started < evaluation:
                return await super().execute(*arguments, **options)
            os.kill(os.getpid(), signal.SIGTERM)
            return await asyncio.Event().wait()

    monkeypatch.setattr(HeldOut, "evaluate", counted)
    with pytest.raises(Terminated):
        async with asyncio.timeout(60):
            await run_rl(run, Stuck())
    step = evaluation + 1
    assert f"rl: saved after step {step} on SIGTERM" in capsys.readouterr().err
    assert curve(run.out) == curve(whole.out)[: step - 1]
    await run_rl(run, InProcessSandbox())
    assert curve(run.out) == curve(whole.out)
    assert weights(run.out / "policy") == weights(whole.out / "policy")
    assert weights(run.out / "best") == weights(whole.out / "best")
