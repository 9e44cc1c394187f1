"""Record directories as data sets to show: our statistics beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from astra_jax.report.data_sets import (
    Bar,
    DataSet,
    Distribution,
    Figure,
    distribution,
    in_words,
    number_distribution,
    score_distribution,
)
from synthesis import by_construction
from synthesis.diversity import Diversity
from synthesis.environments.selection import statistics as environments
from synthesis.environments.selection.statistics import EnvironmentStatistics, environment_statistics
from synthesis.record_io import DatasetCard, RecordDirectoryError, read_card
from synthesis.trajectories import statistics as trajectories
from synthesis.trajectories.statistics import TrajectoryStatistics, trajectory_statistics

NUMBER, MEAN, SHARE = "{:,}", "{:.2f}", "{:.1%}"


def count_records(directory: Path) -> TrajectoryStatistics | EnvironmentStatistics:
    """Return the statistics of a record directory.

    Raises:
        RecordDirectoryError: it is missing, damaged, empty, or of a kind that has no statistics.
    """
    kind = read_card(directory).kind
    if kind == "trajectory":
        return trajectory_statistics(directory)
    if kind == "environment":
        return environment_statistics(directory)
    raise RecordDirectoryError(f"statistics are of trajectories or environments, found {kind!r} records in {directory}")


def describe(directory: Path) -> DataSet:
    """Return the statistics of a record directory as a page that can be shown."""
    counted, card = count_records(directory), read_card(directory)
    shown = _trajectories(counted) if isinstance(counted, TrajectoryStatistics) else _environments(counted)
    figures = [*shown.figures, *_diversity(counted.diversity)]
    shares = [*shown.distributions["Shares"], distribution("Teachers", counted.teachers)]
    if card.rejected:
        ranked = sorted(card.rejected.items(), key=lambda item: -item[1])
        figures.append(Figure("rejected on the way", f"{sum(card.rejected.values()):,}"))
        bars = [Bar(reason, count, f"{count:,}") for reason, count in ranked]
        shares.append(Distribution("Reasons of rejection", bars))
    return DataSet(shown.kind, figures, {**shown.distributions, "Shares": shares}, so_by_construction(counted, card))


def so_by_construction(counted: TrajectoryStatistics | EnvironmentStatistics, card: DatasetCard) -> list[str]:
    """Return the sentences about properties that the counted records have by construction."""
    if isinstance(counted, TrajectoryStatistics):
        return by_construction.of_trajectories(counted, card.made_with)
    return by_construction.of_environments(counted, card.made_with)


def _trajectories(counted: TrajectoryStatistics) -> DataSet:
    paper = trajectories.PAPER
    table = _Table(counted, paper)
    edges = counted.edges_by_weight
    return DataSet(
        "trajectories",
        [
            table.figure("trajectories", "trajectories", NUMBER),
            table.figure("messages", "messages", NUMBER),
            table.figure("messages each", "messages_per_trajectory", MEAN),
            table.figure("tool calls each", "tool_calls_per_trajectory", MEAN),
            table.figure("with 1–5 calls", "share_with_1_to_5_calls", SHARE),
            table.figure("with parallel calls", "share_with_parallel_calls", SHARE),
            table.figure("several calls, with data flow", "share_with_data_flow", SHARE),
            *table.shares("messages of role", "roles"),
            table.figure("distinct functions offered", "distinct_functions", NUMBER),
            table.figure("distinct functions called", "distinct_functions_called", NUMBER),
            *(
                Figure(f"tools of unknown parameters: {outcome}", f"{count:,}")
                for outcome, count in counted.tools_of_unknown_parameters.items()
            ),
            table.figure("servers", "servers", NUMBER),
            Figure("domains", f"{len(counted.domains):,}", f"{paper['num_domains']}"),
            table.figure("emulated calls made to fail", "injected_failure_rate", SHARE),
            Figure("mean reward", f"{counted.reward['mean']:.3f}"),
        ],
        {
            "Sizes": [
                number_distribution("Tool calls each", counted.calls_by_number),
                number_distribution("Messages each", counted.messages_by_number),
                number_distribution("Requests of the user each", counted.requests_by_number),
                *([number_distribution("Proposals of each edge of the tool graphs", edges)] if edges else []),
            ],
            "Task scores": [
                score_distribution(in_words(name).capitalize(), tenths, mean=counted.task_scores[name])
                for name, tenths in counted.task_score_tenths.items()
            ],
            "Reward axes": [
                score_distribution(
                    "Reward, mean of the axes" if axis == "mean" else in_words(axis).capitalize(),
                    tenths,
                    mean=counted.reward[axis],
                )
                for axis, tenths in counted.reward_tenths.items()
            ],
            "Shares": [
                distribution("Message roles", counted.roles),
                distribution("Domains", counted.domains),
                distribution("Languages", counted.languages),
                distribution("Tools answered by", counted.tool_backends),
                distribution("Expected of the agent", counted.expectations),
                distribution("Tasks by augmentation", counted.augmentations),
            ],
        },
    )


def _diversity(counted: Diversity) -> list[Figure]:
    figures = [("question skeletons", f"{counted.question_skeletons:,} of {counted.questions:,}")]
    if counted.reasonings:
        figures += [("reasoning skeletons", f"{counted.reasoning_skeletons:,} of {counted.reasonings:,}")]
    figures += [("distinct word pairs", f"{counted.word_pairs:,}")]
    figures += [(f"vocabulary, {language}", f"{words:,}") for language, words in counted.vocabulary.items()]
    figures += [("distinct tools called", f"{counted.tool_names:,}"), ("… sets of tools", f"{counted.tool_sets:,}")]
    return [Figure(name, text) for name, text in figures]


def _environments(counted: EnvironmentStatistics) -> DataSet:
    table = _Table(counted, environments.PAPER)
    irrelevant_each = sum(counted.irrelevant_tools_by_band.values()) / counted.environments
    return DataSet(
        "environments",
        [
            table.figure("environments", "environments", NUMBER),
            table.figure("sub-questions", "sub_questions", NUMBER),
            table.figure("hops (sub-questions) each", "sub_questions_mean", MEAN),
            table.figure("hops, median", "sub_questions_median", "{:g}"),
            table.figure("tool calls each", "tool_calls_mean", MEAN),
            table.figure("sub-questions with a tool", "needs_tool_share", SHARE),
            table.figure("calls that can run parallel", "parallel_share", SHARE),
            table.figure("longest path of calls, mean", "longest_path_mean", MEAN),
            *table.shares("scenario", "scenarios"),
            *table.shares("language", "languages"),
            *table.shares("domain", "domains", only_papers=True),
            table.figure("own tools each", "tools_mean", MEAN),
            Figure("irrelevant tools each", MEAN.format(irrelevant_each)),
            *([Figure("similarity of tools", counted.similarity)] if counted.similarity else []),
            *(
                Figure(f"cosine of {band} ones, mean", f"{cosine:.2f}")
                for band, cosine in counted.cosine_mean_by_band.items()
            ),
            table.figure("high ones with an own parameter", "high_with_own_parameter_share", SHARE),
            table.figure("answers that are computed", "computed_answers_share", SHARE),
            *(Figure(f"difficulty {name}", SHARE.format(share)) for name, share in counted.difficulties.items()),
            table.figure("stateful", "stateful_share", SHARE),
            Figure("mean quality score", f"{counted.quality_mean:.3f}"),
        ],
        {
            "Sizes": [
                number_distribution("Hops each", counted.sub_questions_histogram),
                number_distribution("Tool calls each", counted.tool_calls_histogram),
                number_distribution("Longest path of calls", counted.longest_path_histogram),
            ],
            "Shares": [
                distribution("Scenarios", counted.scenarios),
                distribution("Domains", counted.domains),
                distribution("Languages", counted.languages),
                distribution("Irrelevant tools by similarity", counted.irrelevant_tools_by_band),
                distribution("Expected of the agent", counted.expectations),
            ],
        },
    )


@dataclass(frozen=True)
class _Table:
    """Makes the lines of a table by the names that the statistics of a set and the paper's figures share."""

    counted: BaseModel
    paper: Mapping[str, Any]

    def figure(self, name: str, key: str, form: str) -> Figure:
        return Figure(name, _written(getattr(self.counted, key), form) or "–", _written(self.paper.get(key), form))

    def shares(self, name: str, key: str, *, only_papers: bool = False) -> list[Figure]:
        ours, paper = getattr(self.counted, key), self.paper[key]
        labels = dict.fromkeys(paper if only_papers else (*paper, *ours))
        return [
            Figure(f"{name} {in_words(label)}", SHARE.format(ours.get(label, 0.0)), _written(paper.get(label), SHARE))
            for label in labels
        ]


def _written(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
