"""The graphs of a record directory, as one GraphML file for other programs.

    trajectories   each server's tool graph, as the run has written it down: what was proposed to follow what, how often
    environments   each question's dependency graph: which sub-question needs the answer of which

A file holds them side by side: the nodes of each have its name, and no edge leads from one to another.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from synthesis.questions.decomposition import dependency_graph
from synthesis.record_io import RecordDirectoryError, RecordSource, read_card
from synthesis.records import Environment
from synthesis.run.destination import require_file_destination, whole_file
from synthesis.trajectories.tool_graph import ToolGraph, from_json

if TYPE_CHECKING:
    from networkx import DiGraph

_HEAD_BYTES = 200


def tool_graphs(directory: Path) -> list[tuple[str, ToolGraph]]:
    """Return each server's name and tool graph; none where the run wrote none down.

    Raises:
        RecordDirectoryError: its `report.json` is damaged.
    """
    path = directory / "report.json"
    if not path.is_file():
        return []
    try:
        written = json.loads(path.read_text(encoding="utf-8")).get("tool_graphs", [])
        return [(str(graph["server"]), from_json(graph)) for graph in written]
    except (ValueError, AttributeError, KeyError, TypeError) as error:
        raise RecordDirectoryError(f"expected the tool graphs of a run in {path}, found others: {error}") from error


def dependency_graphs(directory: Path) -> Iterator[tuple[str, DiGraph[str]]]:
    """Yield each environment's id and dependency graph; a node has a question and the tool that answers it.

    Raises:
        RecordDirectoryError: the directory is missing, damaged or of another kind.
    """
    for environment in RecordSource(directory, Environment):
        graph = dependency_graph(environment.sub_questions)
        for asked in environment.sub_questions:
            graph.nodes[asked.id]["question"] = asked.question
            graph.nodes[asked.id]["tool"] = "" if asked.call is None else asked.call.name
        yield environment.id, graph


def write_graphml(directory: Path, out: Path) -> int:
    """Write all graphs of a record directory into one GraphML file, and return how many there are.

    Raises:
        DestinationRefused: at `out` is something else than an earlier such file.
        RecordDirectoryError: the directory is missing or damaged, or has no graphs.
        OSError: the disk is full or not writable.
    """
    import networkx

    require_file_destination(out, "GraphML file", _is_graphml, sources=[directory])
    kind = read_card(directory).kind
    graphs = {"trajectory": tool_graphs, "environment": dependency_graphs}.get(kind)
    if graphs is None:
        raise RecordDirectoryError(f"graphs are of trajectories or environments, found {kind!r} records in {directory}")
    whole: DiGraph[str] = networkx.DiGraph()
    count = 0
    for number, (name, graph) in enumerate(graphs(directory)):  # servers may share a name
        whole.add_nodes_from(
            (f"{number}/{node}", _as_text({"of": name, "name": node, **found}))
            for node, found in graph.nodes(data=True)
        )
        whole.add_edges_from((f"{number}/{a}", f"{number}/{b}", found) for a, b, found in graph.edges(data=True))
        count += 1
    if not count:
        raise RecordDirectoryError(
            f"expected tool graphs in the report.json of {directory}, found none: an older version or another program "
            "made it; synthesise it anew"
        )
    with whole_file(out) as partial:
        networkx.write_graphml_xml(whole, partial)  # the one writer that hangs on no package that may be there
    return count


def _as_text(found: dict[str, Any]) -> dict[str, Any]:
    # XML has no way to write most control characters, and networkx would write them as they are.
    return {
        key: re.sub(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", value)
        if isinstance(value, str)
        else value
        for key, value in found.items()
    }


def _is_graphml(path: Path) -> bool:
    with path.open("rb") as file:
        return b"<graphml" in file.read(_HEAD_BYTES)
