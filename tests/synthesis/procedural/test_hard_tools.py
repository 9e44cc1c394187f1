"""Hard worlds hang together; their tools have many shapes of code, reply with records, and take settings asked for."""

from __future__ import annotations

import ast
import random
from collections import Counter
from collections.abc import Iterator
from itertools import product

import pytest

from synthesis.procedural.environments import implemented, write_tool_call
from synthesis.procedural.hard_options import OPTIONS
from synthesis.procedural.hard_worlds import ranges
from synthesis.procedural.tool_shapes import shape_of
from synthesis.procedural.world_questions import draw_instance, facts_by_question
from synthesis.procedural.worlds import World, domains, world_of
from synthesis.prompts.tool_writing import ToolImplementation, WriteToolCall
from synthesis.questions.knowledge import Knowledge
from synthesis.records import JsonValue, Scenario, ToolDocument
from synthesis.teacher.protocol import BadReply


def hard_world(domain: str, seed: int = 0, language: str = "en") -> World:
    return world_of(domain, language, seed, None, "worlds", "hard")  # type: ignore[arg-type]


def cells(rows: JsonValue) -> list[JsonValue]:
    return [cell for row in rows.values() for cell in (row.values() if isinstance(row, dict) else [row])]


@pytest.mark.parametrize("domain", domains())
def test_relations_are_many_to_one_and_inverses_agree(domain: str) -> None:
    world = hard_world(domain, 4)
    relations = [(name, target) for name, fields in world.types.items() for target in fields.relations]
    shared = [key for key in relations if len(set(world.values[key].values())) < len(world.values[key])]
    assert len(shared) >= len(relations) / 2
    for one, other in relations:
        if (other, one) in relations and len(world.entities[one]) <= len(world.entities[other]):
            for entity, leads_to in world.values[one, other].items():
                assert world.values[other, one][leads_to] == entity


def test_a_longer_circle_leads_back_to_where_it_began() -> None:
    world = hard_world("real_estate", 2)
    owner, agent, developer = (
        world.values[key] for key in [("apartment", "owner"), ("owner", "agent"), ("agent", "developer")]
    )
    for name, apartment in world.values["developer", "apartment"].items():
        assert (
            developer[agent[owner[apartment]]] == name
            or world.values["building", "developer"][world.values["apartment", "building"][apartment]] == name
        )


@pytest.mark.parametrize("domain", domains())
def test_every_number_and_date_has_a_range_and_stands_within_it(domain: str) -> None:
    world = hard_world(domain, 1, "zh")
    every = []
    for (entity_type, name), rows in world.values.items():
        every += cells(rows) if name not in world.types[entity_type].relations else []
        kind = world.kind(entity_type, name)
        if kind in ("relation", "phone", "code"):
            continue
        least, greatest, _, _ = ranges(domain)[entity_type][name]
        for cell in cells(rows):
            assert least <= (int(cell[:4]) if kind == "date" else cell) <= greatest
    assert len(set(every)) == len(every)


Made = tuple[ToolDocument, ToolImplementation]


def tools(seeds: int) -> Iterator[Made]:
    for domain, seed in product(domains(), range(seeds)):
        world = hard_world(domain, seed, "zh" if seed % 3 == 0 else "en")
        for (entity_type, name), rows in world.values.items():
            document = world.lookup_document(entity_type, name)
            yield document, implemented(world, document, entity_type, name, dict(list(rows.items())[:5]))


def shape(source: str) -> str:
    """The syntax tree without names, texts and numbers."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for field in ("name", "id", "arg", "attr"):
            if isinstance(getattr(node, field, None), str):
                setattr(node, field, "_")
        if isinstance(node, ast.Constant) and not isinstance(node.value, bool | None):
            node.value = "_"
    return ast.dump(tree)


def test_300_tools_have_40_shapes_of_code_and_most_reply_with_records() -> None:
    made = [tool for _, tool in random.Random(0).sample(list(tools(3)), 300)]
    assert len({shape(tool.source) for tool in made}) >= 40
    assert sum(bool(tool.path) for tool in made) >= 0.6 * len(made)


def test_every_family_of_tools_is_there_and_gives_each_row_its_value() -> None:
    families: Counter[str] = Counter()
    for domain, seed in product(domains(), range(3)):
        world = hard_world(domain, seed)
        for entity_type, name in world.values:
            kind = world.kind(entity_type, name)
            document = world.hard.documents[entity_type, name] if world.hard else None
            assert document is not None
            families[shape_of(seed, document, kind, "").family] += 1
    assert set(families) == {"lookup", "search", "filter", "total", "latest", "compute"}
    assert min(families.values()) >= 10


def test_tools_of_one_property_have_one_code_and_the_same_row_for_an_entity() -> None:
    for domain, seed in product(("library", "travel"), range(3)):
        world = hard_world(domain, seed)
        for (entity_type, name), rows in world.values.items():
            document = world.lookup_document(entity_type, name)
            parts = [dict(list(rows.items())[:number]) for number in (5, 7)]
            one, other = (implemented(world, document, entity_type, name, part) for part in parts)
            assert (one.source, one.path) == (other.source, other.path)
            for table, held in one.tables.items():
                more = other.tables[table]
                if isinstance(held, list):
                    assert all(row in more for row in held)
                elif isinstance(held, dict):
                    assert held.items() <= more.items() if table.endswith("_ids") else more == {**more, **held}


SHAPES: tuple[tuple[Scenario, int], ...] = (("single_hop", 1), ("multi_hop", 3), ("parallel_single_hop", 3))


def test_each_setting_of_an_option_is_asked_for_and_set_in_at_least_a_fifth_of_the_calls() -> None:
    asked: Counter[tuple[str, JsonValue]] = Counter()
    num_set: Counter[str] = Counter()
    for seed, domain in product(range(18), domains()):
        knowledge = Knowledge(domain=domain, language="en", seed=seed, difficulty="hard")
        world, (scenario, lookups) = hard_world(domain, seed), SHAPES[seed % 3]
        try:
            instance = draw_instance(world, random.Random(seed), scenario, lookups, with_computation=False, max_hops=5)
        except BadReply:
            continue
        facts = facts_by_question(world)
        for node in instance.nodes:
            fact = facts[node.question]
            if fact.setting is None:
                continue
            document = world.lookup_document(fact.entity_type, fact.property)
            call = write_tool_call(WriteToolCall(knowledge=knowledge, node=node, document=document), 0)
            option = world.options[fact.entity_type, fact.property]
            asked[option, fact.setting] += 1
            num_set[option] += option in call.arguments
            words = fact.phrase.replace("{x}", "").strip()
            assert words in instance.question
            assert (words == "") == (fact.setting == OPTIONS[option]["settings"][0])
    for option, of in OPTIONS.items():
        total = sum(asked[option, setting] for setting in of["settings"])
        assert total >= 12, option
        assert num_set[option] >= 0.2 * total, option
        assert min(asked[option, setting] for setting in of["settings"]) >= 0.15 * total, (option, asked)
