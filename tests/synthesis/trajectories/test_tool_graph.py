"""Candidate chains are weighted random walks, bounded in length, and nothing is enumerated."""

from collections import Counter
from random import Random

import pytest

from synthesis.trajectories.tool_graph import build_tool_graph, random_walk, sample_candidate_chains

DENSE = build_tool_graph([[a, b] for a in "abcdefghij" for b in "abcdefghij" if a != b])


def test_successors_are_drawn_by_edge_weight():
    graph = build_tool_graph([["a", "b"]] * 8 + [["a", "c"]] * 2)
    rng = Random(0)
    drawn = Counter(random_walk(graph, rng, min_length=2, max_length=2, acyclic=True) for _ in range(4000))
    assert drawn["a", "b"] / 4000 == pytest.approx(0.8, abs=0.03)


def test_walks_keep_to_the_bounds_the_edges_and_use_no_tool_twice():
    for chain in sample_candidate_chains(DENSE, Random(1), num_walks=500):
        assert 2 <= len(chain) <= 5
        assert len(set(chain)) == len(chain)
    sparse = build_tool_graph([["a", "b", "c"]])
    assert set(sample_candidate_chains(sparse, Random(0), num_walks=50)) == {("a", "b"), ("a", "b", "c")}


def test_a_cycle_can_be_allowed():
    graph = build_tool_graph([["a", "b", "a"]])
    chains = sample_candidate_chains(graph, Random(0), num_walks=50, acyclic=False)
    assert any(len(set(chain)) < len(chain) for chain in chains)


def test_a_graph_without_edges_gives_no_chains():
    assert sample_candidate_chains(build_tool_graph([["a"], []]), Random(0), num_walks=10) == []
    assert sample_candidate_chains(build_tool_graph([]), Random(0), num_walks=10) == []
