"""A persona is drawn with a seed, and is one of many."""

from random import Random

import pytest

from synthesis.trajectories.personas import _traits, draw_persona
from synthesis.written_language import foreign_passages


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_same_seed_draws_the_same_person_and_others_draw_others(language):
    drawn = [draw_persona(language, Random(seed)) for seed in range(2000)]
    assert drawn == [draw_persona(language, Random(seed)) for seed in range(2000)]
    assert len(set(drawn)) > 1950
    assert {persona.language for persona in drawn} == {language}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_trait_is_in_its_language_and_is_drawn(language):
    traits = _traits()[language]
    drawn = [draw_persona(language, Random(seed)) for seed in range(3000)]
    for field in ("who", "purpose", "manner"):
        assert {getattr(persona, field) for persona in drawn} == set(getattr(traits, field))
        assert [text for text in getattr(traits, field) if foreign_passages(text, language)] == []
    assert len({persona.knows for persona in drawn}) == len(traits.knowledge)


def test_both_languages_have_as_many_people():
    english, chinese = _traits()["en"], _traits()["zh"]
    assert [len(getattr(english, field)) for field in ("who", "purpose", "manner", "knowledge")] == [
        len(getattr(chinese, field)) for field in ("who", "purpose", "manner", "knowledge")
    ]
