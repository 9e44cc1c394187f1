"""The page of a run or of a record directory: it reads the folder and lays the page out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.episodes.log import logs_of_run, read_episodes
from astra_jax.errors import RunUnreadable, first_fault
from astra_jax.evaluate.side_by_side import EvaluationFigures
from astra_jax.metrics_file import goodput, read_metrics, told_goodput
from astra_jax.report.charts import LineChart, figure, line_chart
from astra_jax.report.data_sets import Bar, DataSet
from astra_jax.report.episodes import PROGRAMS, choose_episodes, policy_name
from astra_jax.report.held_out import held_out_table
from synthesis.run.destination import require_file_destination, write_whole


class Export(BaseModel):
    """The comparison of the exported checkpoint with the reference implementation."""

    max_abs_logit_difference: float | None
    """None without torch, with which `transformers` computes."""
    bit_equal: bool


class Summary(BaseModel):
    """The part of `summary.json` that the page shows; further keys are ignored. Single runs have no such file."""

    model_config = ConfigDict(extra="ignore")

    seed: int | None = None
    seconds: dict[str, float] = {}
    """Seconds of each stage, and `total`."""
    peak_rss_bytes: int | None = None
    stage_peak_rss_bytes: dict[str, int] = {}
    trajectories: int | None = None
    environments: dict[str, int] = {}
    heldout: dict[str, dict[str, float | tuple[float, float]]] = {}
    """Policy to its figures on held-out environments."""
    left_out: dict[str, int] = {}
    """Split to its environments whose prompt is too long, or with nothing to solve; they are in no figure."""
    export: Export | None = None


_GENERATOR: Final = b'<meta name="generator" content="astra report">'
_HEAD_BYTES: Final = 1024
_LOSSES: Final = {kind: f"loss_{kind}" for kind in ("environments", "trajectories", "conversations")}
"""Losses of SFT by kind of row."""
_NATS: Final = "nats per token"
_SFT_CHARTS: Final = (
    ("Learning rate", "", {"learning rate": "learning_rate"}),
    ("Gradient norm", "", {"gradient norm": "grad_norm"}),
    ("Tokens", "per step", {"tokens": "tokens"}),
    ("Time", "seconds per step", {"whole step": "seconds"}),
)
"""Title, unit, and name of each curve to its key in `metrics.jsonl`."""
_CAUSES: Final = ("valid", "degenerate", "stale", "failed")
_HELD_OUT: Final = {"F1": "f1", "solved": "solved_fraction", "answers": "answer_accuracy"}
_LENGTHS: Final = {"rolled out": "sampled_tokens_per_episode", "kept": "sampled_tokens_per_episode_kept"}
_RL_CHARTS: Final = (
    ("Reward", "mean of the rollout", {name: name for name in ("reward", "recall", "precision")}),
    ("On held-out environments", "mean over episodes", {name: f"held_out_{key}" for name, key in _HELD_OUT.items()}),
    ("Loss", "", {"loss": "loss"}),
    ("Tool calls", "per episode", {"tool calls": "tool_calls_per_episode"}),
    ("Calls to irrelevant tools", "", {"share": "irrelevant_call_share"}),
    ("Sampled tokens", "per turn", {"tokens": "tokens_per_turn"}),
    ("Gradient norm", "", {"gradient norm": "grad_norm"}),
    ("Log-prob mismatch", "mean |Δ|", {"difference": "mean_abs_logprob_difference"}),
    ("Groups", "since the start", {cause: f"groups_{cause}" for cause in _CAUSES}),
    ("Groups waiting", "in the buffer", {"waiting": "groups_waiting"}),
    ("Age of groups learnt from", "updates", {"mean": "group_age_mean", "oldest": "group_age_max"}),
    ("Length of episodes", "sampled tokens", _LENGTHS),
    ("Time", "seconds per step", {"whole step": "seconds", "rollout": "rollout_seconds"}),
)
_DATA_SETS: Final = {
    "trajectories": "Trajectories",
    "environments": "Environments of RL",
    "heldout": "Held-out environments",
    "heldout_tools": "Held-out environments with unseen tools",
    "heldout_domains": "Held-out environments of unseen domains",
}
"""Name of a record directory in a run's folder to its heading."""


@dataclass(frozen=True)
class TrainingRun:
    """One `metrics.jsonl`."""

    title: str
    num_steps: int
    seconds: float
    time: str
    """Shares of its time by cause, in words; empty for a run of an earlier version."""
    charts: list[LineChart]


def write_report(folder: Path, describe: Callable[[Path], DataSet]) -> Path:
    """Write the page of a run into its folder as `report.html`, that of a record directory beside it as `NAME.html`.

    `describe` counts a record directory. The same files give the same page. A page leaves out parts that its folder
    lacks. A record directory is never written into, because its files are known by their digests.

    Raises:
        DestinationRefused: another file than an earlier page lies at the page's place.
        RunUnreadable, RecordDirectoryError: there is nothing to report on, or a file of the folder is damaged.
    """
    folder = folder.resolve()
    is_data_set = _is_record_directory(folder)
    path = folder.with_name(f"{folder.name}.html") if is_data_set else folder / "report.html"
    if folder.is_dir():
        require_file_destination(path, "report of `astra report`", is_page)
    if is_data_set:
        data_set = describe(folder)
        shown = {"title": f"ASTRA {data_set.kind}", "data_set": data_set}
    else:
        shown = {"title": "ASTRA run report", **_run(folder, describe)}
    template = page_environment().get_template("data_set.html.jinja" if is_data_set else "run.html.jinja")
    html = template.render(name=folder.name, **shown)
    write_whole(path, html)
    return path


def is_page(path: Path) -> bool:
    """Return whether a file is an earlier page, by its head."""
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)


def _run(run_dir: Path, describe: Callable[[Path], DataSet]) -> dict[str, Any]:
    """Read the content of a run's page."""
    summary = _read_summary(run_dir)
    runs = [
        _training_run(rows)
        for path in (run_dir / "sft" / "metrics.jsonl", run_dir / "rl" / "metrics.jsonl", run_dir / "metrics.jsonl")
        if (rows := _read_rows(path))
    ]
    logs = logs_of_run(run_dir)
    # The first and the last; a single log is shown once.
    episodes = [episode for path in (*logs[:1], *logs[1:][-1:]) for episode in read_episodes(path)]
    data_sets = {
        title: describe(run_dir / name) for name, title in _DATA_SETS.items() if _is_record_directory(run_dir / name)
    }
    if not (summary.model_fields_set or runs or episodes or data_sets):
        raise RunUnreadable(
            f"{run_dir} is not a record directory, and holds no summary.json, figures.json, metrics.jsonl, episode "
            "logs or record directories; name the `out` folder of a run or of a synthesis"
        )
    return {
        "summary": summary,
        "programs": PROGRAMS,
        "held_out": held_out_table(_sampled(summary), summary.heldout) if summary.heldout else None,
        "runs": runs,
        "stage_seconds": [
            Bar(stage.replace("_", " "), seconds, in_words_seconds(seconds))
            for stage, seconds in summary.seconds.items()
            if stage != "total"
        ],
        "stage_memory": [
            Bar(stage.replace("_", " "), size, in_words_bytes(size))
            for stage, size in summary.stage_peak_rss_bytes.items()
        ],
        "data_sets": data_sets,
        "by_construction": list(dict.fromkeys(said for each in data_sets.values() for said in each.by_construction)),
        "num_episodes": len(episodes),
        "episodes": choose_episodes(episodes),
    }


def _sampled(summary: Summary) -> str:
    """Return the words for the temperature of `heldout`: greedy in a quickstart, any in an evaluation."""
    # A program that learns nothing has no temperature.
    temperatures = sorted({figures["temperature"] for figures in summary.heldout.values() if "temperature" in figures})
    return "Greedy" if temperatures == [0.0] else f"At temperature {', '.join(f'{t:g}' for t in temperatures)}"


def in_words_seconds(seconds: float) -> str:
    """Return a duration in words.

    >>> in_words_seconds(0.42), in_words_seconds(41.3), in_words_seconds(492), in_words_seconds(7260)
    ('0.4 s', '41 s', '8 min 12 s', '2 h 01 min')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def in_words_bytes(size: float) -> str:
    """Return a size in bytes in words.

    >>> in_words_bytes(3 * 2**20), in_words_bytes(2.5 * 2**30)
    ('3 MiB', '2.50 GiB')
    """
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _read_summary(run_dir: Path) -> Summary:
    """Read the summary of a quickstart, or the figures of an evaluation as the summary of one policy."""
    path = next((path for path in (run_dir / "summary.json", run_dir / "figures.json") if path.is_file()), None)
    if path is None:
        return Summary()
    try:
        if path.name == "summary.json":
            return Summary.model_validate_json(path.read_bytes())
        evaluated = EvaluationFigures.model_validate_json(path.read_bytes())
        temperature = {} if evaluated.temperature is None else {"temperature": evaluated.temperature}
        return Summary(heldout={evaluated.policy: {**evaluated.__pydantic_extra__, **temperature}})
    except ValidationError as error:
        raise RunUnreadable(
            f"the figures of the run in {path} cannot be read: {first_fault(error)}; run it again"
        ) from error


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_metrics(path)
    except json.JSONDecodeError as error:
        raise RunUnreadable(f"{path} has a line that is not JSON: {error}; resume the run") from error


def _training_run(rows: Sequence[dict[str, Any]]) -> TrainingRun:
    is_rl = "reward" in rows[0]
    # The loss of the whole follows the mix of kinds in a step, so its curve jumps.
    by_kind = any(key in row for key in _LOSSES.values() for row in rows)
    loss = ("Loss by kind of row", _NATS, _LOSSES) if by_kind else ("Loss", _NATS, {"loss": "loss"})
    charts = [
        line_chart(title, rows, keys, unit=unit, from_zero=not title.startswith("Loss"))
        for title, unit, keys in (_RL_CHARTS if is_rl else (loss, *_SFT_CHARTS))
    ]
    return TrainingRun(
        title="Reinforcement learning" if is_rl else "Supervised fine-tuning",
        num_steps=len(rows),
        seconds=sum(row.get("seconds", 0.0) for row in rows),
        time=told_goodput(goodput(rows)),
        charts=[chart for chart in charts if chart is not None],
    )


def _is_record_directory(path: Path) -> bool:
    return (path / "dataset.json").is_file()


def page_environment() -> jinja2.Environment:
    """Return the renderer of HTML templates: it escapes every value, and refuses a name that it is not given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("astra_jax.report", package_path=""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_with_visible_controls,
    )
    environment.filters.update(
        seconds=in_words_seconds,
        size=in_words_bytes,
        figure=figure,
        policy_name=policy_name,
        with_line_marks=_with_line_marks,
        plain=_plain,
    )
    return environment


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def _with_visible_controls(value: Any) -> Any:
    """Replace control characters, which HTML must not contain, by their pictures (U+2400 on)."""
    return value.translate(_CONTROL_PICTURES) if type(value) is str else value


def _with_line_marks(text: str) -> Markup:
    """Put a faint mark, which is not copied with the text, before every line break."""
    return Markup("<s>↵</s>\n").join(_with_visible_controls(text).split("\n"))


def _plain(value: Any) -> str:
    """Write a gold answer: texts as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
