"""The page: what a run's folder, or a record directory, holds, laid out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from astra_jax.episodes.log import logs_of_run, read_episodes
from astra_jax.errors import AstraError
from astra_jax.metrics_file import read_metrics
from astra_jax.report.ablations import FILE as ABLATIONS
from astra_jax.report.ablations import read_ablations
from astra_jax.report.before_and_after import before_and_after
from astra_jax.report.charts import LineChart, figure, line_chart
from astra_jax.report.data_sets import Bar, DataSet, mean_subtasks
from astra_jax.report.episodes import PROGRAMS, choose_episodes, policy_order
from astra_jax.report.temperatures import KINDS, by_temperature, n_in_words
from synthesis.run.destination import require_file_destination, whole_file


class RunFolderError(AstraError):
    """A folder holds no run, or a damaged one; the message says what was expected and what to do."""


class Export(BaseModel):
    """How the exported checkpoint compares with the reference implementation."""

    max_abs_logit_difference: float | None
    not_compared_because: str = ""
    """Why there is no difference."""
    bit_equal: bool


class Summary(BaseModel):
    """What the page reads of `summary.json`; single runs have none, and further keys are welcome."""

    model_config = ConfigDict(extra="ignore")

    seed: int | None = None
    seconds: dict[str, float] = {}
    """Per stage, and `total`."""
    peak_rss_bytes: int | None = None
    stage_peak_rss_bytes: dict[str, int] = {}
    trajectories: int | None = None
    environments: dict[str, int] = {}
    heldout: dict[str, dict[str, float | tuple[float, float]]] = {}
    """Policy to its figures on held-out environments, sampled at temperature 1."""
    heldout_greedy: dict[str, dict[str, float | tuple[float, float]]] = {}
    heldout_best: dict[str, dict[str, float | tuple[float, float]]] = {}
    """Each policy at the best of a few temperatures, chosen on other environments."""
    left_out: dict[str, int] = Field(default={}, validation_alias=AliasChoices("left_out", "not_fitting"))
    """Split to its environments whose prompt is too long, or with nothing to solve, left out of every figure."""
    export: Export | None = None


class EvaluatedPolicy(BaseModel):
    """What `astra evaluate` writes as `figures.json`: whose figures, the figures, and more than the page shows."""

    model_config = ConfigDict(extra="allow")

    policy: str
    stop_reasons: dict[str, int] = {}
    slices: dict[str, Any] = {}


_GENERATOR = b'<meta name="generator" content="astra report">'
_HEAD_BYTES = 1024
_LOSSES = {kind: f"loss_{kind}" for kind in ("environments", "trajectories", "conversations")}
"""Losses of SFT by kind of row. The loss of the whole follows the mix of kinds in a step, so its curve jumps."""
_DATA_SETS = {
    "trajectories": "Trajectories",
    "environments": "Environments whose demonstrations SFT learns from",
    "rl_environments": "Environments of RL",
    "heldout": "Held-out environments",
    "heldout_tools": "Held-out environments with unseen tools",
    "heldout_domains": "Held-out environments of unseen domains",
}
"""Record directories of a run's folder and what they are called."""


@dataclass(frozen=True)
class TrainingRun:
    """One `metrics.jsonl`."""

    title: str
    num_steps: int
    seconds: float
    charts: list[LineChart]


def write_report(folder: Path, describe: Callable[[Path], DataSet]) -> Path:
    """Write the page of a record directory beside it, as `NAME.html`; of a run, or ablations, into their folder.

    There it is `report.html`.

    `describe` counts a record directory. The same files give the same page; what a run's folder lacks, its page leaves
    out. Nothing is ever written into a record directory, which is a whole of known bytes.

    Raises:
        DestinationRefused: at the page's place is something else than an earlier page.
        RunFolderError: there is nothing to report on, or `summary.json` is damaged.
        EpisodeLogError, RecordDirectoryError, AblationsUnreadable: a file of the folder is damaged.
    """
    folder = folder.resolve()
    path = report_path(folder)
    if folder.is_dir():
        require_file_destination(path, "report of `astra report`", _is_page)
    if _is_record_directory(folder):
        data_set = describe(folder)
        return _write_page(path, "data_set", name=folder.name, title=f"ASTRA {data_set.kind}", data_set=data_set)
    if (rows := folder / ABLATIONS).is_file():
        return _write_page(path, "ablations", name=folder.name, title="ASTRA ablations", ablations=read_ablations(rows))
    return _write_page(path, "run", name=folder.name, title="ASTRA run report", **_run(folder, describe))


def report_path(folder: Path) -> Path:
    """Return where the page of a folder is written."""
    return folder.with_name(folder.name + ".html") if _is_record_directory(folder) else folder / "report.html"


def _is_page(path: Path) -> bool:
    """Whether a file is an earlier page: it says so in its head."""
    with path.open("rb") as file:
        return _GENERATOR in file.read(_HEAD_BYTES)


def _write_page(path: Path, template: str, **shown: Any) -> Path:
    html = page_environment().get_template(f"{template}.html.jinja").render(**shown)
    with whole_file(path) as file:
        file.write_text(html, encoding="utf-8")
    return path


def _run(run_dir: Path, describe: Callable[[Path], DataSet]) -> dict[str, Any]:
    """Read what the page of a run shows."""
    summary = _read_summary(run_dir / "summary.json") or _evaluation(run_dir / "figures.json") or Summary()
    runs = _training_runs(run_dir)
    episodes = [episode for path in logs_of_run(run_dir) for episode in read_episodes(path)]
    data_sets = {
        title: describe(run_dir / name) for name, title in _DATA_SETS.items() if _is_record_directory(run_dir / name)
    }
    if not (summary.model_fields_set or runs or episodes or data_sets):
        raise RunFolderError(
            f"expected a record directory, or summary.json, figures.json, ablations.json, metrics.jsonl, episode logs "
            f"or record directories in {run_dir}, found none; name the `out` folder of a run or of a synthesis"
        )
    held_out_directory = run_dir / "heldout"
    gold_calls = mean_subtasks(held_out_directory) if _is_record_directory(held_out_directory) else None
    settings = {
        title: figures
        for title, figures in (
            (_title_of_first(summary), summary.heldout),
            ("Greedy", summary.heldout_greedy),
            ("Each at its best temperature", summary.heldout_best),
        )
        if figures
    }
    return {
        "summary": summary,
        "policies": policy_order(list(summary.heldout)),
        "programs": PROGRAMS,
        "tables": {
            title: before_and_after(figures, gold_calls=gold_calls) for title, figures in settings.items() if figures
        },
        "settings": list(settings),
        "counted": {title: n_in_words(figures) for title, figures in settings.items()},
        "kinds": list(KINDS.values()),
        "blocks": by_temperature(list(settings.values())) if len(settings) > 1 else [],
        "best_temperatures": {
            policy: figures["temperature"]
            for policy, figures in summary.heldout_best.items()
            if isinstance(figures.get("temperature"), float)
        },
        "runs": runs,
        "stage_seconds": _bars({k: v for k, v in summary.seconds.items() if k != "total"}, in_words_seconds),
        "stage_memory": _bars(summary.stage_peak_rss_bytes, in_words_bytes),
        "data_sets": data_sets,
        "by_construction": list(dict.fromkeys(said for each in data_sets.values() for said in each.by_construction)),
        "num_episodes": len(episodes),
        "episodes": choose_episodes(episodes),
    }


def _title_of_first(summary: Summary) -> str:
    """The quickstart samples at temperature 1; an evaluation says what it did."""
    temperatures = {figures.get("temperature", 1.0) for figures in summary.heldout.values()}
    return "Greedy" if temperatures == {0.0} else f"At temperature {', '.join(f'{t:g}' for t in temperatures)}"


def in_words_seconds(seconds: float) -> str:
    """Write a duration.

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
    """Write a size.

    >>> in_words_bytes(3 * 2**20), in_words_bytes(2.5 * 2**30)
    ('3 MiB', '2.50 GiB')
    """
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


def _evaluation(path: Path) -> Summary | None:
    """What `astra evaluate` wrote, as the summary of one policy."""
    if not path.is_file():
        return None
    try:
        evaluated = EvaluatedPolicy.model_validate_json(path.read_text(encoding="utf-8"))
        return Summary.model_validate({"heldout": {evaluated.policy: evaluated.model_extra}})
    except ValidationError as error:
        raise RunFolderError(f"expected the figures of an evaluation in {path}; evaluate again") from error


def _read_summary(path: Path) -> Summary | None:
    if not path.is_file():
        return None
    try:
        return Summary.model_validate_json(path.read_text(encoding="utf-8"))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the whole file"
        raise RunFolderError(
            f"expected the summary of a run in {path}, found a fault at {where}: {first['msg']}; run it again"
        ) from error


def _training_runs(run_dir: Path) -> list[TrainingRun]:
    runs = []
    for path in (run_dir / "sft" / "metrics.jsonl", run_dir / "rl" / "metrics.jsonl", run_dir / "metrics.jsonl"):
        rows = _read_rows(path)
        if rows:
            runs.append(_training_run(rows))
    return runs


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        return read_metrics(path)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"expected one JSON object per line in {path}, found: {error}; resume the run") from error


def _training_run(rows: Sequence[dict[str, Any]]) -> TrainingRun:
    is_rl = "reward" in rows[0]
    return TrainingRun(
        title="Reinforcement learning" if is_rl else "Supervised fine-tuning",
        num_steps=len(rows),
        seconds=sum(row.get("seconds", 0.0) for row in rows),
        charts=[chart for chart in (_rl_charts(rows) if is_rl else _sft_charts(rows)) if chart is not None],
    )


def _sft_charts(rows: Sequence[dict[str, Any]]) -> list[LineChart | None]:
    return [
        line_chart("Loss by kind of row", rows, _LOSSES, unit="nats per token")
        or line_chart("Loss", rows, {"loss": "loss"}, unit="nats per token"),
        line_chart("Learning rate", rows, {"learning rate": "learning_rate"}, from_zero=True),
        line_chart("Gradient norm", rows, {"gradient norm": "grad_norm"}, from_zero=True),
        line_chart("Tokens", rows, {"tokens": "tokens"}, unit="per step", from_zero=True),
        line_chart("Time", rows, {"whole step": "seconds"}, unit="seconds per step", from_zero=True),
    ]


def _rl_charts(rows: Sequence[dict[str, Any]]) -> list[LineChart | None]:
    parts = {"reward": "reward", "recall": "recall", "precision": "precision"}
    groups = {cause: f"groups_{cause}" for cause in ("valid", "degenerate", "stale", "failed", "cancelled")}
    lengths = {"rolled out": "sampled_tokens_per_episode", "kept": "sampled_tokens_per_episode_kept"}
    held_out = {"F1": "held_out_f1", "solved": "held_out_solved_fraction", "answers": "held_out_answer_accuracy"}
    ages = {"mean": "group_age_mean", "oldest": "group_age_max"}
    seconds = {"whole step": "seconds", "rollout": "rollout_seconds"}
    return [
        line_chart("Reward", rows, parts, unit="mean of the rollout", from_zero=True),
        line_chart("On held-out environments", rows, held_out, unit="mean over episodes", from_zero=True),
        line_chart("Loss", rows, {"loss": "loss"}),
        line_chart("Tool calls", rows, {"tool calls": "tool_calls_per_episode"}, unit="per episode", from_zero=True),
        line_chart("Calls to irrelevant tools", rows, {"share": "irrelevant_call_share"}, from_zero=True),
        line_chart("Sampled tokens", rows, {"tokens": "tokens_per_turn"}, unit="per turn", from_zero=True),
        line_chart("Gradient norm", rows, {"gradient norm": "grad_norm"}, from_zero=True),
        line_chart(
            "Log-prob mismatch",
            rows,
            {"difference": "mean_abs_logprob_difference"},
            unit="mean |Δ|",
            from_zero=True,
        ),
        line_chart("Groups", rows, groups, unit="since the start", from_zero=True),
        line_chart("Groups waiting", rows, {"waiting": "groups_waiting"}, unit="in the buffer", from_zero=True),
        line_chart("Age of groups learnt from", rows, ages, unit="updates", from_zero=True),
        line_chart("Length of episodes", rows, lengths, unit="sampled tokens", from_zero=True),
        line_chart("Time", rows, seconds, unit="seconds per step", from_zero=True),
    ]


def _is_record_directory(path: Path) -> bool:
    return (path / "dataset.json").is_file()


def _bars(amounts: Mapping[str, float], in_words: Any) -> list[Bar]:
    return [Bar(_stage_name(stage), amount, in_words(amount)) for stage, amount in amounts.items()]


def _stage_name(stage: str) -> str:
    return " ".join({"sft": "SFT", "rl": "RL"}.get(word, word) for word in stage.split("_"))


def page_environment() -> jinja2.Environment:
    """Return what renders templates: they escape whatever they are given, and refuse what they are not given."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("astra_jax.report", package_path=""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_with_visible_controls,
    )
    environment.filters.update(
        seconds=in_words_seconds, size=in_words_bytes, figure=figure, with_line_marks=_with_line_marks, plain=_plain
    )
    return environment


_CONTROL_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: 0x2421}


def _with_visible_controls(value: Any) -> Any:
    """Show control characters, which HTML must not contain, by their pictures (U+2400 on)."""
    return value.translate(_CONTROL_PICTURES) if type(value) is str else value


def _with_line_marks(text: str) -> Markup:
    """Put a faint mark, which is not copied with the text, before every line break."""
    return Markup("<s>↵</s>\n").join(_with_visible_controls(text).split("\n"))


def _plain(value: Any) -> str:
    """Write a gold answer: texts as they are, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
