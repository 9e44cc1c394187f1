"""Hard questions are short and flat, and their judge says so; documents do not tell blind which tool is needed."""

from __future__ import annotations

import random
import re
import statistics
import zlib

import numpy as np
import pytest

from astra_jax.config import CONFIGS, load_config
from synthesis.environments.config import EnvironmentsConfig
from synthesis.environments.selection.quotas import plan_environments
from synthesis.procedural.hard_questions import judge_naturalness, length_of
from synthesis.procedural.world_questions import draw_instance, facts_by_question
from synthesis.procedural.worlds import YEARS, World, domains, world_of
from synthesis.prompts.decompositions import JudgeNaturalness
from synthesis.records import Language, ToolDocument

LANGUAGES: tuple[Language, ...] = ("en", "zh")


def hard_world(domain: str, language: Language, seed: int) -> World:
    return world_of(domain, language, seed, None, "worlds", "hard")


def score(question: str, language: Language = "en") -> float:
    return judge_naturalness(JudgeNaturalness(question=question, language=language), 0).naturalness


@pytest.mark.parametrize(("language", "fair", "most"), [("en", 30, 50), ("zh", 50, 85)])
def test_questions_of_the_papers_mix_are_as_long_as_a_person_would_say(
    language: Language, fair: int, most: int
) -> None:
    config = load_config(EnvironmentsConfig, CONFIGS / "paper_environments.toml")
    config = config.model_copy(update={"count": 40, "seed": 0, "languages": {language: 1.0}})
    asked = [
        draw_instance(
            hard_world(plan.domain, language, plan.index),
            random.Random(plan.index),
            plan.scenario,
            plan.num_lookups,
            with_computation=plan.with_computation,
            max_hops=config.max_hops,
        ).question
        for plan in plan_environments(config)
    ]
    kept = [each for each in asked if score(each, language) >= config.naturalness_threshold]
    assert len(kept) >= 0.97 * len(asked)
    assert len({re.sub(r"[A-Z]\w+ [A-Z]\w+", "", each) for each in kept}) == len(kept)
    assert statistics.mean(length_of(each, language) for each in kept) <= fair
    assert max(length_of(each, language) for each in kept) <= most


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("domain", sorted(domains()))
def test_sub_questions_ask_in_the_words_of_the_question(domain: str, language: Language) -> None:
    """They say which variant is meant, which tells a tool from its siblings: gold thoughts quote them."""
    for seed in range(10):
        world = hard_world(domain, language, seed)
        instance = draw_instance(world, random.Random(seed), "single_hop", 1, with_computation=False, max_hops=1)
        facts = facts_by_question(world)
        assert len(facts) == sum(
            len(rows) * (len(YEARS) if world.kind(*key) == "yearly" else 1) * len(world.settings(*key))
            for key, rows in world.values.items()
        )
        (asked,) = instance.nodes
        fact = facts[asked.question]
        words = world.asked(fact.entity_type, fact.property)
        named = f"{world.type_asked(fact.entity_type)}{'' if language == 'zh' else ' '}{fact.entity}"
        assert all(words in each and named in each for each in (instance.question, asked.question))


def test_the_judge_takes_nesting_and_length_for_faults() -> None:
    assert score("The flat Amber Fox has a landlord. Which bank does that landlord use?") == 1
    nested = "the rent of the flat that the agent of the landlord who owns the house of the brother of Ann has"
    assert score(f"What is {nested}?") < 0.5
    assert score(f"What is {nested}?") < score("What is the rent of the flat that the agent of the landlord has?")
    assert score("What is the rent, " + "and the rent of Ann, " * 11 + "please?") < 0.5
    assert score("请问" + "张三的弟弟的邻居的房东的" * 2 + "租金是多少？", "zh") < 0.5


def features(document: ToolDocument) -> np.ndarray:
    text = f"^{document.name} {document.description}$".lower()
    places = [zlib.crc32(text[i : i + n].encode()) % 1024 for n in (2, 3, 4) for i in range(len(text) - n + 1)]
    counts = np.sqrt(np.bincount(places, minlength=1024))
    sizes = [1, len(document.description) / 50, len(document.name) / 20, len(document.parameters["properties"])]
    return np.concatenate([counts / np.linalg.norm(counts), sizes])


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_model_of_style_does_not_find_the_needed_tool_among_its_siblings(language: Language) -> None:
    """Trained on the other domains, ridge regression picks one of 11 tools."""
    groups: dict[str, list[np.ndarray]] = {}
    for domain in domains():
        of_domain = groups[domain] = []
        for seed in range(5):
            words = hard_world(domain, language, seed).hard
            assert words is not None
            for key in random.Random(seed).sample(sorted(words.documents), 4):
                listed = [words.documents[key], *words.siblings[key][:10]]
                of_domain.append(np.array([features(document) for document in listed]))
    rows = {domain: np.concatenate(of_domain) for domain, of_domain in groups.items()}
    squares = {domain: each.T @ each for domain, each in rows.items()}
    products = {domain: each.T @ np.tile([1.0] + [-0.1] * 10, len(groups[domain])) for domain, each in rows.items()}
    found = []
    for domain, tested in groups.items():
        of_others = sum(squares.values()) - squares[domain] + np.eye(rows[domain].shape[1])
        weights = np.linalg.solve(of_others, sum(products.values()) - products[domain])
        found += [bool(np.argmax(group @ weights) == 0) for group in tested]
    assert np.mean(found) <= 1 / 11 + 0.1
