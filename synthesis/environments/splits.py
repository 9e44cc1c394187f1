"""Splits that share nothing: the entities and answers of one must not occur in another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from synthesis.environments.decomposition import QAInstance
from synthesis.record_io import RecordSource
from synthesis.records import Environment, JsonValue


class TakenValues:
    """The entities and answers of other splits."""

    def __init__(self, directories: Sequence[Path]):
        self._taken: set[str] = set()
        for directory in directories:
            for environment in RecordSource(directory, Environment):
                answers = [environment.answer, *(item.answer for item in environment.sub_questions)]
                self._taken |= _value_keys(environment.entities, answers)

    def shared_with(self, instance: QAInstance) -> set[str]:
        """Return which of an instance's entities and answers are taken."""
        answers = [instance.answer, *(node.answer for node in instance.nodes)]
        return self._taken & _value_keys(instance.entities, answers)


def _value_keys(entities: Sequence[str], answers: Sequence[JsonValue]) -> set[str]:
    values: list[JsonValue] = [*entities]
    for answer in answers:
        values += answer if isinstance(answer, list | tuple) else [answer]
    return {str(value).casefold() for value in values if not isinstance(value, bool)}
