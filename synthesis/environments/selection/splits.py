"""Splits that share nothing: no world, tool or domain of another split occurs in this one.

    worlds    entities and answers
    tools     and the tools: their names, their documents, and the wording of each description and parameter
    domains   and the domains

Each level keeps the promises of the levels above it, too. `shared_between` counts it on the finished records.

Decided: docs/decisions/environments.md, “Held out means unseen worlds, unseen tools or unseen domains”.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from synthesis.questions.decomposition import QAInstance, ways_to_answer
from synthesis.questions.knowledge import Unseen
from synthesis.record_io import RecordSource
from synthesis.records import Environment, JsonValue, ToolDocument, canonical_json

APART: Final[Mapping[Unseen, tuple[str, ...]]] = {
    "worlds": ("entities", "answers"),
    "tools": ("entities", "answers", "tool_names", "tool_documents", "tool_wordings"),
    "domains": ("entities", "answers", "tool_names", "tool_documents", "tool_wordings", "domains"),
}
"""Contents that two splits may not share at each level, under the names of `SplitContents`."""
_DESCRIBED: Final = ("title", "description")


@dataclass
class SplitContents:
    """Contents of environments at each level, as texts; equal texts count as shared."""

    entities: set[str] = field(default_factory=set)
    answers: set[str] = field(default_factory=set)
    tool_names: set[str] = field(default_factory=set)
    tool_documents: set[str] = field(default_factory=set)
    tool_wordings: set[str] = field(default_factory=set)
    """Descriptions of tools, and names and descriptions of their parameters."""
    domains: set[str] = field(default_factory=set)

    def add(self, environment: Environment) -> None:
        """Add the contents of one environment, its distractors included."""
        self.entities |= _value_keys(environment.entities)
        self.answers |= _value_keys(ways_to_answer(environment, *environment.sub_questions))
        self.add_tools(tool.document for tool in environment.all_tools)
        self.domains.add(environment.domain.casefold())

    def add_tools(self, documents: Iterable[ToolDocument]) -> None:
        """Add the names, documents and wordings of tools."""
        for document in documents:
            self.tool_names.add(document.name.casefold())
            self.tool_documents.add(canonical_json(document.to_openai()))
            self.tool_wordings.add(_plain(document.description))
            self.tool_wordings |= {_plain(wording) for wording in _parameter_wordings(document.parameters)}
        self.tool_wordings.discard("")


def shared_between(split_a: Path, split_b: Path) -> dict[str, int]:
    """Count the contents that two directories of environments share, distractors included; by level.

    The levels are the fields of `SplitContents`; splits that share nothing have 0 everywhere.

    Raises:
        RecordDirectoryError: a directory is missing, damaged or of another kind.
    """
    a, b = contents_of([split_a]), contents_of([split_b])
    return {level.name: len(getattr(a, level.name) & getattr(b, level.name)) for level in fields(a)}


def contents_of(directories: Sequence[Path]) -> SplitContents:
    """Read the contents of record directories of environments."""
    contents = SplitContents()
    for directory in directories:
        for environment in RecordSource(directory, Environment):
            contents.add(environment)
    return contents


class TakenValues:
    """Contents of other splits that may not occur in this one."""

    def __init__(self, directories: Sequence[Path], unseen: Unseen = "worlds"):
        """Read the record directories of the other splits."""
        self.unseen: Unseen = unseen
        self._taken = contents_of(directories)
        self._values = self._taken.entities | self._taken.answers  # one split's answer may be another's entity

    def shared_with(self, instance: QAInstance) -> set[str]:
        """Return which of an instance's entities and answers are taken."""
        return self._values & _value_keys([*instance.entities, *ways_to_answer(instance, *instance.nodes)])

    def shared_tools(self, documents: Iterable[ToolDocument]) -> set[str]:
        """Return which names, documents and wordings of tools are taken; where only worlds are unseen, none is."""
        if self.unseen == "worlds":
            return set()
        found = SplitContents()
        found.add_tools(documents)
        taken = self._taken
        names, wordings = found.tool_names & taken.tool_names, found.tool_wordings & taken.tool_wordings
        return names | wordings | (found.tool_documents & taken.tool_documents)

    def has_domain(self, domain: str) -> bool:
        """Say whether a domain is taken; where domains need not be unseen, none is."""
        return self.unseen == "domains" and domain.casefold() in self._taken.domains


def _value_keys(values: Iterable[JsonValue]) -> set[str]:
    flat: list[JsonValue] = []
    for value in values:
        flat += value if isinstance(value, list | tuple) else [value]
    # Any two splits share true and false.
    return {str(value).casefold() for value in flat if not isinstance(value, bool)}


def _parameter_wordings(schema: Any) -> Iterator[str]:
    """Yield the names and descriptions of the parameters that a JSON Schema has at any depth.

    >>> flat = {"type": "string", "description": "Which flat"}
    >>> list(_parameter_wordings({"type": "object", "properties": {"flat": flat}}))
    ['flat', 'Which flat']
    """
    if isinstance(schema, list):
        for item in schema:
            yield from _parameter_wordings(item)
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _DESCRIBED and isinstance(value, str):
            yield value
        elif key == "properties" and isinstance(value, dict):
            for name, described in value.items():
                yield name
                yield from _parameter_wordings(described)
        else:
            yield from _parameter_wordings(value)


def _plain(wording: str) -> str:
    return " ".join(wording.casefold().split())
