"""A hard world draws questions, tools and siblings from one lexicon, and no wording of a question stands in a tool."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest

from synthesis.procedural.hard_wording import VARIANTS, HardWording, lexicon
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.procedural.world_questions import lookup_question
from synthesis.procedural.worlds import World, domains, world_of
from synthesis.prompts.tool_writing import WriteSiblingTools
from synthesis.questions.knowledge import Knowledge
from synthesis.records import Language, ToolCall, canonical_json

LANGUAGES: tuple[Language, ...] = ("en", "zh")
_SMALL_WORDS = frozenset({
    "a", "an", "the", "of", "in", "for", "to", "and", "or", "by", "on", "at",
    "with", "from", "its", "is", "are", "per", "this", "that", "only",
})  # fmt: skip
KINDS = {"amount": "number", "funds": "number", "decimal": "number"}


def content(text: str) -> set[str]:
    """The beginnings of English content words, so that forms of one word count as one; of Chinese ones each pair."""
    text = re.sub(r"\{n\}", " ", text.lower())
    pieces = re.sub("[，。、的了在是年月和及与或有一]", " ", text).split()
    pairs = {piece[i : i + 2] for piece in pieces if not piece.isascii() for i in range(len(piece) - 1)}
    return pairs | {word[:5] for word in re.findall("[a-z]+", text) if word not in _SMALL_WORDS and len(word) > 2}


def properties(domain: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for entity_type, fields in domains()[domain].items():
        for name in (*fields.attributes, *fields.relations):
            yield entity_type, name, lexicon(domain)[entity_type][name]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("domain", domains())
def test_no_two_nouns_of_a_property_share_a_content_word_and_none_is_a_variants(
    domain: str, language: Language
) -> None:
    for entity_type, name, words in properties(domain):
        assert len(words[language]) >= 4
        for one, other in combinations(words[language], 2):
            assert not content(one) & content(other), (entity_type, name, one, other)
        of_variants = {
            word for listed in VARIANTS[words["values"]][language] for each in listed for word in content(each)
        }
        assert not of_variants & content(" ".join(words[language])), (entity_type, name)
    for entity_type, words in lexicon(domain).items():
        assert len(words["parameters"]) >= 3 <= len(words["kinds"][language])
        for one, other in combinations(words["kinds"][language], 2):
            assert not content(one) & content(other), (entity_type, one, other)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", VARIANTS)
def test_no_two_wordings_of_the_variants_of_a_kind_share_a_content_word(kind: str, language: Language) -> None:
    listed = VARIANTS[kind][language]
    assert len(listed) == 12 == len(VARIANTS[kind]["en"])
    wordings = [wording for of_variant in listed for wording in of_variant]
    assert all(wording.count("{n}") == 1 for wording in wordings)
    # What stands before a property is short, and nothing stands behind it, in a question.
    assert all(wording.endswith("{n}") for of_variant in listed for wording in of_variant[:2])
    for one, other in combinations(wordings, 2):
        assert not content(one) & content(other), (one, other)


@pytest.mark.parametrize("domain", domains())
def test_the_kind_of_values_is_the_kind_in_the_world(domain: str) -> None:
    for entity_type, name, words in properties(domain):
        fields = domains()[domain][entity_type]
        kind = "relation" if name in fields.relations else fields.attributes[name][1]
        assert words["values"] == ("code" if name in ("isbn", "account_number") else KINDS.get(kind, kind))


def words_of(world: World) -> HardWording:
    assert world.hard is not None
    return world.hard


def test_a_property_has_each_of_its_variants_in_some_world_and_names_stand_for_one_tool_each() -> None:
    worlds = [words_of(world_of("library", "en", seed, None, "worlds", "hard")) for seed in range(120)]
    again = words_of(world_of("library", "en", 119, None, "worlds", "hard"))
    assert again == worlds[-1]
    for key in worlds[0].drawn:
        drawn = Counter(words.drawn[key] for words in worlds)
        assert len(drawn) == 12
        assert max(drawn.values()) <= 25
    for words in worlds[:20]:
        documents = [*words.documents.values(), *(each for listed in words.siblings.values() for each in listed)]
        assert len({document.name for document in documents}) == len(documents) == 12 * len(words.documents)
        for key, document in words.documents.items():
            assert {each.required for each in words.siblings[key]} == {document.required}


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
        count=10,
    )
    siblings = (await ProceduralTeacher().ask(request, seed=0)).tools
    assert len(siblings) == 10
    for sibling in siblings:
        assert sibling.document.required == document.required
        assert all(f'"{name}"' in canonical_json(sibling.tables) for name in names[:7])
