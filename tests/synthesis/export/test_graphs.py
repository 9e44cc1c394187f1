"""Tool graphs and dependency graphs are GraphML that other programs read, with every weight and name."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import networkx
import pytest

from astra_jax.cli.command import main
from astra_jax.recipes.data_sets import describe
from astra_jax.report import write_report
from synthesis.export.graphs import tool_graphs, write_graphml
from synthesis.procedural.teacher import ProceduralTeacher
from synthesis.record_io import RecordDirectoryError, write_records
from synthesis.run.destination import DestinationRefused
from synthesis.trajectories.pipeline import TrajectoriesConfig, synthesize_trajectories
from synthesis.trajectories.statistics import trajectory_statistics
from tests.synthesis.export.examples import conversation, environments, trajectory


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("graphs") / "out"
    config = TrajectoriesConfig(count=20, out=out, proposal_draws=3)
    asyncio.run(synthesize_trajectories(config, ProceduralTeacher(), progress=io.StringIO()))
    return out


def test_every_proposed_transition_stands_in_the_file_with_its_weight(directory: Path, tmp_path: Path) -> None:
    assert main(["records", "graph", str(directory), "--out", str(tmp_path / "tools.graphml")]) in (0, None)
    found = networkx.read_graphml(tmp_path / "tools.graphml")
    graphs = tool_graphs(directory)
    assert networkx.number_weakly_connected_components(found) >= len(graphs) > 10
    written = [
        (found.nodes[a]["of"], found.nodes[a]["name"], found.nodes[b]["name"], weight)
        for a, b, weight in found.edges(data="weight")
    ]
    proposed = [(server, a, b, weight) for server, graph in graphs for a, b, weight in graph.edges(data="weight")]
    assert sorted(written) == sorted(proposed)
    by_weight = trajectory_statistics(directory).edges_by_weight
    assert sum(by_weight.values()) == len(written)
    first = (tmp_path / "tools.graphml").read_bytes()
    write_graphml(directory, tmp_path / "tools.graphml")  # an earlier one is replaced, by the same bytes
    assert (tmp_path / "tools.graphml").read_bytes() == first


def test_dependency_graphs_say_what_is_asked_and_text_that_xml_cannot_hold_is_marked(tmp_path: Path) -> None:
    first, *others = environments()
    asked = first.sub_questions[0].model_copy(update={"question": "What is \x00 <b> & 房?"})
    first = first.model_copy(update={"sub_questions": (asked, *first.sub_questions[1:])})
    write_records(tmp_path / "records", [first, *others], kind="environment")
    count = write_graphml(tmp_path / "records", tmp_path / "asked.graphml")
    found = networkx.read_graphml(tmp_path / "asked.graphml")
    assert count == 1 + len(others)
    assert found.number_of_nodes() == sum(len(each.sub_questions) for each in (first, *others))
    assert found.nodes["0/q1"]["question"] == "What is \ufffd <b> & 房?"
    assert list(found.successors("0/q1")) == ["0/q2"]


def test_what_has_no_graphs_and_what_is_no_graph_is_told_of(directory: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "old", [trajectory(*conversation())], kind="trajectory")
    with pytest.raises(RecordDirectoryError, match=r"expected tool graphs in the report\.json of"):
        write_graphml(tmp_path / "old", tmp_path / "out.graphml")
    (tmp_path / "old" / "report.json").write_text(json.dumps({"tool_graphs": [{"server": "s", "edges": [["a"]]}]}))
    with pytest.raises(RecordDirectoryError, match="expected the tool graphs of a run"):
        write_graphml(tmp_path / "old", tmp_path / "out.graphml")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DestinationRefused, match="an earlier GraphML file"):
        write_graphml(directory, tmp_path / "notes.txt")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "old"]


def test_the_report_draws_the_heaviest_tool_graphs_and_the_shapes_of_questions(directory: Path, tmp_path: Path) -> None:
    page = write_report(directory, describe).read_text()
    server, graph = max(tool_graphs(directory), key=lambda each: each[1].size(weight="weight"))
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
