"""Attacks find the shortcuts that are planted here, and nothing where there are none."""

from __future__ import annotations

import asyncio

import pytest

from astra_jax.episodes.rewards import episode_reward
from astra_jax.episodes.rollout import Start
from astra_jax.errors import UsageError
from astra_jax.evaluate.attacks import (
    attacks_on,
    beliefs_by_meaning,
    gold,
    sharing_a_parameter,
    told_the_names,
    usual_settings,
)
from astra_jax.evaluate.baselines import Seen, run_program
from astra_jax.evaluate.certify import certify
from astra_jax.evaluate.tool_style import blind_accuracy, blind_beliefs, of_schema, of_style
from astra_jax.testing import InProcessSandbox, tiny_environment
from synthesis.answers.expectation import meets_expectation
from synthesis.records import ATTACKS, EnvironmentTool, IrrelevantTool, SubQuestion, ToolCall, ToolDocument

NOTHING_BELIEVED = {"find_flat": 0.0, "get_rent": 0.0}


def tool(name, description, *, parameter="thing", optional=None, source=None):
    properties = {parameter: {"type": "string"}, **(optional or {})}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    document = ToolDocument(name=name, description=description, parameters=parameters)
    return EnvironmentTool(document=document, source=source or f"def {name}({parameter}):\n    return 1\n")


def environment(domain, language, own, siblings, **changes):
    distractors = tuple(IrrelevantTool(tool=each, band="high", similarity=0.9) for each in siblings)
    call = ToolCall(id="c", name=own[0].document.name, arguments=changes.pop("arguments", {"thing": "Old Mill"}))
    asked = SubQuestion(id="q1", question="?", answer=changes.get("answer", 1), call=call)
    changes = {"question": "About Old Mill?", "sub_questions": (asked,), "entities": ("Old Mill",), **changes}
    told = {"domain": domain, "language": language, "tools": tuple(own), "irrelevant_tools": distractors}
    return tiny_environment().model_copy(update={"id": f"{domain}-{own[0].document.name}", **told, **changes})


def set_of(own, sibling, language="en", domains="abcd", each=6):
    return [
        environment(domain, language, [own(f"own_{domain}_{i}")], [sibling(f"sib_{k}_{domain}_{i}") for k in (0, 1)])
        for domain in domains
        for i in range(each)
    ]


@pytest.mark.parametrize(
    ("language", "own", "sibling"),
    [
        ("en", "Returns the surety of an operator", "Looks up money that is put by for a company"),
        ("zh", "返回机动车的登记牌号", "查询交警在路上用来认车的那串字"),
    ],
)
def test_two_registers_are_told_apart_in_a_domain_that_was_never_seen(language, own, sibling):
    environments = set_of(lambda name: tool(name, own), lambda name: tool(name, sibling), language)
    found = blind_accuracy(environments, blind_beliefs(environments, of_style))[language]
    assert (found.accuracy, found.chance, found.num_tools) == (1.0, 0.3333, len(environments))


@pytest.mark.parametrize(("unit", "accuracy"), [({}, 0.3333), ({"unit": {"type": "string", "default": "one"}}, 1.0)])
def test_own_tools_are_found_if_they_alone_have_a_schema_and_else_by_chance(unit, accuracy):
    environments = set_of(lambda name: tool(name, "a", optional=unit), lambda name: tool(name, "a"))
    assert blind_accuracy(environments, blind_beliefs(environments, of_schema))["en"].accuracy == accuracy


def test_without_another_domain_nothing_is_believed_and_no_accuracy_is_told():
    environments = set_of(lambda name: tool(name, "a b"), lambda name: tool(name, "c"), domains="a")
    beliefs = blind_beliefs(environments, of_style)
    assert {value for each in beliefs for value in each.values()} == {0.0}
    assert blind_accuracy(environments, beliefs) == {}


def test_the_tool_nearest_to_the_question_is_believed_and_no_other_with_its_parameter():
    own, sibling = tool("own", "tells the rent of a mill"), tool("sibling", "tells the colour of a barn")
    (found,) = beliefs_by_meaning([environment("a", "en", [own], [sibling], question="Rent of a mill?")], "lexical")
    assert found["own"] == 0.0 > found["sibling"]


def test_the_setting_that_other_domains_ask_for_is_usual():
    masked = {"masked": {"type": "boolean", "default": True}}
    own = [tool("find", "a", optional=masked)]
    asks = {"thing": "Old Mill", "masked": False}
    environments = [environment("a", "en", own, [], arguments=asks) for _ in range(2)]
    environments.append(environment("b", "en", own, []))  # it leaves the default
    assert usual_settings(environments) == {"a": {"masked": True}, "b": {"masked": False}}


def act(program, in_environment, max_turns=9):
    start = Start(in_environment, in_environment.all_tools)
    return asyncio.run(run_program(program, start, InProcessSandbox(), max_turns=max_turns))


def test_names_are_followed_into_nested_replies():
    nested = (
        "def find_flat(owner):\n    return {'items': [{'flat': {'name': 'Amber Falcon'}, 'id': 'A-1'}], 'next': None}\n"
    )
    known = tiny_environment()
    flats = known.tools[0].model_copy(update={"source": nested})
    episode = act(told_the_names(sharing_a_parameter, {}), known.model_copy(update={"tools": (flats, known.tools[1])}))
    made = [(outcome.name, *outcome.arguments.values()) for outcome in episode.outcomes if outcome.ok]
    assert ("get_rent", "Amber Falcon") in made
    assert ("get_rent", "A-1") not in [(each.name, *each.arguments.values()) for each in episode.outcomes]


@pytest.mark.parametrize(
    ("question", "moved"),
    [
        (
            "Move 5,000 from Old Mill, 1902 from Red Barn to New Inn. What has New Inn then?",
            {"Old Mill": 5000, "Red Barn": 1902},
        ),
        (
            "Move 7.5 each from Old Mill and Red Barn to New Inn. What has New Inn then?",
            {"Old Mill": 7.5, "Red Barn": 7.5},
        ),
    ],
)
def test_a_tool_that_changes_a_state_is_called_first_with_the_numbers_of_the_question(question, moved):
    texts, number = {key: {"type": "string"} for key in ("origin", "recipient")}, {"quantity": {"type": "integer"}}
    parameters = {"type": "object", "properties": texts | number, "required": ["origin", "recipient", "quantity"]}
    moving = ToolDocument(name="move", description="a", parameters=parameters)
    documents = [*(tool(name, "a").document for name in ("own", "sibling")), moving]
    seen = Seen(question, documents, names=("Old Mill", "Red Barn", "New Inn"))
    given = [{"origin": name, "recipient": "New Inn", "quantity": number} for name, number in moved.items()]
    assert told_the_names(sharing_a_parameter, {})(seen) == [("move", each) for each in given]


def test_gold_solves_all_and_the_silent_attacks_nothing():
    known = tiny_environment()
    assert episode_reward(act(gold(known), known)) == pytest.approx(1, abs=1e-5)
    programs = attacks_on([known], {"style": [NOTHING_BELIEVED], "schema": [NOTHING_BELIEVED]})
    rewards = {name: episode_reward(act(program, known)) for name, (program,) in programs.items()}
    assert {name for name, reward in rewards.items() if reward == 0} == {
        "empty", "refuse", "ask_back", "copy", "constant", "lexical",
    }  # fmt: skip
    assert rewards["told_names"] > rewards["everything"] > 0


def test_a_calling_attack_ends_with_words_that_refuse_and_ask_back():
    episode = act(told_the_names(sharing_a_parameter, {}), tiny_environment())
    assert all(meets_expectation(expected, episode.final_text) for expected in ("refuse", "ask_back"))


def test_a_tool_that_tells_its_source_is_a_fault():
    leaks = tool("find", "a", source="def find(thing):\n    return sorted(map(str, globals().values()))\n")
    sound = environment("a", "en", [tool("find", "a")], [])
    certificates = [
        asyncio.run(certify([environment("a", "en", [each], [])], InProcessSandbox(), digest="0f"))
        for each in (tool("find", "a"), leaks)
    ]
    assert [certificate.canary_leaks > 0 for certificate in certificates] == [False, True]
    assert certificates[0].fault is None
    assert "source of a tool" in certificates[1].fault
    wrong = sound.model_copy(update={"sub_questions": (sound.sub_questions[0].model_copy(update={"answer": 2}),)})
    assert "gold policy" in asyncio.run(certify([wrong], InProcessSandbox(), digest="0f")).fault


def test_a_set_with_nothing_to_solve_is_refused_and_single_ones_are_counted():
    idle = tiny_environment().model_copy(update={"sub_questions": ()})
    assert asyncio.run(certify([idle, tiny_environment()], InProcessSandbox(), digest="0f")).num_left_out == 1
    with pytest.raises(UsageError, match="anything to solve"):
        asyncio.run(certify([idle], InProcessSandbox(), digest="0f"))


def test_the_certificate_has_all_attacks_and_equal_calls_of_an_environment_run_once():
    class Noting(InProcessSandbox):
        async def execute(self, source, function, arguments, **given):
            made.append((source, repr(arguments), repr(given)))
            return await super().execute(source, function, arguments, **given)

    made = []
    stateful = tiny_environment().model_copy(update={"state": {}})
    certificate = asyncio.run(certify([stateful], Noting(), digest="0f"))
    assert sorted(certificate.attacks) == sorted(ATTACKS)
    assert len(made) == len(set(made)) > 0
