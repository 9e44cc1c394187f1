"""The page of evaluations, of environments and of benchmarks; HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from astra_jax.benchmarks.results import read_results
from astra_jax.evaluate.side_by_side import is_evaluation, read_evaluation
from astra_jax.report.benchmark_tables import compare
from astra_jax.report.environments import side_by_side
from astra_jax.report.page import page_environment
from synthesis.run.destination import MARK, Result, whole_folder

REPORT: Final = Result("report of benchmarks", MARK, "benchmark report", is_replaced=True)
_BENCHMARKS: Final = "Benchmarks beside the paper's"
_EVALUATIONS: Final = "Policies in held-out environments"


def write_benchmark_report(runs: Sequence[Path], out: Path) -> Path:
    """Write `report.html` and `report.md` into `out`, of finished runs; of each kind the first is the one to beat.

    A folder that is no evaluation in environments must be a run of a benchmark.

    Raises:
        BenchmarkFailed, RunUnreadable: a folder holds no finished run.
        DestinationRefused: `out` is something else than an earlier report.
    """
    labels = [path.resolve().name for path in runs]
    if len(set(labels)) < len(labels):  # of one name in several folders
        labels = [str(path) for path in runs]
    labelled = list(zip(labels, runs, strict=True))
    in_environments = [read_evaluation(path, label) for label, path in labelled if is_evaluation(path)]
    comparisons = compare([(label, read_results(path)) for label, path in labelled if not is_evaluation(path)])
    shown = {
        "title": " · ".join([_EVALUATIONS] * bool(in_environments) + [_BENCHMARKS] * bool(comparisons)),
        "evaluations": side_by_side(in_environments) if in_environments else None,
        "comparisons": comparisons,
    }
    names = ", ".join(labels)
    markdown = page_environment()
    markdown.autoescape = False  # the label of a run is the one text that is not ours
    markdown.filters["cell"] = _cell
    with whole_folder(out, REPORT) as folder:
        html = page_environment().get_template("benchmarks.html.jinja")
        (folder / "report.html").write_text(html.render(name=names, **shown), encoding="utf-8")
        text = markdown.get_template("benchmarks.md.jinja").render(**shown)
        (folder / "report.md").write_text(text, encoding="utf-8")
    return out / "report.html"


def _cell(text: str) -> str:
    """Write a text so that it stays in its cell."""
    return text.replace("|", "\\|").replace("\n", " ")
