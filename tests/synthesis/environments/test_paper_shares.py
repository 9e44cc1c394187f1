"""The questions of `configs/paper_environments.toml` have the paper's figures, within two points at five hundred."""

from __future__ import annotations

import asyncio
import statistics
import tomllib
from pathlib import Path

import pytest

from synthesis.environments.pipeline import EnvironmentsConfig
from synthesis.environments.questions.qa_instances import write_qa_instance
from synthesis.environments.selection.quotas import plan_environments
from synthesis.environments.selection.statistics import PAPER, num_parallel_calls
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.prompts.decompositions import JudgeDecomposition
from synthesis.questions.knowledge import Knowledge
from synthesis.tools.documents import language_of

CONFIG = Path(__file__).parents[3] / "configs" / "paper_environments.toml"
POINTS = 0.01


@pytest.fixture(scope="module")
def drawn():
    """Five hundred questions as the paper's configuration plans them."""
    written = tomllib.loads(CONFIG.read_text())
    assert written["count"] == PAPER["environments"]
    config = EnvironmentsConfig.model_validate({**written, "count": 500})

    async def draw(plan):
        knowledge = Knowledge(domain=plan.domain, language=plan.language, seed=plan.index)
        return await write_qa_instance(
            ProceduralTeacher(), knowledge, plan, max_hops=config.max_hops, seed=config.seed + plan.index
        )

    return [(plan, asyncio.run(draw(plan))) for plan in plan_environments(config)]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_languages_have_the_papers_shares(language, drawn):
    # Counted in the questions, since a plan alone has its shares in any case.
    share = sum(language_of(instance.question) == language for _, instance in drawn) / len(drawn)
    assert share == pytest.approx(PAPER["languages"][language], abs=2 * POINTS)


@pytest.mark.parametrize("domain", PAPER["domains"])
async def test_domains_have_the_papers_shares(domain, drawn):
    async def is_answered_there(plan, instance):
        there = Knowledge(domain=domain, language=language_of(instance.question), seed=plan.index)
        judged = await ProceduralTeacher().ask(JudgeDecomposition(knowledge=there, instance=instance), seed=0)
        return judged.atomicity == 1

    # Every fifth question: another domain's world must be made for each, to see that it does not answer there.
    looked_at = drawn[::5]
    found = [await is_answered_there(plan, instance) for plan, instance in looked_at]
    assert found == [plan.domain == domain for plan, _ in looked_at]
    share = sum(plan.domain == domain for plan, _ in drawn) / len(drawn)
    assert share == pytest.approx(PAPER["domains"][domain], abs=2 * POINTS)


def test_scenarios_hops_and_tool_calls_have_the_papers_figures(drawn):
    instances = [instance for _, instance in drawn]
    parallel = sum(instance.scenario == "parallel_multi_hop" for instance in instances) / len(drawn)
    assert parallel == pytest.approx(PAPER["scenarios"]["parallel_multi_hop"], abs=2 * POINTS)
    sub_questions = [len(instance.nodes) for instance in instances]
    lookups = [[node for node in instance.nodes if node.kind == "lookup"] for instance in instances]
    num_calls = sum(map(len, lookups))
    assert statistics.fmean(sub_questions) == pytest.approx(PAPER["sub_questions_mean"], abs=0.02)
    assert statistics.median(sub_questions) == PAPER["sub_questions_median"]
    assert num_calls / len(drawn) == pytest.approx(PAPER["tool_calls_mean"], abs=0.02)
    assert num_calls / sum(sub_questions) == pytest.approx(PAPER["needs_tool_share"], abs=2 * POINTS)
    beside = sum(map(num_parallel_calls, lookups)) / num_calls
    assert beside == pytest.approx(PAPER["parallel_share"], abs=2 * POINTS)
