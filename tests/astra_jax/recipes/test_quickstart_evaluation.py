"""The quickstart's evaluation shows every policy on three kinds of unseen environments."""

from __future__ import annotations

import asyncio

import pytest

from astra_jax.checkpoints.policy import save_policy
from astra_jax.recipes.quickstart_evaluation import (
    HELD_OUT_SPLITS,
    closing_table,
    evaluate_baselines,
    evaluate_policy,
    summarised,
)
from astra_jax.report.episodes import POLICIES
from astra_jax.testing import tiny_environment
from synthesis.record_io import write_records

CONFIG = """
seed = 0
policy = "p"
environments = "e"
out = "o"
[rollout]
max_prompt_tokens = 256
max_response_tokens = 160
max_turns = 6
temperature = 0.0
"""


@pytest.fixture(scope="module")
def summary(taught, tmp_path_factory, sandbox_url):
    out = tmp_path_factory.mktemp("quickstart")
    known = tiny_environment()
    long = known.model_copy(update={"id": "long", "question": known.question * 40})
    # With these names the tools are shown in the order that the policy has been taught.
    others = [known.model_copy(update={"id": f"another-{number}"}) for number in (1, 3)]
    by_split = {"heldout": [known, *others], "heldout_domains": [known, long]}
    for split in HELD_OUT_SPLITS:
        write_records(out / split, by_split.get(split, [known]), kind="environment")
    (out / "evaluation.toml").write_text(CONFIG)
    # One policy stands for all three.
    evaluated = asyncio.run(evaluate_policy(taught, "sft", out, out / "evaluation.toml", seed=0, url=sandbox_url))
    save_policy(taught, out / "base")
    baselines = asyncio.run(evaluate_baselines(out, out / "evaluation.toml", seed=0, url=sandbox_url))
    return summarised(dict.fromkeys(POLICIES, evaluated), baselines), evaluated


def test_the_summary_has_the_figures_of_the_contract(summary):
    found, _ = summary
    for name in POLICIES:
        figures = found["heldout"][name]
        for figure in (
            *("f1", "recall", "precision", "solved_fraction", "answer_accuracy", "tool_calls_per_episode"),
            *("tokens_per_turn", "irrelevant_call_share", "f1_unseen_tools", "f1_unseen_domains", "temperature"),
        ):
            assert isinstance(figures[figure], float), figure
        for figure in (
            *("f1", "f1_unseen_tools", "f1_unseen_domains", "answer_accuracy", "irrelevant_call_share"),
            *("tool_calls_per_episode", "failed_call_share", "setbacks_per_episode", "refusals_elsewhere"),
        ):
            low, high = figures[f"{figure}_interval"]
            assert low <= figures[figure] <= high
    assert found["left_out"] == {"heldout": 0, "heldout_tools": 0, "heldout_domains": 1}


def test_every_policy_and_program_is_measured_on_the_same_environments(summary):
    """A prompt that is too long for policies, in the unseen domains, is left out for the program too."""
    found, _ = summary
    counts = {"n": 3, "n_unseen_tools": 1, "n_unseen_domains": 1}
    for name, figures in found["heldout"].items():
        assert {key: figures[key] for key in counts} == counts, name
    assert "n = 3 unseen worlds, 1 unseen tools, 1 unseen domains" in closing_table(found).splitlines()


def test_a_program_that_learns_nothing_stands_beside_the_policies(summary):
    found, _ = summary
    assert list(found["heldout"]) == [*POLICIES, "told_names"]
    figures = found["heldout"]["told_names"]
    low, high = figures["f1_unseen_tools_interval"]
    assert 0 <= low <= figures["f1_unseen_tools"] <= high <= 1
    assert "temperature" not in figures


def test_greedy_is_greedy(summary):
    found, _ = summary
    assert found["heldout"]["sft"]["temperature"] == 0.0
    assert found["heldout"]["sft"]["f1"] == pytest.approx(1.0, abs=1e-5)


def test_episodes_are_shown_with_their_token_ids(summary, taught):
    line, *_ = summary[1].shown
    assert line["policy"] == "sft"
    assert taught.tokenizer.decode([token[0] for token in line["tokens"]]).startswith("<|im_start|>")


def test_the_closing_table_has_every_figure_and_counts_left_out_environments(summary):
    table = closing_table(summary[0])
    lines = table.splitlines()
    assert len(lines) == 1 + 4 + 2
    assert lines[2].startswith("sft        1.000 [1.000, 1.000]")
    assert all(line.count("[") == 4 for line in lines[1:-2])
    left_out = "environments whose prompt is too long, or with nothing to solve, left out for every policy"
    assert lines[-1] == f"{left_out}: 1 of heldout_domains"
