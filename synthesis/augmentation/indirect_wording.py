"""Indirect wording: the question in a lay person's words, from the lexicons that hard environments are worded with.

    What is the monthly rent of apartment Amber Fox?
    Quick question: Tell me the price of renting the flat Amber Fox for a month. Thanks.

The question is written anew from what it is made of, the gold calls and Φ: so it asks for the same. Tools and calls
stay. Of tools that the lexicons do not know no other words are known.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from typing import Final

from synthesis.answers.same_answer import same_answer
from synthesis.environments.questions.qa_instances import mentions, ways_to_answer
from synthesis.procedural.hard_questions import hard_question
from synthesis.procedural.worlds import Fact, World, domains, world_of
from synthesis.records import Environment, SubQuestion
from synthesis.stage import Rejected

MAX_DRAWS: Final = 8


def word_indirectly(environment: Environment, rng: random.Random) -> Environment:
    """Ask for the same in words that do not stand in the documents of the tools.

    Raises:
        Rejected: no other words are known, or those that were drawn tell an answer or lead to a tool.
    """
    if environment.is_stateful or environment.expectation != "answer" or environment.difficulty == "hard":
        raise Rejected("is hard, has a state, or lacks something", environment.id)
    if environment.domain not in domains() or environment.composition is None:
        raise Rejected("no other words are known", environment.domain)
    # Only its words: whose facts they are about, the environment says.
    world = world_of(environment.domain, environment.language, rng.randrange(2**31), difficulty="hard")
    assert world.hard is not None
    walks = _walks(environment, world)
    facts = {fact for walk in walks for fact in walk}
    labels = {_label(world, fact) for fact in facts}
    for _ in range(MAX_DRAWS):
        question = hard_question(world, world.hard, rng, environment.composition, walks)
        if not any(_leads_to(label, question) for label in labels) and not _tells_more(environment, question):
            break
    else:
        raise Rejected("other words lead to a tool, or tell an answer", question)
    for walk in walks:
        if lost := [told for told in (walk[0].entity, *(fact.year for fact in walk)) if told and told not in question]:
            raise Rejected("other words lose a fact", f"{lost} in {question!r}")
    return environment.model_copy(update={"question": question})


def _walks(environment: Environment, world: World) -> list[list[Fact]]:
    """Return for each input of Φ the facts that lead to it, from the first one that the question names."""
    assert environment.composition is not None
    asked = {each.id: each for each in environment.sub_questions}
    known = _properties(world)

    def walk_to(sub_question: SubQuestion) -> Iterator[Fact]:
        if len(sub_question.depends_on) > 1 or sub_question.call is None or sub_question.call.name not in known:
            raise Rejected("no other words are known", sub_question.question)
        entity_type, name = known[sub_question.call.name]
        entity, year = (sub_question.call.arguments.get(key) for key in (entity_type, world.wording.year))
        for parent in sub_question.depends_on:
            if not same_answer(asked[parent].answer, entity, asked[parent].aliases):
                raise Rejected("no other words are known", sub_question.question)
            yield from walk_to(asked[parent])
        if not isinstance(entity, str) or (not sub_question.depends_on and not mentions(environment.question, entity)):
            raise Rejected("no other words are known", sub_question.question)
        if not isinstance(year, str | None) or isinstance(sub_question.answer, list | dict):  # no fact of a world
            raise Rejected("no other words are known", sub_question.question)
        yield Fact(entity, entity_type, name, year, sub_question.answer)

    return [list(walk_to(asked[source])) for source in environment.composition.inputs]


def _properties(world: World) -> Mapping[str, tuple[str, str]]:
    return {world.wording.lookup_of(*key): key for key in world.values}


def _label(world: World, fact: Fact) -> str:
    return world.label(fact.entity_type, fact.property)


def _leads_to(label: str, question: str) -> bool:
    """Say whether all words of a label stand in a question, as a matcher of words looks for them."""
    if not label.isascii():
        return label in question
    words = set(re.findall(r"[a-z]+", question.casefold()))
    return all(word in words or word.removesuffix("s") in words for word in label.casefold().split())


def _tells_more(environment: Environment, question: str) -> bool:
    answers = [
        *ways_to_answer(environment),
        *(way for each in environment.sub_questions for way in ways_to_answer(each)),
    ]
    return any(mentions(question, answer) and not mentions(environment.question, answer) for answer in answers)
