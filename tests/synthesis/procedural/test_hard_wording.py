"""A hard world's questions share no content word with the documents of the tools that answer them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from synthesis.procedural.hard_wording import HardWording, lexicon
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.procedural.world_questions import lookup_question
from synthesis.procedural.worlds import World, domains, world_of
from synthesis.prompts.tool_writing import WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import ToolCall, canonical_json

_SMALL_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        "a an the of in for to and or by on at with from its is are was were be been it that which who whom whose what "
        "how much many when where there one each every per this these those as into under over than then they their "
        "them he she his her you your i my me we our has have had do does did will would can could may any all some "
        "not no so if up out most more year",
    )
)


def english_words(text: str) -> set[str]:
    """The beginnings of content words, so that forms of one word count as one."""
    return {word[:5] for word in re.findall(r"[a-z]+", text.lower()) if word not in _SMALL_WORDS and len(word) > 2}


def chinese_pairs(text: str) -> set[str]:
    pieces = re.sub(r"\{\w+\}|[，。、的了在是每年月个和及与或有一]", " ", text).split()
    return {piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1)}


def wordings(domain: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for entity_type, fields in domains()[domain].items():
        for name in (*fields.attributes, *fields.relations):
            yield entity_type, name, lexicon(domain)[entity_type][name]


@pytest.mark.parametrize("domain", domains())
def test_no_content_word_of_a_question_stands_in_its_tools_document(domain: str) -> None:
    for entity_type, name, wording in wordings(domain):
        for ask in wording["en"]["asks"]:
            for text in (*wording["en"]["documents"], *(stem.replace("_", " ") for stem in wording["names"])):
                assert not english_words(ask) & english_words(text), (entity_type, name, ask, text)
        for ask in wording["zh"]["asks"]:
            for text in wording["zh"]["documents"]:
                assert not chinese_pairs(ask) & chinese_pairs(text), (entity_type, name, ask, text)


@pytest.mark.parametrize("domain", domains())
def test_every_property_has_several_wordings_and_siblings(domain: str) -> None:
    for entity_type, fields in domains()[domain].items():
        words = lexicon(domain)[entity_type]
        assert len(set(words["parameters"]) - {entity_type}) >= 3
        for name in (*fields.attributes, *fields.relations):
            wording = words[name]
            is_yearly = name in fields.attributes and fields.attributes[name][1] == "yearly"
            siblings = {sibling["name"] for sibling in wording["siblings"]}
            assert min(len(siblings), len(set(wording["names"]))) >= 3
            assert not siblings & set(wording["names"])
            for language in ("en", "zh"):
                assert len(set(words[language]["kinds"])) >= 3
                assert len(set(wording[language]["documents"])) >= 2
                assert len(set(wording[language]["asks"])) >= 4
                for ask in wording[language]["asks"]:
                    assert ask.count("{x}") == 1, (entity_type, name, ask)
                    assert ("{year}" in ask) == is_yearly, (entity_type, name, ask)


def words_of(world: World) -> HardWording:
    assert world.hard is not None
    return world.hard


def test_names_of_tools_are_drawn_anew_and_stand_for_one_tool_each() -> None:
    one, same, other = (words_of(world_of("library", "en", seed, None, "worlds", "hard")) for seed in (0, 0, 1))
    assert one == same
    names = [{document.name for document in words.documents.values()} for words in (one, other)]
    assert len(names[0] & names[1]) < len(names[0]) / 2
    documents = [*one.documents.values(), *(each for listed in one.siblings.values() for each in listed)]
    assert len({document.name for document in documents}) == len(documents)


async def test_a_tool_that_is_called_for_nearly_every_entity_has_siblings_too() -> None:
    world = world_of("library", "en", 0, None, "worlds", "hard")
    words, names = words_of(world), world.entities["book"]
    document = words.documents["book", "author"]
    request = WriteSiblingTools(
        knowledge=Knowledge(domain="library", language="en", difficulty="hard"),
        document=document,
        sub_question=lookup_question(world, world.fact("book", names[0], "author")),
        calls=tuple(
            ToolCall(id=f"call_{name}", name=document.name, arguments={words.parameters["book"]: name})
            for name in names[:7]
        ),
        count=2,
    )
    siblings = (await ProceduralTeacher().ask(request, seed=0)).tools
    assert len(siblings) == 2
    for sibling in siblings:
        assert all(f'"{name}"' in canonical_json(sibling.tables) for name in names[:7])
