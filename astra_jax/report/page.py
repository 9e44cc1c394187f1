"""The page of a run, of runs side by side, or of a record directory: it reads the folders and lays the page out."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.resources
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jinja2
from markupsafe import Markup
from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.episodes.log import LoggedEpisode, logs_of_run, read_episodes
from astra_jax.errors import RunUnreadable, first_fault
from astra_jax.evaluate.side_by_side import EvaluationFigures
from astra_jax.metrics_file import goodput, read_metrics, told_goodput
from astra_jax.report.charts import LineChart, figure, line_chart
from astra_jax.report.data_sets import Bar, DataSet
from astra_jax.report.episodes import CONTROL_PICTURES, PROGRAMS, policy_name, policy_order, viewer_data
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


def write_report(folder: Path, describe: Callable[[Path], DataSet], *, beside: Sequence[Path] = ()) -> Path:
    """Write the page of a run into its folder as `report.html`, that of a record directory beside it as `NAME.html`.

    With runs in `beside` one page shows all, and lies beside the first as `NAME_OTHER.html`. `describe` counts a record
    directory. The same files give the same page. A page leaves out parts that its folder lacks. A record directory is
    never written into, because its files are known by their digests.

    Raises:
        DestinationRefused: another file than an earlier page lies at the page's place.
        RunUnreadable, RecordDirectoryError: there is nothing to report on, or a file of the folder is damaged.
    """
    folders = [each.resolve() for each in (folder, *beside)]
    folder, names, path = folders[0], _names(folders), page_path(*folders)
    is_data_set = _is_record_directory(folder)
    if beside and (sets := [each for each in folders if _is_record_directory(each)]):
        raise RunUnreadable(f"{sets[0]} is a record directory, and only runs are shown side by side; name it alone")
    if folder.is_dir():
        require_file_destination(path, "report of `astra report`", is_page)
    if is_data_set:
        data_set = describe(folder)
        shown: dict[str, Any] = {"title": f"ASTRA {data_set.kind}", "data_set": data_set}
    elif beside:
        shown = {"title": "ASTRA runs side by side", **_side_by_side(dict(zip(names, folders, strict=True)), describe)}
    else:
        shown = {"title": "ASTRA run report", **_run(folder, describe)}
    shown |= _viewer(shown.pop("logged", []))
    template = page_environment().get_template("data_set.html.jinja" if is_data_set else "run.html.jinja")
    html = template.render(name=", ".join(names), **shown)
    write_whole(path, html)
    return path


def page_path(folder: Path, *beside: Path) -> Path:
    """Return where the page of a run or of a record directory lies, or that of several runs."""
    if not beside and not _is_record_directory(folder):
        return folder / "report.html"
    return folder.with_name("_".join(_names([folder, *beside])).replace("/", "-") + ".html")


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders, each with its parent's if two are alike.

    >>> _names([Path("/runs/a/rl"), Path("/runs/b/rl")]), _names([Path("/runs/a"), Path("/runs/b")])
    (['a/rl', 'b/rl'], ['a', 'b'])
    """
    names = [folder.name for folder in folders]
    if len(set(names)) < len(names):
        names = [f"{folder.parent.name}/{folder.name}" for folder in folders]
    return names if len(set(names)) == len(names) else list(map(str, folders))


def is_page(path: Path) -> bool:
    """Return whether a file is an earlier page, by its head."""
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)


def _side_by_side(folders: Mapping[str, Path], describe: Callable[[Path], DataSet]) -> dict[str, Any]:
    """Read the content of a page of several runs, by their names."""
    found = {name: _run(folder, describe) for name, folder in folders.items()}
    of_all = {
        f"{policy_name(policy)} · {name}": each["summary"].heldout[policy]
        for name, each in found.items()
        for policy in policy_order(list(each["summary"].heldout))
    }
    both = Summary(heldout=of_all)
    sets = {path.read_bytes() for folder in folders.values() if (path := folder / "heldout" / "dataset.json").is_file()}
    title = _sampled(both) + (", each run on held-out environments of its own" if len(sets) > 1 else "")
    return next(iter(found.values())) | {
        "summary": both,
        "held_out": held_out_table(title, of_all) if of_all else None,
        "runs": [
            dataclasses.replace(run, title=f"{run.title}, {name}")
            for name, each in found.items()
            for run in each["runs"]
        ],
        **{part: [] for part in ("tiles", "stage_seconds", "stage_memory", "data_sets")},
        "logged": [(name, episode) for name, each in found.items() for _, episode in each["logged"]],
    }


def _viewer(episodes: Sequence[tuple[str, LoggedEpisode]]) -> dict[str, Any]:
    """Return the viewer's data and script, and the digest by which the page allows this script and no other."""
    script = (importlib.resources.files("astra_jax.report") / "viewer.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    data = viewer_data(episodes)
    return {
        "num_logged": len(episodes),
        "num_shown": len(data["episodes"]),
        # Without `<` no text of a model can end the element.
        "episodes": Markup(json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")),
        "script": Markup(script),
        "script_digest": digest,
    }


def _run(run_dir: Path, describe: Callable[[Path], DataSet]) -> dict[str, Any]:
    """Read the content of a run's page."""
    summary = _read_summary(run_dir)
    runs = [
        _training_run(rows)
        for path in (run_dir / "sft" / "metrics.jsonl", run_dir / "rl" / "metrics.jsonl", run_dir / "metrics.jsonl")
        if (rows := _read_rows(path))
    ]
    # Of training the first and the last step; a single log is shown once.
    logs = [path for found in map(logs_of_run, (run_dir, run_dir / "rl")) for path in (*found[:1], *found[1:][-1:])]
    episodes = [("", episode) for path in logs for episode in read_episodes(path)]
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
        "tiles": bool(summary.model_fields_set),
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
        "logged": episodes,
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
        line_chart(title, rows, keys, unit=unit + _measured_on(unit, rows), from_zero=not title.startswith("Loss"))
        for title, unit, keys in (_RL_CHARTS if is_rl else (loss, *_SFT_CHARTS))
    ]
    return TrainingRun(
        title="Reinforcement learning" if is_rl else "Supervised fine-tuning",
        num_steps=len(rows),
        seconds=sum(row.get("seconds", 0.0) for row in rows),
        time=told_goodput(goodput(rows)),
        charts=[chart for chart in charts if chart is not None],
    )


def _measured_on(unit: str, rows: Sequence[dict[str, Any]]) -> str:
    """Return the number of episodes behind each point of a chart of means.

    >>> _measured_on("mean of the rollout", [{"episodes": 128}, {"episodes": 256}])
    ', n = 128–256 episodes'
    """
    key = {"mean of the rollout": "episodes", "mean over episodes": "held_out_environments"}.get(unit)
    counts = {row[key] for row in rows if key in row}
    return f", n = {'–'.join(map(str, sorted({min(counts), max(counts)})))} episodes" if counts else ""


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
    )
    return environment


def _with_visible_controls(value: Any) -> Any:
    """Replace control characters, which HTML must not contain, by their pictures (U+2400 on)."""
    return value.translate(CONTROL_PICTURES) if type(value) is str else value
