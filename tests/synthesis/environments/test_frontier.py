"""More is made of the kinds that a training run solves sometimes: read from its file, planned, reported."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from astra_jax.cli.command import main
from astra_jax.episodes.episode import Episode
from astra_jax.episodes.ledger import TokenLedger
from astra_jax.rl.solved_rates import SOLVED_RATES_FILE, EnvironmentRate, SolvedRates
from astra_jax.testing import tiny_environment
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.pipeline import fingerprint_of, synthesize_environments
from synthesis.environments.selection import frontier as frontier_module
from synthesis.environments.selection.frontier import Kind, kind_of, plan_like, read_frontier
from synthesis.environments.selection.quotas import PlanImpossible, plan_environments
from synthesis.environments.selection.statistics import environment_statistics
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordDirectoryError, RecordSource, write_records
from synthesis.records import Environment, RejectedEnvironment
from synthesis.track.run import rejected_beside
from tests.synthesis.altered import altered
from tests.synthesis.environments.made import read

VARIETIES = {"plain": 0.7, "stateful": 0.1, "withheld_tool": 0.1, "missing_parameter": 0.1}


def kinds_of(environments) -> Counter[Kind]:
    return Counter(kind_of(environment) for environment in environments)


def a_run(folder: Path, solved: dict[str, int], episodes: int = 8) -> Path:
    """Write the file as training writes it."""
    folder.mkdir()
    rates = {name: EnvironmentRate(episodes, number, number / 2, 3) for name, number in solved.items()}
    SolvedRates(rates | {"never drawn": EnvironmentRate()}).write(folder / SOLVED_RATES_FILE)
    return folder


def of_kinds(*kinds: tuple[str, int]) -> list[Environment]:
    """Make so many environments of each domain."""
    return [
        altered(tiny_environment(rent=1000 + number), id=f"{domain}-{number}", domain=domain)
        for domain, count in kinds
        for number in range(count)
    ]


@pytest.fixture
def learnt(tmp_path):
    """Environments of three kinds, solved in 1 of 8, 4 of 8 and 7 of 8 episodes."""
    environments = of_kinds(("hard", 3), ("between", 3), ("easy", 3))
    write_records(tmp_path / "learnt", environments, kind="environment")
    solved = {"hard": 1, "between": 4, "easy": 7}
    return environments, a_run(tmp_path / "run", {each.id: solved[each.domain] for each in environments})


def test_only_kinds_that_are_solved_sometimes_are_planned_and_each_is_reported(tmp_path, learnt):
    frontier = read_frontier(learnt[1], (tmp_path / "learnt",))
    assert [(each.kind.domain, each.solved_rate) for each in frontier.kinds] == [
        ("between", 0.5), ("easy", 0.875), ("hard", 0.125),
    ]  # fmt: skip
    plans = frontier.plans(10, seed=0)
    assert {plan.domain for plan in plans} == {"between"}
    assert [plan.index for plan in plans] == list(range(10))
    reported = frontier.report(10)["frontier"]["kinds"]
    assert [(kind["domain"], kind["environments"], kind["planned"]) for kind in reported] == [
        ("between", 3, 10), ("easy", 3, 0), ("hard", 3, 0),
    ]  # fmt: skip


def test_a_kind_is_planned_by_what_its_episodes_have_to_tell(tmp_path):
    environments = of_kinds(("even", 4), ("seldom", 4), ("few", 2))
    write_records(tmp_path / "learnt", environments, kind="environment")
    solved = {"even": 4, "seldom": 2, "few": 4}
    run = a_run(tmp_path / "run", {each.id: solved[each.domain] for each in environments})
    planned = read_frontier(run, (tmp_path / "learnt",)).planned(90)
    assert {kind.domain: number for kind, number in planned.items()} == {"even": 40, "seldom": 30, "few": 20}


def test_the_rate_of_a_kind_is_that_of_all_its_episodes(tmp_path):
    environments = of_kinds(("mixed", 2))
    write_records(tmp_path / "learnt", environments, kind="environment")
    run = a_run(tmp_path / "run", {environments[0].id: 8, environments[1].id: 0})
    (kind,) = read_frontier(run, (tmp_path / "learnt",)).kinds
    assert (kind.episodes, kind.solved, kind.weight) == (16, 8, 0.5)


def test_where_nothing_is_solved_sometimes_there_is_nothing_to_make_more_of(tmp_path):
    environments = of_kinds(("hard", 2), ("easy", 2))
    write_records(tmp_path / "learnt", environments, kind="environment")
    run = a_run(tmp_path / "run", {each.id: 8 * (each.domain == "easy") for each in environments})
    with pytest.raises(PlanImpossible, match=r"found 2 kinds from 0\.00 to 1\.00"):
        read_frontier(run, (tmp_path / "learnt",)).plans(4, seed=0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "expected the solved rates of a training run"),
        ("", "found none"),
        ("{", ":1: expected an environment's solved rate"),
        ('{"environment_id": "a", "episodes": 0, "solved": 0}', ":1: expected an environment's solved rate"),
        ('{"environment_id": "a", "episodes": 2, "solved": 3}', "at most 2 solved episodes, found 3"),
        ('{"environment_id": "a", "solved": 3}', "Field required"),
        ('{"environment_id": "a", "episodes": 2, "solved": 1}\n' * 2, ":2: expected each environment once"),
        ('{"environment_id": "a", "episodes": 2, "solved": 1}', "found 0 there"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused_with_the_place(tmp_path, text, fault):
    write_records(tmp_path / "learnt", of_kinds(("any", 1)), kind="environment")
    (tmp_path / "run").mkdir()
    if text is not None:
        (tmp_path / "run" / SOLVED_RATES_FILE).write_text(text)
    with pytest.raises(RecordDirectoryError, match=fault):
        read_frontier(tmp_path / "run", (tmp_path / "learnt",))


def test_the_file_that_is_read_is_the_one_that_training_writes(tmp_path):
    assert frontier_module.SOLVED_RATES_FILE == SOLVED_RATES_FILE
    environment = tiny_environment(rent=7)
    write_records(tmp_path / "learnt", [environment], kind="environment")
    rates = SolvedRates()
    rates.add(
        [Episode(environment, environment.tools, TokenLedger(), stop_reason="no_tool_call") for _ in range(4)],
        [0.0] * 4,
    )
    (tmp_path / "run").mkdir()
    rates.write(tmp_path / "run" / SOLVED_RATES_FILE)
    (kind,) = read_frontier(tmp_path / "run", (tmp_path / "learnt",)).kinds
    assert (kind.kind, kind.episodes, kind.solved) == (kind_of(environment), 4, 0)


@pytest.mark.slow
async def test_a_set_from_a_run_is_of_its_frontier_apart_from_what_was_learnt_and_the_same_each_time(
    tmp_path, sandbox_url
):
    learnt = EnvironmentsConfig(seed=0, count=40, out=tmp_path / "learnt", varieties=VARIETIES)
    await synthesize_environments(learnt, ProceduralTeacher(), sandbox_url)
    environments = read(tmp_path / "learnt")
    plans = plan_environments(
        40, 0, scenarios=learnt.scenarios, languages=learnt.languages, domains=learnt.domains, lookups=learnt.lookups,
        computations=learnt.computations, varieties=VARIETIES,
    )  # fmt: skip
    lost = {each.slot for each in RecordSource(rejected_beside(tmp_path / "learnt"), RejectedEnvironment)}
    plans = [plan for plan in plans if plan.index not in lost]
    for plan, environment in zip(plans, environments, strict=True):
        assert plan_like(environment) == replace(plan, index=0)
    wanted = {"travel", "finance", "ecommerce"}
    run = a_run(tmp_path / "run", {each.id: 4 if each.domain in wanted else 8 for each in environments})
    frontier = read_frontier(run, (tmp_path / "learnt",))
    config = altered(learnt, count=20, disjoint_from=(tmp_path / "learnt",))
    made = {}
    for name in ("one", "two"):
        out = tmp_path / name
        await synthesize_environments(altered(config, out=out), ProceduralTeacher(), sandbox_url, frontier)
        made[name] = {path.name: path.read_bytes() for path in out.iterdir()}
    assert made["one"] == made["two"]
    new = read(tmp_path / "one")
    counted, of_run = kinds_of(new), kinds_of(each for each in environments if each.domain in wanted)
    assert {(kind.domain, kind.scenario, kind.variety) for kind in counted} <= {
        (kind.domain, kind.scenario, kind.variety) for kind in of_run
    }
    planned = environment_statistics(tmp_path / "one").frontier
    assert sum(planned.values()) == 20
    assert planned.keys() <= set(map(str, of_run))
    assert json.loads(made["one"]["report.json"])["frontier"]["low"] == 0.2


def test_without_a_run_nothing_of_the_fingerprint_changes(tmp_path, learnt):
    config = EnvironmentsConfig(seed=0, count=4, out=tmp_path / "out")
    plain = fingerprint_of(config, ProceduralTeacher())
    assert "frontier" not in plain
    with_run = fingerprint_of(config, ProceduralTeacher(), read_frontier(learnt[1], (tmp_path / "learnt",)))
    assert {name for name in with_run if with_run[name] != plain.get(name)} == {"frontier"}


def test_the_command_makes_more_of_what_a_run_solves_sometimes(tmp_path, learnt, capsys, sandbox_url):
    config = tmp_path / "c.toml"
    config.write_text(f'seed = 3\ncount = 4\nout = "{tmp_path / "out"}"\n')
    command = ["synthesize", "environments", str(config), "--sandbox", sandbox_url, "--from-run", str(learnt[1])]
    assert main(command) == 1
    assert "9 environments" in capsys.readouterr().err
    # No world of the embedded teacher is called so, and that is what it is asked for.
    assert main([*command, f'disjoint_from=["{tmp_path / "learnt"}"]']) == 1
    assert "between" in capsys.readouterr().err
