"""Finished evaluations side by side: whether two can be compared, and by how much they differ.

Two runs can be compared if they differ only by the policy, its temperature and its truncation; else no difference is
told. Differences are paired: environments are drawn, each with the episodes of both runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.errors import RunUnreadable, first_fault
from astra_jax.evaluate.intervals import paired_interval
from astra_jax.evaluate.slices import EvaluatedEnvironment
from astra_jax.training.run_record import EVALUATION
from synthesis.run.destination import manifest_in
from synthesis.run.fingerprint import Fingerprint

FigureTable = dict[str, float | tuple[float, float]]
"""Figures by name; `NAME_interval` is the 95 % interval of NAME."""


class EvaluationFigures(BaseModel):
    """`figures.json`."""

    model_config = ConfigDict(frozen=True, extra="allow")
    __pydantic_extra__: dict[str, float | tuple[float, float]]

    policy: str
    temperature: float | None = None
    """Sampling temperature; None for a program that learns nothing."""
    stop_reasons: dict[str, int]
    slices: dict[str, dict[str, FigureTable]]
    """Figures of each slice, by its kind and value."""


class _MadeWith(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    seed: int


class _Run(BaseModel):
    """`run.json`, as far as it is read here."""

    made_with: _MadeWith


@dataclass(frozen=True)
class FinishedEvaluation:
    """One run of `astra evaluate environments`."""

    label: str
    figures: EvaluationFigures
    environments: dict[str, EvaluatedEnvironment]
    """Environments by their ids."""
    made_with: Fingerprint

    @property
    def table(self) -> FigureTable:
        """Figures of `figures.json` by name, without its other fields."""
        return self.figures.__pydantic_extra__

    @property
    def sampling(self) -> str:
        """Sampling temperature of the policy, in words; empty for a program."""
        if self.figures.temperature is None:
            return ""
        return "greedy" if self.figures.temperature == 0 else f"temperature {self.figures.temperature:g}"


Difference = tuple[float, tuple[float, float]]
"""The increase from one run to another one, with its 95 % interval."""


def is_evaluation(out: Path) -> bool:
    """Say whether a folder is one of `astra evaluate environments`, finished or not."""
    return manifest_in(out, EVALUATION) is not None


def read_evaluation(out: Path, label: str) -> FinishedEvaluation:
    """Read a finished evaluation.

    Raises:
        RunUnreadable: there is none, it is damaged, or it is of an older version.
    """
    try:
        lines = map(EvaluatedEnvironment.model_validate_json, (out / "environments.jsonl").read_bytes().splitlines())
        return FinishedEvaluation(
            label=label,
            figures=EvaluationFigures.model_validate_json((out / "figures.json").read_bytes()),
            environments={line.id: line for line in lines},
            made_with=_Run.model_validate_json((out / "run.json").read_bytes()).made_with.model_dump(),
        )
    except FileNotFoundError as error:
        raise RunUnreadable(
            f"{out} holds no finished evaluation: {Path(error.filename).name} is missing; finish it, or evaluate again "
            "elsewhere if it is of an older version"
        ) from None
    except ValidationError as error:
        fault = f"the results of the evaluation in {out} cannot be read: {first_fault(error)}"
        raise RunUnreadable(f"{fault}; evaluate again elsewhere") from None


def not_comparable(first: FinishedEvaluation, second: FinishedEvaluation) -> list[str]:
    """Say why the figures of `second` cannot stand beside the figures of `first`; [] if they can."""
    before, after = first.made_with, second.made_with
    found = []
    if before.get("environments") != after.get("environments"):
        found.append("other environments")
    if before.get("seed") != after.get("seed"):
        found.append(f"seed {after.get('seed')}, not {before.get('seed')}: other distractors, in another order")
    if _per_band(before) != _per_band(after):
        found.append(f"distractors by band {_per_band(after)}, not {_per_band(before)}")
    for limit in sorted(name for name in before.keys() | after.keys() if name.startswith("rollout.max_")):
        if before.get(limit) != after.get(limit):
            found.append(f"{limit} {after.get(limit)}, not {before.get(limit)}")
    sources = sorted(name for name in before.keys() | after.keys() if name.startswith(_SOURCE))
    if changed := [name.removeprefix(_SOURCE) for name in sources if before.get(name) != after.get(name)]:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        found.append(f"another version of the code that counts: {changed[0]}{more}")
    return found


def shared_environments(first: FinishedEvaluation, second: FinishedEvaluation) -> list[str]:
    """Return the ids of the environments that both runs have figures of, in the order of the first."""
    return [name for name in first.environments if name in second.environments]


def differences(first: FinishedEvaluation, second: FinishedEvaluation) -> dict[str, Difference]:
    """Return each figure of `second` minus that of `first`, on shared environments; {} if runs are not comparable.

    A figure without data in one of the two has no difference.
    """
    if not_comparable(first, second):
        return {}
    shared = shared_environments(first, second)
    before = [first.environments[name].terms for name in shared]
    after = [second.environments[name].terms for name in shared]
    found = {}
    for name in dict.fromkeys(name for terms in before for name in terms):
        pairs = [
            (one[name], other[name])
            for one, other in zip(before, after, strict=True)
            if name in other and (one[name][1] or other[name][1])
        ]
        if (difference := _difference(pairs, second.made_with["seed"])) is not None:
            found[name] = difference
    return found


_SOURCE: Final = "source of "
_Pair = tuple[tuple[float, float], tuple[float, float]]


def _difference(pairs: Sequence[_Pair], seed: int) -> Difference | None:
    (above, below), (above_after, below_after) = (
        (sum(pair[side][0] for pair in pairs), sum(pair[side][1] for pair in pairs)) for side in (0, 1)
    )
    if not below or not below_after:
        return None
    before, after = zip(*pairs, strict=True)
    return above_after / below_after - above / below, paired_interval(before, after, seed=seed)


def _per_band(made_with: Mapping[str, Any]) -> str:
    return "/".join(str(made_with.get(f"irrelevant_per_band.{band}", 0)) for band in ("high", "medium", "low"))
