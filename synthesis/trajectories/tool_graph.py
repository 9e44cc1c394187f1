"""The tool graph: consecutive tools of proposed chains are edges, weighted by number of proposals.

Candidate chains are length-bounded random walks on it, biased by edge weight (ASTRA, SFT data, step 2). Each walk costs
time linear in its length; nothing is enumerated. It is networkx's weighted `DiGraph`: `starts` of a node says how often
a proposal began with the tool, `weight` of an edge how often it was proposed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from synthesis.records import JsonObject

if TYPE_CHECKING:
    from networkx import DiGraph

ToolGraph: TypeAlias = "DiGraph[str]"


def build_tool_graph(chains: Iterable[Sequence[str]]) -> ToolGraph:
    """Count starts and transitions of the proposed chains.

    >>> graph = build_tool_graph([["find", "book"], ["find", "book", "pay"], ["find", "rate"]])
    >>> graph["find"], graph.nodes(data="starts", default=0)["find"]
    (AtlasView({'book': {'weight': 2}, 'rate': {'weight': 1}}), 3)
    """
    import networkx  # here, so that only code with a graph pays for it

    chains = [chain for chain in chains if chain]
    starts, edges = Counter(chain[0] for chain in chains), Counter(edge for chain in chains for edge in pairwise(chain))
    graph: ToolGraph = networkx.DiGraph()
    # The tools that begin come first, in their order: walks are drawn in the order of nodes and edges.
    graph.add_nodes_from((tool, {"starts": count}) for tool, count in starts.items())
    graph.add_weighted_edges_from((tool, successor, weight) for (tool, successor), weight in edges.items())
    return graph


def as_json(graph: ToolGraph) -> JsonObject:
    """Return a graph as JSON.

    >>> as_json(build_tool_graph([["find", "book"]]))
    {'starts': {'find': 1}, 'edges': [['find', 'book', 1]]}
    """
    return {"starts": _starts(graph), "edges": [list(edge) for edge in graph.edges(data="weight")]}


def proposals_per_draw(count: int, draws: int) -> list[int]:
    """Share proposals out over several draws, as evenly as can be; no draw asks for none.

    >>> proposals_per_draw(24, 5), proposals_per_draw(2, 3)
    ([5, 5, 5, 5, 4], [1, 1])
    """
    return [number for draw in range(draws) if (number := count // draws + (draw < count % draws))]


def random_walk(
    graph: ToolGraph, rng: Random, *, min_length: int, max_length: int, acyclic: bool
) -> tuple[str, ...] | None:
    """Draw one chain: a start by its weight, then successors by edge weight, up to a length drawn uniformly.

    The result is None where the walk ends before `min_length` tools. An acyclic walk uses no tool twice.
    """
    starts = _starts(graph)
    if not starts:
        return None
    length = rng.randint(min_length, max_length)
    walk = [_draw(starts, rng)]
    while len(walk) < length:
        open_ones = {tool: edge["weight"] for tool, edge in graph[walk[-1]].items() if not acyclic or tool not in walk}
        if not open_ones:
            break
        walk.append(_draw(open_ones, rng))
    return tuple(walk) if len(walk) >= min_length else None


def sample_candidate_chains(
    graph: ToolGraph, rng: Random, *, num_walks: int, min_length: int = 2, max_length: int = 5, acyclic: bool = True
) -> list[tuple[str, ...]]:
    """Draw `num_walks` walks and return the different chains among them, in the order they came up."""
    walks = (
        random_walk(graph, rng, min_length=min_length, max_length=max_length, acyclic=acyclic) for _ in range(num_walks)
    )
    return list(dict.fromkeys(walk for walk in walks if walk is not None))


def _starts(graph: ToolGraph) -> dict[str, int]:
    return {tool: count for tool, count in graph.nodes(data="starts", default=0) if count}


def _draw(weights: Mapping[str, int], rng: Random) -> str:
    return rng.choices(list(weights), weights=list(weights.values()))[0]
