"""Reworded worlds: question and tool have one meaning in two wordings, which alone tells a tool from its siblings."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from synthesis.procedural.environments import write_sibling_tools
from synthesis.procedural.reworded import SIBLINGS, Meaning, document_forms, meanings, reworded
from synthesis.procedural.world_questions import lookup_question
from synthesis.procedural.worlds import World, world_of
from synthesis.prompts.tool_writing import WriteSiblingTools
from synthesis.questions.knowledge import Knowledge, Unseen
from synthesis.records import Language, ToolCall, ToolDocument

LANGUAGES: tuple[Language, ...] = ("en", "zh")
EVERY_MEANING = [*meanings(), *meanings("tools")]


def world(language: Language = "en", seed: int = 0, unseen: Unseen = "worlds") -> World:
    return world_of("library", language, seed, None, unseen, "reworded")


def meaning_of(text: str, language: Language) -> Meaning:
    (found,) = [each for each in EVERY_MEANING if any(wording in text.lower() for wording in each.wordings(language))]
    return found


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_wording_stands_in_another(language):
    wordings = [wording for each in EVERY_MEANING for wording in each.wordings(language)]
    assert {(a, b) for a in wordings for b in wordings if a != b and a in b} == set()
    assert {len(each.wordings(language)) for each in EVERY_MEANING} == {3}


@pytest.mark.parametrize("unseen", ["worlds", "tools"])
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_question_and_its_tool_have_one_meaning_in_two_wordings(language, unseen):
    here = world(language, unseen=unseen)
    words = here.rewording
    for key, document in words.documents.items():
        asked, told = words.asks[key], meaning_of(document.description, language)
        assert asked in told.wordings(language)
        assert asked not in document.description.lower()
        assert told in meanings(unseen)
        others = [meaning_of(sibling.description, language) for sibling in words.siblings[key]]
        assert len({told, *others}) == 1 + SIBLINGS
        assert {sibling.required for sibling in words.siblings[key]} == {document.required}
    names = [each.name for key in words.documents for each in (words.documents[key], *words.siblings[key])]
    assert len(names) == len({*names})


def test_the_question_asks_in_its_own_wording():
    here = world()
    fact = here.fact("book", here.entities["book"][0], "author")
    assert f"the {here.rewording.asks['book', 'author']} author of book" in lookup_question(here, fact)


def test_no_form_or_wording_is_the_own_tools_more_often():
    rng, own, others = random.Random(0), Counter(), Counter()
    labels = {(f"type{i}", "rent"): (f"type{i}", "rent") for i in range(10)}
    for _ in range(300):
        words = reworded(rng, "en", labels, (), meanings(), document_forms("year"))
        for key, document in words.documents.items():
            own[style(document)] += 1
            others.update(map(style, words.siblings[key]))
    shares = {each: (own[each] / own.total(), others[each] / others.total()) for each in own | others}
    assert max(abs(one - other) for one, other in shares.values()) < 0.03


def style(document: ToolDocument) -> tuple[str, str]:
    return document.name.split("_")[0][:4] * (not document.name.startswith("type")), document.description.split()[0]


@pytest.mark.parametrize("kind", ["relation", "date", "yearly"])
def test_siblings_take_the_same_names_and_give_other_values(kind):
    domain = "education" if kind == "yearly" else "library"
    here = world_of(domain, "en", 0, None, "worlds", "reworded")
    key = next(each for each in here.values if here.kind(*each) == kind)
    entity = here.entities[key[0]][0]
    fact = here.fact(key[0], entity, key[1], "2023" if kind == "yearly" else None)
    document = here.lookup_document(*key)
    arguments = {key[0]: entity} | ({here.wording.year: "2023"} if kind == "yearly" else {})
    request = WriteSiblingTools(
        knowledge=Knowledge(domain=domain, language="en", seed=0, difficulty="reworded"),
        document=document,
        sub_question=lookup_question(here, fact),
        calls=(ToolCall(id="1", name=document.name, arguments=arguments),),
        count=8,
    )
    tools = write_sibling_tools(request, 0).tools
    assert len(tools) == SIBLINGS
    for tool in tools:
        ((_, rows),) = tool.tables.items()
        assert entity in rows
        told = {str(value) for row in rows.values() for value in (row.values() if kind == "yearly" else [row])}
        assert not told & here.known
