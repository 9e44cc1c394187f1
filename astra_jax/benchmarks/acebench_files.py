"""What ACEBench's agent split reads and writes: the files of one conversation, its result, its verdict.

Every conversation has a folder of its own with one case in it: the official code keeps the state of cases by their
number, for as long as it runs, and ends for good at a case that it cannot carry on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from astra_jax.benchmarks.results import BenchmarkFailed, ProgramFailed, whole_lines

Category = Literal["multi_turn", "multi_step"]
Language = Literal["en", "zh"]
CASES: Final[dict[Category, int]] = {"multi_turn": 30, "multi_step": 20}
MODEL: Final = "gpt-4o-2024-11-20"
"""An entry of its table of models for which it takes the address from a variable."""


class Outcome(BaseModel):
    """What its own code makes of one conversation."""

    model_config = ConfigDict(frozen=True)

    is_right: bool
    process: float
    """Share of a gold solution's milestones that were reached, in their order; 1 where the end is right."""
    error: str = ""
    executed_messages: int
    """Of the model, whose calls were run."""


@dataclass(frozen=True)
class ConversationFiles:
    """The files of one conversation, below the folder that the harness runs in."""

    folder: Path
    language: Language
    category: Category

    def prepare(self, source: Path, number: int) -> None:
        """Write one case of a checkout's data, and what else the code takes for granted.

        Raises:
            BenchmarkFailed: the checkout has no such case.
        """
        for kind in ("", "possible_answer/"):
            name = f"data_all/data_{self.language}/{kind}data_agent_{self.category}.json"
            lines = (source / name).read_text(encoding="utf-8").splitlines()
            wanted = [line for line in lines if re.search(rf'"id": *"agent_{self.category}_{number}"', line)]
            if len(wanted) != 1:
                raise BenchmarkFailed(
                    f"expected one case agent_{self.category}_{number} in {source / name}, found {len(wanted)}; "
                    "delete the environment and set it up again"
                )
            self._write(name, wanted[0] + "\n")
        # It reads both categories, and sorts the results of both.
        other = next(each for each in CASES if each != self.category)
        self._write(f"data_all/data_{self.language}/data_agent_{other}.json", "")
        self._write(f"{self._results}/data_agent_{other}_result.json", "")
        (self.folder / self._scores).mkdir(parents=True, exist_ok=True)

    def outcome(self) -> Outcome:
        """Read what generation and evaluation have left.

        Raises:
            ProgramFailed: that is none of the official code's: what a model wrote may have written there.
        """
        try:
            result = self._lines(f"{self._results}/data_agent_{self.category}_result.json")
            score = self._lines(f"{self._scores}/data_agent_{self.category}_score.json")
            (said,), (verdict, *wrong) = result, score
            if verdict["total_count"] != 1 or verdict["correct_count"] + len(wrong) != 1:
                raise ValueError(f"verdicts on {verdict['total_count']} cases")
            return Outcome(
                is_right=not wrong,
                process=verdict["process_accuracy"],
                error=str(wrong[0].get("error_type") or wrong[0].get("error"))[:200] if wrong else "",
                executed_messages=len(said["process"]),
            )
        except (LookupError, ValueError, TypeError, ValidationError, BenchmarkFailed) as error:
            raise ProgramFailed(
                f"expected a result and a verdict of ACEBench on one case in {self.folder}, found a fault: "
                f"{str(error).splitlines()[0]}"
            ) from None

    def most_messages_were_said(self, most: int) -> bool:
        """Say whether a conversation was as long as it may be."""
        found = sorted(self.folder.glob(f"data_all/data_{self.language}/dialogue_history/*/*/*_history.txt"))
        text = found[0].read_text(encoding="utf-8", errors="replace") if found else ""
        return re.search(rf"(?m)^\| {most} +\|", text) is not None

    @property
    def _results(self) -> str:
        return f"result_all/result_{self.language}/{MODEL}"

    @property
    def _scores(self) -> str:
        return f"score_all/score_{self.language}/{MODEL}"

    def _lines(self, name: str) -> Sequence[Mapping[str, Any]]:
        return whole_lines(self.folder / name)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
