"""The tool graph: consecutive tools of proposed chains are directed edges, weighted by how often they were proposed.

Candidate chains are length-bounded random walks on it, biased by edge weight (ASTRA, SFT data, step 2). Each walk costs
time linear in its length; nothing is enumerated.

Decided: docs/decisions/trajectories.md, “A server's chains may be proposed in several draws”.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random


@dataclass(frozen=True)
class ToolGraph:
    """How often each tool began a proposal, and how often each followed another."""

    starts: Mapping[str, int]
    edges: Mapping[str, Mapping[str, int]]

    @property
    def num_edges(self) -> int:
        """Number of distinct edges."""
        return sum(len(successors) for successors in self.edges.values())


def edge_weights(graph: ToolGraph) -> dict[int, int]:
    """Count the edges of a graph by their weight: where all have weight 1, walks on it are not biased by anything.

    >>> edge_weights(build_tool_graph([["find", "book"], ["find", "book", "pay"], ["find", "rate"]]))
    {1: 2, 2: 1}
    """
    return dict(
        sorted(Counter(weight for successors in graph.edges.values() for weight in successors.values()).items())
    )


def build_tool_graph(chains: Iterable[Sequence[str]]) -> ToolGraph:
    """Count starts and transitions of the proposed chains.

    >>> graph = build_tool_graph([["find", "book"], ["find", "book", "pay"], ["find", "rate"]])
    >>> graph.edges["find"], graph.starts
    (Counter({'book': 2, 'rate': 1}), Counter({'find': 3}))
    """
    starts: Counter[str] = Counter()
    edges: dict[str, Counter[str]] = {}
    for chain in chains:
        if chain:
            starts[chain[0]] += 1
        for tool, successor in pairwise(chain):
            edges.setdefault(tool, Counter())[successor] += 1
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
        successors = graph.edges.get(walk[-1], {})
        open_ones = {tool: weight for tool, weight in successors.items() if not acyclic or tool not in walk}
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


def edge_coverage(graph: ToolGraph, chains: Iterable[Sequence[str]]) -> float:
    """Return the share of the graph's edges that the chains use; 1 for a graph without edges.

    >>> edge_coverage(build_tool_graph([["a", "b"], ["b", "c"]]), [["a", "b"]])
    0.5
    """
    if not graph.num_edges:
        return 1.0
    used = {(a, b) for chain in chains for a, b in pairwise(chain)}
    # Only edges of this graph count: the chains may come from elsewhere.
    return sum(b in graph.edges.get(a, {}) for a, b in used) / graph.num_edges


def _draw(weights: Mapping[str, int], rng: Random) -> str:
    return rng.choices(list(weights), weights=list(weights.values()))[0]
