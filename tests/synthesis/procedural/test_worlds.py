"""Generated worlds are consistent, and the teacher looks its facts up in them."""

from __future__ import annotations

import random

import pytest

from synthesis.procedural.world_questions import draw_instance, facts_by_question
from synthesis.procedural.worlds import domains, world_of
from synthesis.teacher.protocol import BadReply
from synthesis.written_language import foreign_passages


def test_there_are_at_least_eight_domains_and_every_type_can_be_reached() -> None:
    assert len(domains()) >= 8
    for domain, types in domains().items():
        assert {relation for entity_type in types.values() for relation in entity_type.relations} == set(types), domain


def test_no_two_tools_of_different_domains_share_a_name() -> None:
    names = [
        f"get_{name}_{property_name}"
        for types in domains().values()
        for name, entity_type in types.items()
        for property_name in [*entity_type.attributes, *entity_type.relations]
    ]
    assert len(set(names)) == len(names)


def test_relations_lead_to_entities_and_properties_never_repeat_a_value() -> None:
    for domain in domains():
        world = world_of(domain, "zh", 7)
        names = [name for entities in world.entities.values() for name in entities]
        assert len(set(names)) == len(names)
        for (entity_type, property_name), rows in world.values.items():
            values = [v for row in rows.values() for v in (row.values() if isinstance(row, dict) else [row])]
            assert len(set(values)) == len(values)
            if world.kind(entity_type, property_name) == "relation":
                assert set(values) <= set(world.entities[property_name])


def test_each_question_of_a_world_asks_for_one_fact() -> None:
    for language in ("en", "zh"):
        for domain in domains():
            world = world_of(domain, language, 1)
            count = sum(len(row) if isinstance(row, dict) else 1 for r in world.values.values() for row in r.values())
            assert len(facts_by_question(world)) == count


def test_an_impossible_shape_is_a_bad_reply() -> None:
    with pytest.raises(BadReply, match="no parallel_multi_hop question of 40 lookups"):
        draw_instance(
            world_of("library", "en", 0), random.Random(0), "parallel_multi_hop", 40, with_computation=True, max_hops=2
        )


@pytest.mark.parametrize("unseen", ["worlds", "tools"])
def test_chinese_documents_end_with_the_label_of_their_tool_and_are_chinese_all_the_same(unseen) -> None:
    for domain in domains(unseen):
        chinese, english = (world_of(domain, language, 3, unseen=unseen) for language in ("zh", "en"))
        for entity_type, property_name in chinese.values:
            document = chinese.lookup_document(entity_type, property_name)
            said, _, label = document.description.partition(" / ")
            assert label == f"{entity_type}_{property_name}"
            assert {*label.split("_")} <= {*document.name.split("_")}
            assert chinese.label(entity_type, property_name) in said
            assert not foreign_passages(document.description, "zh")
            assert "/" not in english.lookup_document(entity_type, property_name).description
