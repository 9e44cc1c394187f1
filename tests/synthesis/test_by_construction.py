"""Figures that follow from how a set was made are named for such sets alone, by their records and cards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from astra_jax.testing import tiny_environment
from synthesis.by_construction import of_environments, of_trajectories
from synthesis.environments.selection.statistics import statistics_of
from synthesis.records import Environment
from synthesis.run.fingerprint import digest

QUOTAS = {"scenarios.multi_hop": 0.5, "lookups.multi_hop.2": 1.0, "knowledge": digest([])}


def environment(teacher: str, **changes: Any) -> Environment:
    found = tiny_environment()
    made = found.provenance.model_copy(update={"teacher": teacher})
    return found.model_copy(update={"provenance": made, **changes})


def said(*environments: Environment, **made_with: Any) -> str:
    return "\n".join(of_environments(statistics_of(environments), made_with))


def test_the_embedded_teacher_is_said_to_use_templates_and_to_judge_its_own_work():
    notice = "made by templates, for trying the machinery; name a [teacher] for data to train on"
    found = said(environment("procedural"), environment("procedural"))
    assert found.splitlines()[0] == notice
    assert "judges its own work, here with 1.0 on every record for all four quality scores" in found
    assert "no language model was asked" in found
    assert said(environment("openai:gpt-4.1")) == ""
    assert said(environment("procedural"), environment("openai:gpt-4.1")) == f"in part {notice}"
    fallen = tiny_environment().quality.model_copy(update={"atomicity": 0.99})
    assert "1.0" not in said(environment("procedural"), environment("procedural", quality=fallen))


def test_quotas_are_named_of_sets_whose_card_has_them_with_any_teacher():
    found = said(environment("openai:gpt-4.1"), **QUOTAS)
    assert "languages, domains and scenarios are set by quotas" in found
    assert "tool calls" in found
    of_files = said(environment("openai:gpt-4.1"), **QUOTAS | {"knowledge": digest(["a passage"])})
    assert "shares of scenarios are set by quotas" in of_files
    assert "domains" not in of_files
    assert "quotas" not in said(environment("procedural"))  # a card of an older version


def test_stateful_environments_have_no_judge_with_any_teacher():
    stateful = environment("openai:gpt-4.1", state={"balance": 1}, final_state={"balance": 2})
    assert said(stateful) == "no judge is asked of stateful environments: all their quality scores are set to 1.0"


def trajectories(teacher: str, injected_failure_rate: float | None = 0.19) -> Any:
    """As much of the statistics of trajectories as is looked at."""
    return SimpleNamespace(
        teachers={teacher: 2},
        injected_failure_rate=injected_failure_rate,
        task_scores={"clarity": 1.0, "realism": 0.98},
        reward={"planning": 1.0, "final_answer": 0.9, "mean": 1.0},
    )


def test_axes_that_are_one_on_every_trajectory_are_named():
    found = of_trajectories(trajectories("procedural"), {})
    judged = "the embedded teacher judges its own work, here with 1.0 on every record for planning, clarity ("
    assert any(sentence.startswith(judged) for sentence in found)
    assert not any("made to fail" in sentence for sentence in found)  # a card of an older version


def test_a_rate_of_failures_is_set_where_calls_were_emulated():
    for rate, number in ((0.19, 1), (None, 0)):
        found = of_trajectories(trajectories("openai:gpt-4.1", rate), {"failure_rate": 0.2})
        assert found == ["emulated calls are made to fail at a rate that is set (0.2)"] * number
