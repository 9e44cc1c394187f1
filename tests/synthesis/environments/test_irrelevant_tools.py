"""Distractors come from other domains, in their bands, without collisions, and from pools of ten thousand tools."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from astra_jax.testing import tiny_environment
from synthesis.embeddings import EmbeddingModel, embed
from synthesis.environments.distractors import irrelevant_tools
from synthesis.environments.distractors.irrelevant_tools import ToolPool, normalised
from synthesis.records import Environment, EnvironmentTool, IrrelevantTool, SubQuestion, ToolCall, ToolDocument
from tests.synthesis.altered import altered


def document(name: str, description: str) -> ToolDocument:
    return ToolDocument(name=name, description=description, parameters={"type": "object", "properties": {}})


def with_tools(environment: Environment, domain: str, documents: list[ToolDocument]) -> Environment:
    tools = tuple(EnvironmentTool(document=item, source="") for item in documents)
    asked = tuple(
        SubQuestion(
            id=item.name,
            question="?",
            answer=1,
            call=ToolCall(id=item.name, name=item.name, arguments={"of": item.name}),
        )
        for item in documents
    )
    return altered(environment, domain=domain, tools=tools, sub_questions=asked, state=None)


ALL = {"high": 5, "medium": 5, "low": 5}


def test_a_distractor_has_a_known_call_needs_no_state_and_is_not_named_as_an_own_tool():
    asked = with_tools(tiny_environment(), "housing", [document("get_rent", "Rent of an apartment")])
    shops = [document("sell", "Sell a shop"), document("get_rent", "Rent of a shop"), document("buy", "Buy a shop")]
    other = with_tools(tiny_environment(), "shops", shops)
    other = altered(other, sub_questions=other.sub_questions[:2])  # no call of `buy` is known
    stateful = altered(with_tools(tiny_environment(), "shops", [document("let", "Let a shop")]), state={"let": []})
    drawn = ToolPool([asked, other, stateful]).draw(asked, ALL, random.Random(0))
    assert [(each.tool.document.name, each.arguments) for each in drawn] == [("sell", {"of": "sell"})]


def test_rows_are_normalised_over_other_domains_alone(environments):
    own = with_tools(environments[0], "housing", [document("get_rent", "Rent of an apartment")])
    other = with_tools(
        environments[0], "shops", [document("get_price", "Price of an apartment"), document("fly", "Book a flight")]
    )
    row = normalised(ToolPool([own, other]).cosines([own.tools[0].document], "housing"))[0]
    assert np.isnan(row[0])
    assert row[1:].tolist() == [1.0, 0.0]


def test_one_domain_alone_has_no_distractors(environments):
    own = with_tools(environments[0], "housing", [document("get_rent", "Rent of an apartment")])
    assert ToolPool([own]).draw(own, {"high": 1}, random.Random(0)) == ()
    assert ToolPool([]).draw(own, {"high": 1}, random.Random(0)) == ()


def test_a_similarity_on_the_edge_of_two_bands_is_in_the_lower_one(monkeypatch):
    """As the paper has it: high above 0.85, medium above 0.4, low the rest."""
    row = {"own": np.nan, "a": 0.0, "b": 0.4, "c": 0.4001, "d": 0.85, "e": 0.8501, "f": 1.0}
    own, *others = (document(name, f"The {name} of it") for name in row)
    asked = with_tools(tiny_environment(), "housing", [own])
    pool = ToolPool([asked, with_tools(tiny_environment(), "shops", others)])
    monkeypatch.setattr(irrelevant_tools, "normalised", lambda _: np.array([list(row.values())]))
    drawn = pool.draw(asked, {"high": 9, "medium": 9, "low": 9}, random.Random(0))
    assert {irrelevant.tool.document.name: (irrelevant.band, irrelevant.similarity) for irrelevant in drawn} == {
        "a": ("low", 0.0), "b": ("low", 0.4), "c": ("medium", 0.4001), "d": ("medium", 0.85), "e": ("high", 0.8501),
        "f": ("high", 1.0),
    }  # fmt: skip
    few = pool.draw(asked, {"high": 1, "low": 1}, random.Random(0))
    assert sorted(irrelevant.band for irrelevant in few) == ["high", "low"]


def test_siblings_are_embedded_with_the_pool_and_none_later(environments, monkeypatch):
    sibling = document("get_fee", "Fee of an apartment")
    own = with_tools(environments[0], "housing", [document("get_rent", "Rent of an apartment")])
    siblings = (
        IrrelevantTool(
            tool=EnvironmentTool(document=sibling, source=""),
            band="high",
            similarity=1.0,
            arguments={"apartment": "Amber Fox"},
        ),
    )
    carrying = altered(own, irrelevant_tools=siblings)
    other = with_tools(environments[0], "shops", [document("fly", "Book a flight")])
    other = altered(other, irrelevant_tools=())
    asked = []

    def embed_and_count(documents, model):
        asked.append((len(documents), model))
        return embed(documents)

    monkeypatch.setattr(irrelevant_tools, "embed", embed_and_count)
    model = EmbeddingModel(folder=Path("nowhere"))
    drawn = ToolPool([carrying, other], model).draw(carrying, {"high": 1}, random.Random(0), siblings)
    assert [irrelevant.tool.document.name for irrelevant in drawn] == ["get_fee"]
    assert drawn[0].arguments == {"apartment": "Amber Fox"}
    assert asked == [(3, model)]
