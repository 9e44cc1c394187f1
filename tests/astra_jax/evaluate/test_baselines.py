"""The program that learns nothing: it acts as a policy does, and solves the embedded teacher's questions by words."""

from __future__ import annotations

import asyncio
import json

import pytest

from astra_jax.cli.command import main
from astra_jax.config import CONFIGS, load_config
from astra_jax.episodes.episode import ToolOutcome
from astra_jax.evaluate.baselines import Seen, evaluate_program, lexical
from astra_jax.evaluate.environments import EvaluationConfig
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.environments.pipeline import EnvironmentsConfig, synthesize_environments
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordSource
from synthesis.records import Environment, ToolDocument
from tests.astra_jax.distractors import with_distractors
from tests.astra_jax.evaluate.test_environments import CONFIG

ALL_BANDS = CONFIG.model_copy(update={"irrelevant_per_band": {"high": 1, "medium": 1, "low": 1}})


def synthesised(folder, url, **changes):
    config = load_config(EnvironmentsConfig, CONFIGS / "tiny_environments.toml")
    plain = {"difficulty": "plain", "irrelevant_per_band": {"high": 1, "medium": 1, "low": 1}}
    config = config.model_copy(update={"count": 12, "out": folder / "environments", **plain, **changes})
    asyncio.run(synthesize_environments(config, ProceduralTeacher(), url))
    return config.out


@pytest.fixture(scope="module")
def records(tmp_path_factory, here):
    return synthesised(tmp_path_factory.mktemp("plain"), here)


def test_an_environment_with_nothing_to_solve_is_left_out_and_counted():
    asked = tiny_environment()
    questions = tuple(question.model_copy(update={"call": None}) for question in asked.sub_questions)
    idle = asked.model_copy(update={"sub_questions": questions})
    found = asyncio.run(evaluate_program(lexical, [asked, idle], CONFIG, InProcessSandbox()))
    assert (len(found.groups), found.num_left_out) == (1, 1)


def looks_up(what: str, kind: str, *more: str, chinese: str = "") -> ToolDocument:
    return ToolDocument(
        name=f"get_{kind}_{what}",
        description=chinese or f"{what.capitalize()} of a {kind}",
        parameters={"properties": {name: {"type": "string"} for name in (kind, *more)}, "required": [kind, *more]},
    )


RENT, OWNER = looks_up("rent", "shop"), looks_up("owner", "shop")
TAX = looks_up("tax", "owner", "calendar_year")


@pytest.mark.parametrize("label", ["", " / owner_agent"], ids=["Chinese alone", "a label behind it"])
def test_a_question_is_matched_filled_in_and_followed_in_two_languages(label):
    question = "What is the tax in 2021 of the owner of shop Old Mill?"
    seen = Seen(question, [RENT, OWNER, TAX])
    first = ("get_shop_owner", {"shop": "Old Mill"})
    assert lexical(seen) == [first]
    told = seen._replace(outcomes=[ToolOutcome(*first, None, "Fair Wren", "", irrelevant=False)])
    assert lexical(told) == [("get_owner_tax", {"owner": "Fair Wren", "calendar_year": "2021"})]
    agent, mobile = (
        looks_up("agent", "owner", chinese=f"业主的中介{label}"),
        looks_up("mobile", "agent", chinese=f"中介的手机号{label}"),
    )
    asked = "业主竹园琴台的中介和中介观澜玫瑰的手机号分别是什么？"
    assert lexical(Seen(asked, [agent, mobile])) == [
        ("get_owner_agent", {"owner": "竹园琴台"}),
        ("get_agent_mobile", {"agent": "观澜玫瑰"}),
    ]


def every_call(seen):
    """Call every tool once, with arguments that none of them takes."""
    return [(document.name, {"what": "?"}) for document in seen.documents] if not seen.outcomes else ""


def test_a_program_is_scored_as_a_policy_is(records):
    environments = list(RecordSource(records, Environment))
    found = asyncio.run(evaluate_program(lexical, environments, ALL_BANDS, InProcessSandbox()))
    assert found.figures["f1"] > 0.9  # by words alone
    assert found.figures["tool_calls_per_episode"] >= found.figures["recall"]
    one_turn = ALL_BANDS.model_copy(update={"rollout": ALL_BANDS.rollout.model_copy(update={"max_turns": 1})})
    ended = asyncio.run(evaluate_program(lexical, environments, one_turn, InProcessSandbox()))
    assert ended.figures["recall"] < found.figures["recall"]  # chains need a second turn
    assert any(group[0].stop_reason == "max_turns" for group in ended.groups)


def test_a_program_is_shown_the_distractors_that_a_policy_is_shown():
    environment = with_distractors(tiny_environment(), per_band=2)
    found = asyncio.run(evaluate_program(every_call, [environment], ALL_BANDS, InProcessSandbox()))
    called = [outcome.name.split("_")[0] for outcome in found.groups[0][0].outcomes if outcome.irrelevant]
    assert sorted(called) == ["high", "low", "medium"]


def test_the_command_needs_no_policy_for_a_baseline(tmp_path, capsys, records):
    config = EvaluationConfig.model_validate(CONFIG.model_dump() | {"environments": records, "out": tmp_path / "out"})
    written = config.model_dump(mode="json", exclude_none=True)
    lines = [f"{key} = {json.dumps(value)}" for key, value in written.items() if key != "rollout"]
    lines = [line for line in lines if "{}" not in line]
    rollout = [f"{key} = {json.dumps(value)}" for key, value in config.rollout.model_dump(exclude_none=True).items()]
    (tmp_path / "config.toml").write_text("\n".join([*lines, "[rollout]", *rollout]))
    command = ["evaluate", "environments", str(tmp_path / "config.toml"), "--baseline", "lexical", "--json"]
    assert main(command) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["policy"] == "lexical"
    assert json.loads((tmp_path / "out" / "figures.json").read_text()) == figures
    assert main(command[:-3]) == 2  # a policy, in the same folder
