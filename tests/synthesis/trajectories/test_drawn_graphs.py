"""Tool graphs are read back from a run's report, and the page draws them and the dependency graphs."""

from __future__ import annotations

import asyncio
import io
import json
from collections import Counter
from pathlib import Path

import pytest

from astra_jax.recipes.data_sets import describe
from astra_jax.report import write_report
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordDirectoryError, write_records
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.statistics import trajectory_statistics
from synthesis.trajectories.tool_graph import read_tool_graphs
from tests.synthesis.export.examples import environments


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("graphs") / "out"
    config = TrajectoriesConfig(count=20, out=out, proposal_draws=3)
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
    return out


def test_a_damaged_report_of_tool_graphs_is_named(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps({"tool_graphs": [{"server": "s", "edges": [["a"]]}]}))
    with pytest.raises(RecordDirectoryError, match="expected the tool graphs of a run"):
        read_tool_graphs(tmp_path)


def test_every_proposed_transition_is_read_with_its_weight(directory: Path) -> None:
    weights = Counter(weight for _, graph in read_tool_graphs(directory) for *_, weight in graph.edges(data="weight"))
    assert weights == trajectory_statistics(directory).edges_by_weight


def test_the_report_draws_the_heaviest_tool_graphs_and_the_shapes_of_questions(directory: Path, tmp_path: Path) -> None:
    page = write_report(directory, describe).read_text()
    server, graph = max(read_tool_graphs(directory), key=lambda each: each[1].size(weight="weight"))
    assert f"<b>{server}</b>" in page.replace("&amp;", "&")
    drawn = describe(directory).drawings
    assert len(drawn) == 4
    assert len(drawn[0].arrows) == graph.size()
    widths = {arrow.title: arrow.width for arrow in drawn[0].arrows}
    for a, b, weight in graph.edges(data="weight"):
        assert widths[f"{a} → {b}: {weight}"] >= 1
    assert max(widths.values()) == 5
    write_records(tmp_path / "asked", environments(), kind="environment")
    shapes = describe(tmp_path / "asked").drawings
    assert [box.label for box in shapes[0].boxes][:2] == ["q1", "q2"]
    assert shapes[0].boxes[0].x < shapes[0].boxes[1].x
