"""Diversity of a record set: distinct texts after names and numbers are masked."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from pydantic import BaseModel, ConfigDict

from synthesis.records import Environment, Language, Trajectory
from synthesis.run.json_values import texts_in

_MASK: Final = "□"
_NUMBER: Final = re.compile(r"\d+(?:[.,:/-]\d+)*")
_CODE: Final = re.compile(rf"\b[A-Z]{{1,4}}{_MASK}")
_WORD: Final = re.compile(r"[^\W\d_]+")


class Diversity(BaseModel):
    """Counts of distinct things in a set; a skeleton is a text whose names, numbers and codes are masked."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    questions: int
    question_skeletons: int
    reasonings: int
    """Number of assistant messages that have reasoning."""
    reasoning_skeletons: int
    word_pairs: int
    """Number of distinct pairs of neighbouring words (in Chinese, characters) in all skeletons."""
    vocabulary: dict[Language, int]
    """Number of distinct words (in Chinese, characters) in the skeletons, by language."""
    tool_names: int
    tool_sets: int
    """Number of distinct combinations of tools that one record calls."""


def skeleton(text: str, names: Iterable[str]) -> str:
    """Return a text with names, numbers, dates and codes masked.

    >>> skeleton("Rent of flat Amber Fox in 2024, code AB1234?", ["Amber Fox"])
    'Rent of flat □ in □, code □?'
    """
    # The longest first: a name may hold another one.
    for name in sorted({name for name in names if len(name) > 1}, key=len, reverse=True):
        # Only ASCII letters guard a name: Chinese puts nothing between words.
        text = re.sub(rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])", _MASK, text)
    return _CODE.sub(_MASK, _NUMBER.sub(_MASK, text))


@dataclass
class DiversityCounter:
    """Counts records one by one; holds skeletons as hashes, not the texts."""

    questions: set[int] = field(default_factory=set)
    tool_sets: set[frozenset[str]] = field(default_factory=set)
    _reasonings: set[int] = field(default_factory=set)
    _pairs: set[int] = field(default_factory=set)
    _words: defaultdict[Language, set[str]] = field(default_factory=lambda: defaultdict(set))
    _tools: set[str] = field(default_factory=set)
    _num_questions: int = 0
    _num_reasonings: int = 0

    def add_environment(self, environment: Environment) -> None:
        """Count a question, and the tools that answer it."""
        self._question(skeleton(environment.question, environment.entities), environment.language)
        self._called(frozenset(task.call.name for task in environment.sub_tasks if task.call))

    def add_trajectory(self, trajectory: Trajectory) -> None:
        """Count a task, the agent's reasoning, and the tools that it calls."""
        calls = [call for message in trajectory.messages for call in message.tool_calls]
        names = [text for call in calls for text in texts_in(call.arguments)]
        self._question(skeleton(trajectory.task.text, names), trajectory.language)
        for message in trajectory.messages:
            if message.reasoning_content:
                self._num_reasonings += 1
                self._reasonings.add(self._seen(skeleton(message.reasoning_content, names), trajectory.language))
        self._called(frozenset(f"{trajectory.server}/{call.name}" for call in calls))

    def result(self) -> Diversity:
        """Return the counts."""
        return Diversity(
            questions=self._num_questions,
            question_skeletons=len(self.questions),
            reasonings=self._num_reasonings,
            reasoning_skeletons=len(self._reasonings),
            word_pairs=len(self._pairs),
            vocabulary={language: len(words) for language, words in sorted(self._words.items())},
            tool_names=len(self._tools),
            tool_sets=len(self.tool_sets),
        )

    def _question(self, text: str, language: Language) -> None:
        self._num_questions += 1
        self.questions.add(self._seen(text, language))

    def _called(self, tools: frozenset[str]) -> None:
        self.tool_sets.add(tools)
        self._tools |= tools

    def _seen(self, text: str, language: Language) -> int:
        words = list(text.replace(_MASK, "")) if language == "zh" else _WORD.findall(text.lower())
        self._words[language].update(words)
        self._pairs.update(hash(pair) for pair in pairwise(words))
        return hash(text)
