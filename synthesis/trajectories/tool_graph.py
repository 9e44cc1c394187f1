"""The tool graph: consecutive tools of proposed chains are edges, weighted by number of proposals.

Candidate chains are length-bounded random walks on it, biased by edge weight (ASTRA, SFT data, step 2). Each walk costs
time linear in its length; nothing is enumerated.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from synthesis.records import JsonObject


class ToolGraph(NamedTuple):
    """A weighted directed graph; walks are drawn in the order of its tools."""

    starts: Counter[str]
    """Number of proposals that begin with a tool."""
    edges: dict[str, Counter[str]]
    """Tool to its successors, with the number of times that the two were proposed in a row."""

    def as_json(self) -> JsonObject:
        """Return the graph as JSON.

        >>> build_tool_graph([["find", "book"]]).as_json()
        {'starts': {'find': 1}, 'edges': [['find', 'book', 1]]}
        """
        edges = [[tool, *edge] for tool, successors in self.edges.items() for edge in successors.items()]
        return {"starts": dict(self.starts), "edges": edges}


def build_tool_graph(chains: Iterable[Sequence[str]]) -> ToolGraph:
    """Count starts and transitions of the proposed chains.

    >>> graph = build_tool_graph([["find", "book"], ["find", "book", "pay"], ["find", "rate"]])
    >>> graph.starts["find"], graph.edges["find"]
    (3, Counter({'book': 2, 'rate': 1}))
    """
    chains = [chain for chain in chains if chain]
    starts = Counter(chain[0] for chain in chains)
    edges: dict[str, Counter[str]] = {tool: Counter() for tool in starts}  # the tools that begin come first
    for tool, successor in (edge for chain in chains for edge in pairwise(chain)):
        edges.setdefault(tool, Counter())[successor] += 1
        edges.setdefault(successor, Counter())
    return ToolGraph(starts, edges)


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
    if not graph.starts:
        return None
    length = rng.randint(min_length, max_length)
    walk = [_draw(graph.starts, rng)]
    while len(walk) < length:
        successors = graph.edges[walk[-1]].items()
        open_ones = {tool: weight for tool, weight in successors if not acyclic or tool not in walk}
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


def _draw(weights: Mapping[str, int], rng: Random) -> str:
    return rng.choices(list(weights), weights=list(weights.values()))[0]
