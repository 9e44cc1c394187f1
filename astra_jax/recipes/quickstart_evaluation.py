"""The quickstart's evaluation: greedy episodes in three kinds of unseen environments.

    heldout          unseen worlds: entities, values and questions, with the tools and domains of the training
    heldout_tools    unseen tools of the same domains, with names and documents of their own
    heldout_domains  unseen domains

Greedy takes the most likely token. At temperature 1, as it trains, RL is also ahead if it has made the policy colder
and no wiser. All policies, and the program that learns nothing, are measured on the same environments; `n` counts them.

Decided: docs/decisions/figures.md, “Policies are compared greedily, with intervals over environments”.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from astra_jax.checkpoints.policy import Policy, read_policy
from astra_jax.config import load_config
from astra_jax.episodes.rollout import RolloutEngine
from astra_jax.evaluate.attacks import sharing_a_parameter, told_the_names
from astra_jax.evaluate.baselines import evaluate_program
from astra_jax.evaluate.conduct import figures_of, summed
from astra_jax.evaluate.environments import Evaluation, EvaluationConfig, evaluate_environments, logged_episodes
from astra_jax.report.held_out import number_of_environments
from sandbox.client import AsyncSandboxClient
from synthesis.record_io import RecordSource
from synthesis.records import Environment, JsonObject

UNSEEN: Final = {"unseen_tools": "heldout_tools", "unseen_domains": "heldout_domains"}
"""Folders of further splits by the suffix of their figures."""
HELD_OUT_SPLITS: Final = ("heldout", *UNSEEN.values())
_EPISODES_SHOWN: Final = 24
"""Least number of episodes of each policy in each split that are logged, if it has as many environments."""
_CONDUCT: Final = (
    "tool_calls_per_episode",
    "failed_call_share",
    "setbacks_per_episode",
    "recovered_tool_share",
    "refusals_elsewhere",
)
"""Figures of `evaluate/conduct.py` in the summary, with their intervals if there are any."""


@dataclass
class PolicyEvaluation:
    """The figures of one policy."""

    figures: JsonObject
    left_out: dict[str, int]
    """Environments that are in no figure by split: their prompt is too long, or there is nothing to solve."""
    shown: list[dict[str, Any]]
    """Lines of the episode log."""

    def closing_line(self) -> str:
        """Return F1 and final answers on unseen worlds."""
        return "F1 {f1:.3f}, final answer right {answer_accuracy:.3f}".format_map(self.figures)


async def evaluate_baselines(out: Path, config_path: Path, *, seed: int, url: str) -> dict[str, JsonObject]:
    """Return the figures of the program `told_names`, by its name, on the environments of the policies' figures.

    It knows the names in the question, reads no other word, and tries each tool that shares its parameter with others.
    An environment whose prompt is too long for the policy in `out/base` is left out for the program as well.
    """
    config = load_config(EvaluationConfig, config_path).model_copy(update={"seed": seed})
    by_split, program = {}, told_the_names(sharing_a_parameter, {})
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(*read_policy(out / "base"), sandbox, config.rollout)
        for split in HELD_OUT_SPLITS:
            environments = list(RecordSource(out / split, Environment))
            by_split[split] = await evaluate_program(program, environments, config, sandbox, can_run=engine.can_run)
    return {"told_names": _figures(by_split.pop("heldout"), by_split, seed=seed)}


def _figures(worlds: Evaluation, by_split: Mapping[str, Evaluation], *, seed: int) -> JsonObject:
    """Return the figures and conduct on unseen worlds, and two figures and `n` of each further split."""
    of_conduct = figures_of([summed(group) for group in worlds.groups], seed=seed)
    told = {f"{name}{which}" for name in _CONDUCT for which in ("", "_interval")}
    figures = worlds.to_json() | {name: value for name, value in of_conduct.items() if name in told}
    figures["n"] = len(worlds.groups)
    for unseen, split in UNSEEN.items():
        figures[f"n_{unseen}"] = len(by_split[split].groups)
        for figure in ("f1", "answer_accuracy"):
            figures[f"{figure}_{unseen}"] = by_split[split].figures[figure]
            figures[f"{figure}_{unseen}_interval"] = list(by_split[split].intervals[figure])
    return figures


async def evaluate_policy(
    policy: Policy, name: str, out: Path, config_path: Path, *, seed: int, url: str
) -> PolicyEvaluation:
    """Evaluate one policy of a quickstart in `out` on its splits."""
    config = load_config(EvaluationConfig, config_path).model_copy(update={"policy": out / name, "out": out})
    by_split = {}
    async with AsyncSandboxClient(url) as sandbox:
        engine = RolloutEngine(policy.model_config, policy.tokenizer, sandbox, config.rollout)
        for split in HELD_OUT_SPLITS:
            environments = list(RecordSource(out / split, Environment))
            of_split = config.model_copy(update={"environments": out / split})
            by_split[split] = await evaluate_environments(engine, policy.params, environments, of_split, seed=seed)
    left_out = {split: evaluation.num_left_out for split, evaluation in by_split.items()}
    shown: list[dict[str, Any]] = []
    for split, evaluation in by_split.items():
        every = max(1, len(evaluation.groups) // _EPISODES_SHOWN)
        shown += logged_episodes(evaluation.groups[::every], policy.tokenizer, policy=name, split=split)
    worlds = by_split.pop("heldout")
    figures = {"temperature": config.rollout.temperature, **_figures(worlds, by_split, seed=seed)}
    return PolicyEvaluation(figures, left_out, shown)


def summarised(
    evaluations: Mapping[str, PolicyEvaluation], baselines: Mapping[str, JsonObject] | None = None
) -> dict[str, Any]:
    """Return the evaluation's part of `summary.json`; baselines are beside the policies."""
    figures = {name: each.figures for name, each in evaluations.items()} | dict(baselines or {})
    left_out = {split: max(each.left_out[split] for each in evaluations.values()) for split in HELD_OUT_SPLITS}
    return {"heldout": figures, "left_out": left_out}


def closing_table(summary: Mapping[str, Any]) -> str:
    """Return a table of the F1 of every policy on every split, with 95 % intervals in brackets.

    Its last column is the share of right final messages on unseen worlds.
    """
    columns = ("f1", "f1_unseen_tools", "f1_unseen_domains", "answer_accuracy")
    titles = ("F1, unseen worlds", "F1, unseen tools", "F1, unseen domains", "final answer right")
    lines = [f"{'greedy':<10}" + "".join(f" {title:<21}" for title in titles)]
    for name, figures in summary["heldout"].items():
        cells = ("{:.3f} [{:.3f}, {:.3f}]".format(figures[key], *figures[f"{key}_interval"]) for key in columns)
        lines.append(f"{name:<10}" + "".join(f" {cell:<21}" for cell in cells))
    lines.append(number_of_environments(summary["heldout"]))
    if left_out := ", ".join(f"{count} of {split}" for split, count in summary["left_out"].items() if count):
        lines.append(
            f"environments whose prompt is too long, or with nothing to solve, left out for every policy: {left_out}"
        )
    return "\n".join(line.rstrip() for line in lines)
